"""Everything that is ranked for one reader: the entries of the covering paths side by side."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afterturn.retrieval import lexical
from afterturn.retrieval.entries import Entry, Layers
from afterturn.retrieval.lexical import Floats, Mask, TermHits
from afterturn.retrieval.rows import Row
from afterturn.retrieval.segments import COLUMNS
from afterturn.retrieval.selection import Columns, Selection, row_at


class View:
    """The selections of the covering paths' entries as one row of positions."""

    def __init__(self, entries: Sequence[Entry], layers: Layers | None) -> None:
        self.entries = tuple(entries)
        self.selections: tuple[Selection, ...] = tuple(e.selection(layers) for e in self.entries)
        self.starts = (0, *accumulate(map(len, self.selections)))

    def __len__(self) -> int:
        return self.starts[-1]

    @cached_property
    def opens_thread(self) -> Mask:
        """Where conversations begin, over all entries."""
        return _joined([s.opens_thread for s in self.selections], np.bool_)

    @cached_property
    def opens_session(self) -> Mask:
        """Where sessions begin, over all entries."""
        return _joined([s.opens_session for s in self.selections], np.bool_)

    @cached_property
    def columns(self) -> Columns:
        """The numeric columns of all ranked rows."""
        return _joined([s.columns for s in self.selections], COLUMNS)

    @cached_property
    def has_vector(self) -> Mask:
        """Which ranked rows can be compared with the question's vector."""
        return _joined([s.has_vector for s in self.selections], np.bool_)

    def hits(self, words: Sequence[str]) -> list[TermHits]:
        """Where the words occur, in all entries together."""
        parts = [
            (part.segment.lexical, np.where(place >= 0, place + start, -1).astype(np.int32))
            for entry, selection, start in zip(
                self.entries, self.selections, self.starts, strict=False
            )
            for part, place in zip(entry.parts, selection.position_of, strict=True)
        ]
        return list(lexical.find(words, parts, len(self)).values())

    def lengths(self) -> Floats:
        """Terms of each ranked row."""
        return _joined([s.lengths for s in self.selections], np.float64)

    def cosines(self, vector: NDArray[np.float32]) -> Floats:
        """Cosine of each ranked row with the vector, 0 where the row has none."""
        found = []
        for entry, selection in zip(self.entries, self.selections, strict=True):
            products = [part.segment.vectors @ vector for part in entry.parts]
            found.append(np.concatenate(products)[selection.slots] if products else np.zeros(0))
        # Matrix products differ in the last bits with the shape of the matrix.
        return np.asarray(_joined(found, np.float64), dtype=np.float64).round(6)

    def names(self) -> tuple[str, ...]:
        """The names of everybody who speaks in what is ranked."""
        return tuple({name for s in self.selections for name in s.speaker_names})

    def said_by(self, name: str) -> Mask:
        """Which ranked rows were said by the speaker of this casefolded name."""
        found = []
        for selection in self.selections:
            codes = [c for c, n in enumerate(selection.speaker_names) if n.casefold() == name]
            found.append(np.isin(selection.speaker, codes))
        return _joined(found, np.bool_)

    def has_speaker(self) -> Mask:
        """Which ranked rows name their speaker."""
        return _joined([s.speaker >= 0 for s in self.selections], np.bool_)

    def rows(self, position: int) -> tuple[Row, ...]:
        """The row at a position, and behind it the other records of the same message."""
        at = bisect_right(self.starts, position) - 1
        parts, selection = self.entries[at].parts, self.selections[at]
        within = position - self.starts[at]
        first = row_at(parts, int(selection.slots[within]))
        twins = selection.twins.get(within)
        return (first, *(row_at(parts, slot) for slot in twins)) if twins else (first,)


def _joined(arrays: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)
