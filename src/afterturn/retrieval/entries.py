"""What a process holds of one path: its segments, labelled with the numbers they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from afterturn.retrieval import segments
from afterturn.retrieval.rows import Row
from afterturn.retrieval.segments import Part
from afterturn.retrieval.selection import Selection, select

Layers: TypeAlias = frozenset[str]


@dataclass(frozen=True, slots=True)
class Label:
    """The numbers of one path in the snapshot that an entry was read in.

    `erase` holds the erase numbers of every path that covers this one, root first: an entry
    survives no erase above it, whatever the erase found to delete here.
    """

    erase: tuple[int, ...]
    content: int
    removed: int

    def extends(self, older: Label) -> bool:
        """Whether rows that changed after `older` are all that separates the two.

        Numbers only grow, so a smaller content number is another history: a restored backup or
        a failover that lost its tail.
        """
        return (
            self.erase == older.erase
            and self.content >= older.content
            and self.removed <= older.content
        )


@dataclass(frozen=True)
class Entry:
    """The published rows of one path. Immutable: an update makes another entry."""

    path: str
    label: Label
    parts: tuple[Part, ...] = ()
    _selections: dict[Layers | None, Selection] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def count(self) -> int:
        """How many records are alive."""
        return sum(part.alive_count for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Estimated bytes held, with room for the arrays that ranking derives."""
        return 1_024 + sum(part.segment.nbytes + 180 * len(part.segment) for part in self.parts)

    def updated(self, label: Label, rows: Sequence[Row], vectors: NDArray[np.float32]) -> Entry:
        """The entry with these rows new or replaced; vectors float32 [rows, dim]."""
        if not rows:
            return Entry(self.path, label, self.parts, self._selections)
        ids = [row.record_id for row in rows]
        older = [segments.without(part, ids) for part in self.parts]
        newest = segments.whole(segments.build(rows, vectors))
        return Entry(self.path, label, segments.settle([*older, newest]))

    def holds(self, record_id: str) -> bool:
        """Whether a record of this id is alive here."""
        return any(
            (at := part.segment.slots.get(record_id)) is not None and bool(part.alive[at])
            for part in self.parts
        )

    def rows(self) -> Iterable[Row]:
        """The live rows, in no particular order."""
        for part in self.parts:
            for row, alive in zip(part.segment.rows, part.alive.tolist(), strict=True):
                if alive:
                    yield row

    def is_arranged(self, layers: Layers | None) -> bool:
        """Whether `selection` of these layers has nothing to compute."""
        return layers in self._selections

    def selection(self, layers: Layers | None) -> Selection:
        """What of this entry is ranked when these layers are asked for; computed once."""
        known = self._selections.get(layers)
        if known is None:
            known = self._selections[layers] = select(self.parts, layers)
        return known
