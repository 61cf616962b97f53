"""What of a scope concerns one question, read in a stream: for scopes beyond the cache limit.

The scope is read twice in one snapshot, a chunk at a time. The first pass sums up the vectors to
their centre. The second keeps of each record what the ranking of this question can see: the
postings of the question's words, the numbers of the record, and its vector's two coordinates in
the plane of the question and the centre, in which all cosines are what they were. So the ranking
is that of the cached scope, by the same code, while texts, vectors and the index of other words
never lie in memory together: a record takes some 400 bytes instead of some 2,300.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from afterturn.database import Connection
from afterturn.retrieval import segments
from afterturn.retrieval.entries import Entry, Label
from afterturn.retrieval.rows import Row, row_of, vectors_of
from afterturn.retrieval.selection import CENTRE_DOUBT
from afterturn.retrieval.view import View

CHUNK_ROWS: Final = 2_000

# What is published at one path in some layers (null: all), in an order of its own.
_EMBEDDINGS = """
select m.embedding from afterturn.memories m
where m.path = $1 and not m.pending and ($2::text[] is null or m.layer = any($2))
"""
_ROWS = """
select m.path, m.record_id, m.session, m.layer, '' as origin, m.text,
    m.metadata::text as metadata, m.importance, m.occurred_at, m.recorded_at,
    case when $3 then m.embedding end as embedding
from afterturn.memories m
where m.path = $1 and not m.pending and ($2::text[] is null or m.layer = any($2))
"""


@dataclass(frozen=True, slots=True)
class Scan:
    """A view of the scope for one question, and the plane that its vectors lie in.

    `plane` float32 [dim, 2 at most]: a vector times it has the coordinates to compare.
    """

    view: View
    ids: tuple[tuple[str, ...], ...]
    """Per entry of the view the record ids by slot."""
    paths: tuple[str, ...]
    plane: NDArray[np.float32]

    def places(self, position: int) -> list[tuple[str, str]]:
        """(path, record id) at a position, and behind it of the other records of the message."""
        entry, slots = self.view.slots(position)
        return [(self.paths[entry], self.ids[entry][slot]) for slot in slots]


async def scan(
    connection: Connection,
    paths: Sequence[str],
    layers: frozenset[str] | None,
    words: frozenset[str],
    vector: NDArray[np.float32] | None,
) -> Scan:
    """Read these paths for a question of `words` and a vector (`None`: without vectors).

    The connection must be in a repeatable-read transaction.
    """
    wanted = None if layers is None else sorted(layers)
    dim = 0 if vector is None else len(vector)
    plane = np.zeros((dim, 0), dtype=np.float32)
    entries, ids = [], []
    for path in paths:
        # Each entry is seen from its own centre; coordinates are in one basis for all of them.
        centre = await _centre(connection, path, wanted, dim) if dim else None
        plane = _widened(plane, [vector, centre] if vector is not None else [])
    for path in paths:
        parts, names = [], []
        async for chunk in _chunks(connection, _ROWS, path, wanted, vector is not None):
            part, of_chunk = await asyncio.to_thread(_part, chunk, path, words, plane)
            parts.append(part)
            names += of_chunk
        entries.append(Entry(path, Label((), 0, 0), tuple(parts)))
        ids.append(tuple(names))
    view = await asyncio.to_thread(View, entries, layers)
    kept = [at for at, entry in enumerate(entries) if any(entry is e for e in view.entries)]
    return Scan(
        view,
        tuple(ids[at] for at in kept),
        tuple(paths[at] for at in kept),
        plane,
    )


def _part(
    records: Sequence[Any], path: str, words: frozenset[str], plane: NDArray[np.float32]
) -> tuple[segments.Part, list[str]]:
    rows: list[Row] = [row_of(record, path.removesuffix("/"), ()) for record in records]
    usable, has_vector = segments.usable(vectors_of(records, len(plane)))
    segment = segments.thin(rows, usable @ plane, has_vector, words)
    return segments.whole(segment), [row.record_id for row in rows]


async def _centre(
    connection: Connection, path: str, layers: list[str] | None, dim: int
) -> NDArray[np.float32]:
    total, count = np.zeros(dim), 0
    async for chunk in _chunks(connection, _EMBEDDINGS, path, layers):
        usable, has_vector = segments.usable(vectors_of(chunk, dim))
        total += usable.sum(axis=0, dtype=np.float64)
        count += int(has_vector.sum())
    return (total / (count + CENTRE_DOUBT)).astype(np.float32)


def _widened(
    plane: NDArray[np.float32], vectors: Sequence[NDArray[np.float32] | None]
) -> NDArray[np.float32]:
    """An orthonormal basis of what the plane spans and these vectors."""
    for vector in vectors:
        if vector is None:
            continue
        rest = vector - plane @ (plane.T @ vector)
        rest = rest - plane @ (plane.T @ rest)
        length = float(np.linalg.norm(rest))
        if length > 1e-6:
            plane = np.column_stack((plane, rest / length)).astype(np.float32)
    return plane


async def _chunks(connection: Connection, sql: str, *arguments: object) -> AsyncIterator[list[Any]]:
    cursor = await connection.cursor(sql, *arguments)
    while chunk := await cursor.fetch(CHUNK_ROWS):
        yield chunk
