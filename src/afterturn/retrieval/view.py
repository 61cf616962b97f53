"""Everything that is ranked for one reader: the entries of the covering paths side by side."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from afterturn.retrieval import lexical
from afterturn.retrieval.entries import Entry, Layers
from afterturn.retrieval.lexical import Floats, Hits, Mask, Positions
from afterturn.retrieval.rows import Row
from afterturn.retrieval.segments import COLUMNS
from afterturn.retrieval.selection import Selection, Slots, row_at
from afterturn.retrieval.weights import Weights

_COSINE_UNITS: Final = 1e5
# What a view of one selection has from it as it is.
_AS_IS: Final = (
    *("opens_thread", "goes_on", "was_asked", "standing", "has_vector"),
    *("session_of", "session_starts", "session_lengths", "piece_owners", "piece_lengths"),
)
_as_is: Final = attrgetter(*_AS_IS)


class View:
    """The selections of the covering paths' entries as one row of positions."""

    def __init__(self, entries: Sequence[Entry], layers: Layers | None) -> None:
        chosen = [(entry, entry.selection(layers)) for entry in entries]
        # Without the empty ones most readers have one entry, whose arrays need no joining.
        chosen = [(entry, selection) for entry, selection in chosen if len(selection)]
        self.entries = tuple(entry for entry, _ in chosen)
        self.selections: tuple[Selection, ...] = tuple(selection for _, selection in chosen)
        self.starts = (0, *accumulate(map(len, self.selections)))
        self._piece_starts = (0, *accumulate(len(s.piece_owners) for s in self.selections))
        self._terms = sum(s.terms for s in self.selections)
        self._session_starts = (0, *accumulate(len(s.session_starts) for s in self.selections))
        if len(chosen) == 1:
            vars(self).update(zip(_AS_IS, _as_is(self.selections[0]), strict=True))

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def pieces(self) -> int:
        """How many pieces the ranked texts have."""
        return self._piece_starts[-1]

    @property
    def sessions(self) -> int:
        """How many sessions the ranked rows lie in."""
        return self._session_starts[-1]

    @cached_property
    def opens_thread(self) -> Mask:
        """Where conversations begin, over all entries."""
        return _joined([s.opens_thread for s in self.selections], np.bool_)

    @cached_property
    def goes_on(self) -> Mask:
        """Where the next position is of the same conversation."""
        return _joined([s.goes_on for s in self.selections], np.bool_)

    @cached_property
    def was_asked(self) -> Mask:
        """Where the position before is of the same conversation and ends in a question."""
        return _joined([s.was_asked for s in self.selections], np.bool_)

    @cached_property
    def standing(self) -> Mask:
        """Which ranked rows tell how somebody wants something from now on."""
        return _joined([s.standing for s in self.selections], np.bool_)

    @cached_property
    def session_of(self) -> Slots:
        """The number of each ranked row's session."""
        return _shifted([s.session_of for s in self.selections], self._session_starts, np.intp)

    @cached_property
    def session_starts(self) -> Slots:
        """The first position of each session."""
        return _shifted([s.session_starts for s in self.selections], self.starts)

    @cached_property
    def session_lengths(self) -> Floats:
        """Terms of each session."""
        return _joined([s.session_lengths for s in self.selections], np.float64)

    @property
    def mean_length(self) -> float:
        """Terms of a piece, on average."""
        return self._terms / self.pieces if self.pieces else 0.0

    @property
    def mean_session_length(self) -> float:
        """Terms of a session, on average."""
        return self._terms / self.sessions if self.sessions else 0.0

    def owners(self, pieces: Slots) -> Slots | Positions:
        """The positions that these pieces are of."""
        if self.pieces == len(self):
            return pieces  # each text is one piece
        return self.piece_owners[pieces]

    def prior(self, weights: Weights, *, to_assistant: bool) -> Floats:
        """What each ranked row has on its side before any question."""
        priors = [s.prior(weights, to_assistant=to_assistant) for s in self.selections]
        return _joined(priors, np.float64)

    def column(self, name: str) -> NDArray[Any]:
        """One of the numeric columns of all ranked rows."""
        return _joined([s.columns[name] for s in self.selections], COLUMNS[name])

    @property
    def vectors(self) -> int:
        """How many of the ranked rows have a vector."""
        return sum(s.vectors for s in self.selections)

    @cached_property
    def has_vector(self) -> Mask:
        """Which ranked rows can be compared with the question's vector."""
        return _joined([s.has_vector for s in self.selections], np.bool_)

    @cached_property
    def piece_owners(self) -> Positions:
        """The position that each piece is of, ascending."""
        return _shifted([s.piece_owners for s in self.selections], self.starts)

    @cached_property
    def piece_lengths(self) -> Floats:
        """Terms of each piece."""
        return _joined([s.piece_lengths for s in self.selections], np.float64)

    def best_piece(self, values: Floats) -> Floats:
        """For each ranked row the largest of its pieces' values [pieces]."""
        if self.pieces == len(self):
            return values
        return np.asarray(np.maximum.reduceat(values, self._first_pieces))

    def any_piece(self, sets: Floats) -> NDArray[Any]:
        """For each ranked row the bits that any of its pieces' values [pieces] has."""
        if self.pieces == len(self):
            return sets
        return np.bitwise_or.reduceat(sets.astype(np.int64), self._first_pieces)

    @cached_property
    def _first_pieces(self) -> Slots:
        return _shifted([s.piece_starts for s in self.selections], self._piece_starts)

    def hits(self, words: Sequence[str]) -> Hits:
        """In which pieces the words occur, in all entries together."""
        parts = [
            (part.segment.lexical, piece_of, start)
            for entry, selection, start in zip(
                self.entries, self.selections, self._piece_starts, strict=False
            )
            for part, piece_of in zip(entry.parts, selection.piece_of, strict=True)
        ]
        return lexical.find(words, parts, self.pieces)

    def cosines(self, vector: NDArray[np.float32]) -> Floats:
        """Cosine of each ranked row with the vector, both seen from the centre of their entry.

        In units of the fifth decimal, 0 where a row has no vector; the caller owns the array.
        """
        found = []
        for entry, selection in zip(self.entries, self.selections, strict=True):
            away = vector - selection.centre
            away *= np.float32(_COSINE_UNITS / (math.sqrt(away @ away) or 1.0))
            products = [part.segment.vectors @ away for part in entry.parts]
            product = products[0] if len(products) == 1 else np.concatenate(products)
            cosine = product if selection.in_place else product.take(selection.slots)
            cosine -= away @ selection.centre
            cosine *= selection.nearness
            # Matrix products differ in the last bits with the shape of the matrix.
            np.rint(cosine, out=cosine)
            found.append(cosine)
        return _joined(found, np.float32).astype(np.float64)

    def names(self) -> tuple[str, ...]:
        """The names of everybody who speaks in what is ranked."""
        return tuple({name for s in self.selections for name in s.speaker_names})

    def name_terms(self) -> frozenset[str]:
        """The index terms of those names."""
        return frozenset().union(*(s.name_terms for s in self.selections))

    def said_by(self, name: str) -> Mask:
        """Which ranked rows were said by the speaker of this casefolded name."""
        found = []
        for selection in self.selections:
            codes = [c for c, n in enumerate(selection.speaker_names) if n.casefold() == name]
            some = len(codes) == 1
            found.append(
                selection.speaker == codes[0] if some else np.isin(selection.speaker, codes)
            )
        return _joined(found, np.bool_)

    @property
    def unnamed(self) -> int:
        """How many of the ranked rows name no speaker."""
        return sum(s.unnamed for s in self.selections)

    def has_speaker(self) -> Mask:
        """Which ranked rows name their speaker."""
        return _joined([s.speaker >= 0 for s in self.selections], np.bool_)

    def slots(self, position: int) -> tuple[int, tuple[int, ...]]:
        """The entry of a position, its slot, and those of the other records of the message."""
        at = bisect_right(self.starts, position) - 1
        selection = self.selections[at]
        within = position - self.starts[at]
        slot = selection.slots.item(within)
        twins = selection.twins.get(within)
        return at, (slot, *twins) if twins else (slot,)

    def rows_of(self, positions: Sequence[int]) -> list[tuple[Row, ...]]:
        """`rows` of each of these positions."""
        if len(self.entries) != 1 or len(self.entries[0].parts) != 1:
            return [self.rows(position) for position in positions]
        # Nearly every reader: one entry that lies in one piece.
        held, selection = self.entries[0].parts[0].segment.rows, self.selections[0]
        slots = selection.slots.take(positions).tolist()
        if not selection.twins:
            return [(held[slot],) for slot in slots]
        return [
            (held[slot], *[held[twin] for twin in selection.twins.get(position, ())])
            for position, slot in zip(positions, slots, strict=True)
        ]

    def rows(self, position: int) -> tuple[Row, ...]:
        """The row at a position, and behind it the other records of the same message."""
        at, slots = self.slots(position)
        parts = self.entries[at].parts
        return tuple([row_at(parts, slot) for slot in slots])


def _joined(arrays: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)


def _shifted(
    arrays: Sequence[NDArray[Any]], starts: Sequence[int], dtype: Any = np.int32
) -> NDArray[Any]:
    if len(arrays) == 1:
        return arrays[0]
    return _joined([a + start for a, start in zip(arrays, starts, strict=False)], dtype)
