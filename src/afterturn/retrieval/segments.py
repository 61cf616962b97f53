"""Immutable pieces of a path's index, and how small ones become large ones.

What changed since a path was last read becomes a new small segment; the slots that it replaces
are marked dead in the older ones. Segments are merged so that their sizes fall by more than
`MERGE_RATIO` each, as in a log-structured tree: three new records in fifty thousand cost one
small segment, and a record is copied a logarithmic number of times in all. Nothing is ever
changed in place, so a reader that still ranks the previous version is not disturbed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from afterturn.records import MemoryLayer
from afterturn.retrieval import lexical
from afterturn.retrieval.lexical import LexicalIndex, Mask, Positions
from afterturn.retrieval.order import in_order
from afterturn.retrieval.rows import Row
from afterturn.retrieval.tokenizer import terms
from afterturn.retrieval.traits import traits

MERGE_RATIO: Final = 4
MERGE_SLOTS: Final = 1_024
"""Two neighbours smaller than this together are merged in any case: it takes a millisecond."""

_ROW_BYTES: Final = 500  # measured: a Row with its ids, times and places, but for the long texts
_VECTOR_NORM_MIN: Final = 1e-6
_BLOCK_ROWS: Final = 1_024

LAYERS: Final = tuple(layer.value for layer in MemoryLayer)
COLUMNS: Final = np.dtype(
    [
        ("happened_at", np.float64),
        ("recorded_at", np.float64),
        ("order_key", np.int64),
        ("message_key", np.int64),
        ("session_key", np.int64),
        ("importance", np.float64),
        ("layer", np.int8),
        ("is_message", np.bool_),
        ("is_assistant", np.bool_),
        ("asks", np.bool_),
        ("first_person", np.bool_),
        ("tells_time", np.bool_),
        ("tells_number", np.bool_),
        ("standing", np.bool_),
        ("names", np.int8),
    ]
)


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows with everything that ranking needs of them; arrays are aligned with the `count` rows.

    Rows lie in the order of `in_order`, but for those of `thin`.

    `vectors` float32 [rows, dim] of unit length, zeros where `has_vector` is false, and [rows, 0]
    without an embedder; `vector_sum` float64 [dim]. They lie column by column, in which BLAS takes
    half as long for the product with one vector. `columns` is of dtype `COLUMNS`, times in
    seconds since the epoch, layers as positions in `LAYERS`; `speaker` is a position in
    `speaker_names`, -1 for none.
    """

    rows: tuple[Row, ...]
    slots: dict[str, int]
    count: int
    lexical: LexicalIndex
    vectors: NDArray[np.float32]
    vector_sum: NDArray[np.float64]
    has_vector: Mask
    columns: NDArray[np.void]
    speaker: Positions
    speaker_names: tuple[str, ...]
    nbytes: int

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True, slots=True)
class Part:
    """A segment of an entry and which of its slots are alive."""

    segment: Segment
    alive: Mask
    alive_count: int


def build(rows: Sequence[Row], vectors: NDArray[np.float32]) -> Segment:
    """A segment of these rows; `vectors` float32 [rows, dim], unusable rows zero or not finite."""
    columns = np.array([_column(row) for row in rows], dtype=COLUMNS)
    order = in_order(columns, np.arange(len(rows)))
    rows = tuple([rows[at] for at in order.tolist()])
    scaled, has_vector = usable(vectors)
    by_column = np.empty(scaled.shape, dtype=np.float32, order="F")
    for at in range(0, len(order), _BLOCK_ROWS):  # all at once would hold them once more
        by_column[at : at + _BLOCK_ROWS] = scaled[order[at : at + _BLOCK_ROWS]]
    return _segment(rows, _index(rows), columns[order], by_column, has_vector[order])


def thin(
    rows: Sequence[Row],
    vectors: NDArray[np.float32],
    has_vector: Mask,
    words: frozenset[str],
) -> Segment:
    """A segment that answers questions of these words and holds no rows (see `streaming`).

    `vectors` are taken as they are.
    """
    columns = np.array([_column(row) for row in rows], dtype=COLUMNS)
    names, speaker = _speakers(rows)
    index = _index(rows, words)
    size = index.nbytes + vectors.nbytes + columns.nbytes
    return Segment(
        rows=(),
        slots={},
        count=len(rows),
        lexical=index,
        vectors=vectors,
        vector_sum=vectors.sum(axis=0, dtype=np.float64),
        has_vector=has_vector,
        columns=columns,
        speaker=speaker,
        speaker_names=names,
        nbytes=size,
    )


def _index(rows: Sequence[Row], words: frozenset[str] | None = None) -> LexicalIndex:
    texts = [lexical.pieces(terms(row.index_text)) for row in rows]
    return lexical.build(
        [piece for text in texts for piece in text],
        [at for at, text in enumerate(texts) for _ in text],
        words,
    )


def merge(parts: Sequence[Part]) -> Segment:
    """One segment of all live rows, without reading any text again."""
    rows = [
        row
        for part in parts
        for row, alive in zip(part.segment.rows, part.alive.tolist(), strict=True)
        if alive
    ]
    columns = np.concatenate([part.segment.columns[part.alive] for part in parts])
    order = in_order(columns, np.arange(len(rows)))
    index = lexical.merge([(part.segment.lexical, part.alive) for part in parts], order)
    has_vector = np.concatenate([part.segment.has_vector[part.alive] for part in parts])
    return _segment(
        tuple([rows[at] for at in order.tolist()]),
        index,
        columns[order],
        _merged_vectors(parts, order),
        has_vector[order],
    )


def _merged_vectors(parts: Sequence[Part], order: NDArray[np.intp]) -> NDArray[np.float32]:
    """The vectors of all live rows in this order. As they lie, by column; nothing is held twice."""
    slots = np.flatnonzero(np.concatenate([part.alive for part in parts])).take(order)
    dim = parts[0].segment.vectors.shape[1]
    merged = np.empty((len(slots), dim), dtype=np.float32, order="F")
    for at in range(dim):
        column = np.concatenate([part.segment.vectors[:, at] for part in parts])
        merged[:, at] = column.take(slots)
    return merged


def whole(segment: Segment) -> Part:
    """A segment with every slot alive."""
    return Part(segment, np.ones(len(segment), dtype=np.bool_), len(segment))


def without(part: Part, record_ids: Sequence[str]) -> Part:
    """The part with these records dead; the same object when it holds none of them alive."""
    slots = [at for r in record_ids if (at := part.segment.slots.get(r)) is not None]
    if not part.alive[slots].any():
        return part
    alive = part.alive.copy()
    alive[slots] = False
    return Part(part.segment, alive, int(alive.sum()))


def settle(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Parts in order, with sizes that fall fast enough.

    That bounds dead slots, too: whatever replaced them lies in the parts behind, which together
    hold at most a third of what is alive here.
    """
    settled: list[Part] = []
    for part in parts:
        settled.append(part)
        while len(settled) > 1 and _belong_together(settled[-2], settled[-1]):
            last, previous = settled.pop(), settled.pop()
            settled.append(whole(merge([previous, last])))
    return tuple(part for part in settled if part.alive_count)


def _belong_together(older: Part, newer: Part) -> bool:
    together = older.alive_count + newer.alive_count
    return older.alive_count <= MERGE_RATIO * newer.alive_count or together <= MERGE_SLOTS


def usable(vectors: NDArray[np.float32]) -> tuple[NDArray[np.float32], Mask]:
    """Rows at unit length and which of them mean anything; the others are zero."""
    norms = np.linalg.norm(vectors, axis=1) if vectors.shape[1] else np.zeros(len(vectors))
    known = np.isfinite(norms) & (norms > _VECTOR_NORM_MIN)
    scaled = np.zeros_like(vectors)
    scaled[known] = vectors[known] / norms[known, None]
    return scaled, known


def _column(row: Row) -> tuple[object, ...]:
    return (
        row.happened_at.timestamp(),
        row.recorded_at.timestamp(),
        row.order_key,
        row.message_key,
        row.session_key,
        row.importance,
        LAYERS.index(row.layer),
        row.is_message,
        row.is_message and row.speaker == "assistant" and not row.speaker_name,
        *traits(row.text),
    )


def _speakers(rows: Sequence[Row]) -> tuple[tuple[str, ...], Positions]:
    names: dict[str, int] = {}
    speaker = [names.setdefault(r.speaker_name, len(names)) if r.speaker_name else -1 for r in rows]
    return tuple(names), np.array(speaker, dtype=np.int32)


def _segment(
    rows: tuple[Row, ...],
    index: LexicalIndex,
    columns: NDArray[np.void],
    vectors: NDArray[np.float32],
    has_vector: Mask,
) -> Segment:
    names, speaker = _speakers(rows)
    strings = sum(sys.getsizeof(row.text) + sys.getsizeof(row.metadata) for row in rows)
    return Segment(
        rows=rows,
        slots={row.record_id: at for at, row in enumerate(rows)},
        count=len(rows),
        lexical=index,
        vectors=vectors,
        vector_sum=vectors.sum(axis=0, dtype=np.float64),
        has_vector=has_vector,
        columns=columns,
        speaker=speaker,
        speaker_names=names,
        nbytes=strings + index.nbytes + vectors.nbytes + columns.nbytes + _ROW_BYTES * len(rows),
    )
