"""What of one entry is ranked for a question, laid out in the order of the conversations.

A message is held twice while its `working` record lives; the `episodic` one stands for both, so
that a message neither counts twice in the idf nor becomes its own neighbour. The rows lie by
conversation and time: neighbours are the positions before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from afterturn.retrieval.lexical import Floats, Mask, Positions
from afterturn.retrieval.order import in_order
from afterturn.retrieval.rows import Row
from afterturn.retrieval.segments import COLUMNS, LAYERS, Part
from afterturn.retrieval.tokenizer import terms
from afterturn.retrieval.weights import Weights

Columns: TypeAlias = NDArray[np.void]
Slots: TypeAlias = NDArray[np.intp]

_BYTES: Final = np.dtype((np.void, COLUMNS.itemsize))

CENTRE_DOUBT: Final = 20
"""So many vectors halve the belief in their mean."""
_DISTANCE_SQUARE_MIN: Final = 1e-4


@dataclass(frozen=True, slots=True)
class Selection:
    """Ranked positions 0 to n-1; arrays are aligned with them unless said.

    `slots` are positions among all slots of the entry; where all of those are ranked as they lie
    it is `in_place`. `opens_thread` is true where a
    conversation begins, `goes_on` where the next position is of the same one and `was_asked` where
    the one before is and ends in a question. `standing` is what somebody wants from now on, but for
    what an assistant says. `session_of` numbers the sessions (a record outside
    any is one of its own), `session_starts` [sessions] says where they begin and `session_lengths`
    how many terms they have.

    A text is one or more pieces in the lexical index: the ranked ones are numbered by position,
    `piece_of` gives their number per part of the entry (-1 where not ranked, `None` for a part in
    which each is its own number), `piece_owners` and
    `piece_lengths` [pieces] the position and the terms of each, `piece_starts` the first of each
    position, `terms` how many all of them have.

    `centre` float32 [dim] is what the vectors have in common and `nearness` one by how far each
    lies from it, 0 for what has no vector (see `_centred`); `vectors` says how many have one.
    `speaker` is a place in `speaker_names` or -1, which `unnamed` of them are; `name_terms` are the
    index terms of the names.
    `twins` gives, per position that has any, the slots of records of the same message that are
    not ranked themselves.
    """

    slots: Slots
    in_place: bool
    opens_thread: Mask
    goes_on: Mask
    was_asked: Mask
    standing: Mask
    session_of: Slots
    session_starts: Slots
    session_lengths: NDArray[np.float64]
    columns: Columns
    piece_of: tuple[Positions | None, ...]
    piece_owners: Positions
    piece_lengths: NDArray[np.float64]
    piece_starts: Slots
    terms: float
    centre: NDArray[np.float32]
    nearness: NDArray[np.float32]
    has_vector: Mask
    vectors: int
    speaker: Positions
    unnamed: int
    speaker_names: tuple[str, ...]
    name_terms: frozenset[str]
    twins: dict[int, tuple[int, ...]]
    _priors: dict[tuple[Weights, bool], Floats] = field(default_factory=dict, repr=False)

    def prior(self, weights: Weights, *, to_assistant: bool) -> Floats:
        """What each ranked row has on its side before any question; computed once."""
        key = (weights, to_assistant)
        known = self._priors.get(key)
        if known is None:
            known = self._priors[key] = _prior(self.columns, weights, to_assistant=to_assistant)
        return known

    def __len__(self) -> int:
        return len(self.slots)


def row_at(parts: Sequence[Part], slot: int) -> Row:
    """The row in a slot of the entry."""
    for part in parts:
        count = part.segment.count
        if slot < count:
            return part.segment.rows[slot]
        slot -= count
    raise IndexError(slot)


def select(parts: Sequence[Part], layers: frozenset[str] | None) -> Selection:
    """The selection of an entry's live rows in these layers (`None`: all)."""
    # As bytes: joined field by field it takes five times as long.
    columns = _joined([part.segment.columns.view(_BYTES) for part in parts], _BYTES).view(COLUMNS)
    wanted = _joined([part.alive for part in parts], np.dtype(np.bool_))
    if layers is not None:
        wanted = wanted & np.isin(columns["layer"], [LAYERS.index(layer) for layer in layers])
    twin = _is_twin(columns, wanted)
    slots = in_order(columns, np.flatnonzero(wanted & ~twin))
    ranked = columns.take(slots)  # by an index it takes 30 times as long
    opens_thread = _opens_thread(ranked)
    opens_session = opens_thread | (ranked["session_key"] == 0)
    has_vector = _joined([part.segment.has_vector for part in parts], np.dtype(np.bool_))
    piece_of, owners, lengths = _pieces(parts, slots)
    speaker, names = _speakers(parts)
    session_of = np.cumsum(opens_session) - 1
    centre, nearness = _centred(parts, slots, wanted & has_vector, has_vector[slots])
    goes_on = np.zeros_like(opens_thread)
    goes_on[:-1] = ~opens_thread[1:]
    was_asked = np.zeros_like(opens_thread)
    was_asked[1:] = goes_on[:-1] & ranked["asks"][:-1]
    return Selection(
        slots=slots,
        in_place=len(slots) == len(columns) and _counts_up(slots),
        opens_thread=opens_thread,
        goes_on=goes_on,
        was_asked=was_asked,
        standing=ranked["standing"] & ~ranked["is_assistant"],
        session_of=session_of,
        session_starts=np.flatnonzero(opens_session),
        session_lengths=np.bincount(session_of[owners], lengths).astype(np.float64),
        columns=ranked,
        piece_of=piece_of,
        piece_owners=owners,
        piece_lengths=lengths,
        piece_starts=np.flatnonzero(np.diff(owners, prepend=-1)),
        terms=float(lengths.sum()),
        centre=centre,
        nearness=nearness,
        has_vector=has_vector[slots],
        vectors=int(np.count_nonzero(has_vector[slots])),
        speaker=speaker[slots],
        unnamed=int(np.count_nonzero(speaker[slots] < 0)),
        speaker_names=names,
        name_terms=frozenset(term for name in names for term in terms(name)),
        twins=_twins(columns["message_key"], np.flatnonzero(twin), slots),
    )


def _prior(columns: Columns, weights: Weights, *, to_assistant: bool) -> Floats:
    # A fact is what somebody told of himself, put into the third person.
    tells = columns["first_person"] | ~columns["is_message"]
    prior = weights.first_person * tells
    if not to_assistant:
        prior -= weights.user_side * columns["is_assistant"]
    return np.asarray(prior)


def _is_twin(columns: Columns, wanted: Mask) -> Mask:
    """Which wanted `working` records have the `episodic` record of the same message beside them."""
    keys, layer = columns["message_key"], columns["layer"]
    twin: Mask = wanted & (layer == LAYERS.index("working")) & (keys != 0)
    if twin.any():
        stands_for = keys[wanted & (layer == LAYERS.index("episodic")) & (keys != 0)]
        twin[twin] = np.isin(keys[twin], stands_for)
    return twin


def _opens_thread(ranked: Columns) -> Mask:
    opens = np.ones(len(ranked), dtype=np.bool_)
    same = ranked["session_key"][1:] == ranked["session_key"][:-1]
    opens[1:] = ~(ranked["is_message"][1:] & same)
    return opens


def _pieces(
    parts: Sequence[Part], slots: Slots
) -> tuple[tuple[Positions | None, ...], Positions, NDArray[np.float64]]:
    """The ranked pieces' numbers per part, then the position and the terms of each."""
    position_of = np.full(sum(len(part.segment) for part in parts), -1, dtype=np.int32)
    position_of[slots] = np.arange(len(slots), dtype=np.int32)
    starts = np.cumsum([0, *(len(part.segment) for part in parts)])
    indexes = [part.segment.lexical for part in parts]
    place = [
        position_of[index.owners + start] for index, start in zip(indexes, starts, strict=False)
    ]
    positions = _joined(place, np.dtype(np.int32))
    ranked = np.flatnonzero(positions >= 0)
    order = ranked[np.argsort(positions[ranked], kind="stable")]
    number = np.full(len(positions), -1, dtype=np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    lengths = _joined([index.lengths for index in indexes], np.dtype(np.int32))
    of_parts = np.split(number, np.cumsum([len(p) for p in place])[:-1]) if parts else []
    piece_of = tuple([None if _counts_up(numbers) else numbers for numbers in of_parts])
    return piece_of, positions[order], lengths[order].astype(np.float64)


def _centred(
    parts: Sequence[Part], slots: Slots, usable: Mask, has_vector: Mask
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What all vectors have in common, and one by the distance of each from it.

    All of a scope's texts are somewhat alike, to each other and to any question; what is common
    tells nothing about which to choose (Arora et al. 2017, "A simple but tough-to-beat baseline",
    and Mu & Viswanath 2018 remove it). Of few vectors only a part of the mean is believed.
    """
    count = int(np.count_nonzero(usable))
    dim = parts[0].segment.vectors.shape[1] if parts else 0
    if not count:
        return np.zeros(dim, dtype=np.float32), np.zeros(len(slots), dtype=np.float32)
    total, start = np.zeros(dim), 0
    for part in parts:
        segment, end = part.segment, start + len(part.segment)
        left_out = np.flatnonzero(segment.has_vector & ~usable[start:end])
        total += segment.vector_sum - segment.vectors[left_out].sum(axis=0, dtype=np.float64)
        start = end
    centre = (total / (count + CENTRE_DOUBT)).astype(np.float32)
    # The matrices are not joined: that would copy them all.
    along = np.concatenate([part.segment.vectors @ centre for part in parts])[slots]
    squares = 1.0 - 2.0 * along + centre @ centre
    nearness = has_vector / np.sqrt(np.maximum(squares, _DISTANCE_SQUARE_MIN))
    return centre, nearness.astype(np.float32)


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


def _counts_up(numbers: NDArray[np.integer[Any]]) -> bool:
    return bool(np.array_equal(numbers, np.arange(len(numbers))))


def _joined(arrays: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)
