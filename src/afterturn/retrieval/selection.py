"""What of one entry is ranked for a question, laid out in the order of the conversations.

A message is held twice while its `working` record lives; the `episodic` one stands for both, so
that a message neither counts twice in the idf nor becomes its own neighbour. The rows lie by
conversation and time: neighbours are the positions before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from afterturn.retrieval.lexical import Mask, Positions
from afterturn.retrieval.rows import Row
from afterturn.retrieval.segments import COLUMNS, LAYERS, Part

Columns: TypeAlias = NDArray[np.void]
Slots: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Selection:
    """Ranked positions 0 to n-1; arrays are aligned with them unless said.

    `slots` are positions among all slots of the entry, `position_of` its inverse per part (-1
    where not ranked). `opens_thread` is true where a conversation begins, `opens_session` where
    a session does (a record outside any session is one of its own). `twins` gives, per position
    that has any, the slots of records of the same message that are not ranked themselves.
    """

    slots: Slots
    position_of: tuple[Positions, ...]
    opens_thread: Mask
    opens_session: Mask
    columns: Columns
    lengths: NDArray[np.float64]
    has_vector: Mask
    speaker: Positions
    speaker_names: tuple[str, ...]
    twins: dict[int, tuple[int, ...]]

    def __len__(self) -> int:
        return len(self.slots)


def row_at(parts: Sequence[Part], slot: int) -> Row:
    """The row in a slot of the entry."""
    for part in parts:
        if slot < len(part.segment):
            return part.segment.rows[slot]
        slot -= len(part.segment)
    raise IndexError(slot)


def select(parts: Sequence[Part], layers: frozenset[str] | None) -> Selection:
    """The selection of an entry's live rows in these layers (`None`: all)."""
    columns = _joined([part.segment.columns for part in parts], COLUMNS)
    wanted = _joined([part.alive for part in parts], np.dtype(np.bool_))
    if layers is not None:
        wanted = wanted & np.isin(columns["layer"], [LAYERS.index(layer) for layer in layers])
    twin = _is_twin(columns, wanted)
    slots = _in_order(columns, np.flatnonzero(wanted & ~twin))
    ranked = columns[slots]
    opens_thread = _opens_thread(ranked)
    lengths = _joined([part.segment.lexical.lengths for part in parts], np.dtype(np.int32))
    has_vector = _joined([part.segment.has_vector for part in parts], np.dtype(np.bool_))
    speaker, names = _speakers(parts)
    return Selection(
        slots=slots,
        position_of=_positions(parts, slots),
        opens_thread=opens_thread,
        opens_session=opens_thread | (ranked["session_key"] == 0),
        columns=ranked,
        lengths=lengths[slots].astype(np.float64),
        has_vector=has_vector[slots],
        speaker=speaker[slots],
        speaker_names=names,
        twins=_twins(columns["message_key"], np.flatnonzero(twin), slots),
    )


def _is_twin(columns: Columns, wanted: Mask) -> Mask:
    """Which wanted `working` records have the `episodic` record of the same message beside them."""
    keys, layer = columns["message_key"], columns["layer"]
    candidate = wanted & (layer == LAYERS.index("working")) & (keys != 0)
    stands_for = keys[wanted & (layer == LAYERS.index("episodic")) & (keys != 0)]
    return np.asarray(candidate & np.isin(keys, stands_for), dtype=np.bool_)


def _in_order(columns: Columns, slots: Slots) -> Slots:
    """Slots by conversation, then time; facts, which are no part of one, after them."""
    chosen = columns[slots]
    keys = ("order_key", "recorded_at", "happened_at", "session_key")
    return slots[np.lexsort([chosen[key] for key in keys] + [~chosen["is_message"]])]


def _opens_thread(ranked: Columns) -> Mask:
    opens = np.ones(len(ranked), dtype=np.bool_)
    same = ranked["session_key"][1:] == ranked["session_key"][:-1]
    opens[1:] = ~(ranked["is_message"][1:] & same)
    return opens


def _positions(parts: Sequence[Part], slots: Slots) -> tuple[Positions, ...]:
    total = sum(len(part.segment) for part in parts)
    position_of = np.full(total, -1, dtype=np.int32)
    position_of[slots] = np.arange(len(slots), dtype=np.int32)
    ends = np.cumsum([len(part.segment) for part in parts])
    return tuple(np.split(position_of, ends[:-1])) if parts else ()


def _speakers(parts: Sequence[Part]) -> tuple[Positions, tuple[str, ...]]:
    names: dict[str, int] = {}
    codes = []
    for part in parts:
        known = [names.setdefault(n, len(names)) for n in part.segment.speaker_names]
        # The appended -1 is what code -1, nobody, looks up.
        codes.append(np.array([*known, -1], dtype=np.int32)[part.segment.speaker])
    return _joined(codes, np.dtype(np.int32)), tuple(names)


def _twins(keys: NDArray[np.int64], twins: Slots, slots: Slots) -> dict[int, tuple[int, ...]]:
    if not len(twins):
        return {}
    by_key = np.argsort(keys[slots], kind="stable")
    positions = by_key[np.searchsorted(keys[slots], keys[twins], sorter=by_key)]
    grouped: dict[int, list[int]] = {}
    for slot, position in zip(twins.tolist(), positions.tolist(), strict=True):
        grouped.setdefault(position, []).append(slot)
    return {at: tuple(found) for at, found in grouped.items()}


def _joined(arrays: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)
