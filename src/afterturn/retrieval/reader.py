"""Brings a reader's entries up to the database, in one snapshot.

Reading is two steps:

1. one statement gives whether an erase stands over the scope and the numbers (erase, content,
   removed) of every covering path. Where all of them equal the labels of the entries held, each
   compared by itself, the entries are the published records and nothing more is read;
2. otherwise one read-only REPEATABLE READ transaction looks at intents and numbers again and
   reads what changed, in that snapshot; its numbers become the labels.

So an entry's text is never older than its label says, and nothing is served under an erase that
was requested before the look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

from afterturn import metrics
from afterturn.database import Connection, Database
from afterturn.errors import ErasePending, ScopeViolation
from afterturn.retrieval.cache import Owner, RetrievalCache
from afterturn.retrieval.entries import Entry, Label
from afterturn.retrieval.rows import Row, row_of, vectors_of

INLINE_ROWS_MAX: Final = 200
"""More changed rows than this are indexed in a thread; it takes some 30 µs a row."""
REFUSED_MAX: Final = 1_000
"""Scopes known to be larger than the cache; another one is measured again."""

_HITS: Final = metrics.CACHE_READS.labels("hit")
_MISSES: Final = metrics.CACHE_READS.labels("miss")

_log: Final = logging.getLogger(__name__)

# Measured on messages of 20 words: what an entry holds per record and per byte of text.
_RECORD_BYTES: Final = 800
_TEXT_FACTOR: Final = 4

# Intents and numbers of everything that covers a path, root first, in one snapshot.
_STATE = "select erasing, erase, content, removed from afterturn.read_state($1)"
# Which embedder made the vectors.
_MODEL = "select embedder_model from afterturn.installation"
# What was published or changed at one path after a content number.
_ROWS = """
select m.path, m.record_id, m.session, m.layer, m.origin, m.text, m.metadata::text as metadata,
    m.importance, m.occurred_at, m.recorded_at, m.embedding
from afterturn.memories m
where m.path = $1 and not m.pending and m.content > $2
"""
# The same without vectors, for a reader that has no embedder.
_ROWS_WITHOUT_VECTORS = """
select m.path, m.record_id, m.session, m.layer, m.origin, m.text, m.metadata::text as metadata,
    m.importance, m.occurred_at, m.recorded_at, null::bytea as embedding
from afterturn.memories m
where m.path = $1 and not m.pending and m.content > $2
"""
# The turns that those records were learned from; of erased ones only links are kept, which no
# path is.
_SOURCES = """
select s.record_id, s.turn_id, s.turn_path
from afterturn.memories m
join afterturn.memory_sources s
    on s.path = m.path and s.record_id = m.record_id and not s.pending and s.turn_path >= 'v'
where m.path = $1 and not m.pending and m.content > $2
order by s.record_id, s.turn_path, s.turn_id
"""
# How much there is to hold of a path: records, and bytes of what is text in them.
_SIZE = """
select count(*) as records,
    coalesce(sum(octet_length(m.text) + pg_column_size(m.metadata)), 0)::bigint as bytes
from afterturn.memories m where m.path = $1 and not m.pending
"""
# Some records by name, and their sources.
_NAMED = """
select m.path, m.record_id, m.session, m.layer, m.origin, m.text, m.metadata::text as metadata,
    m.importance, m.occurred_at, m.recorded_at
from afterturn.memories m
where m.path = $1 and not m.pending and m.record_id = any($2::text[])
"""
_NAMED_SOURCES = """
select s.record_id, s.turn_id, s.turn_path from afterturn.memory_sources s
where s.path = $1 and not s.pending and s.record_id = any($2::text[]) and s.turn_path >= 'v'
order by s.record_id, s.turn_path, s.turn_id
"""
# How many records the path must have now.
_COUNT = "select count(*) from afterturn.memories m where m.path = $1 and not m.pending"


@dataclass(frozen=True, slots=True)
class Change:
    """What one path needs: rows on top of `base`, an empty entry when it is read anew."""

    base: Entry
    label: Label
    records: Sequence[Any]
    sources: Sequence[Any]


class BeyondCache(Exception):
    """A scope is larger than the cache: it can only be read in a `snapshot`."""


class Reader:
    """Entries of covering paths, from the cache where they are exact, else from the database.

    `dim` and `model_id` are those of the embedder whose vectors are wanted, 0 and empty for none.
    Vectors of another model are not read: their records count as having none.
    """

    def __init__(
        self, database: Database, cache: RetrievalCache, *, model_id: str, dim: int
    ) -> None:
        self._database = database
        self._cache = cache
        self._model_id = model_id
        self._dim = dim
        self._owner: Owner = (database, model_id, dim)
        self._refused: dict[str, Label] = {}
        self._loading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def held(self, paths: Sequence[str]) -> list[Entry] | None:
        """The entries of these paths as they were last read, if all of them are held.

        They are a guess: only `entries` tells whether they may be served.
        """
        return self._cache.peek(self._owner, paths)

    async def entries(self, paths: Sequence[str]) -> list[Entry]:
        """The published rows of these covering paths (with trailing slash), root first.

        Raises `BeyondCache` when they are more than the cache may hold, `ErasePending` under a
        standing erase and `MemoryUnavailable` without a database.
        """
        async with self._database.connection() as connection:
            labels = await self._labels(connection, paths)
        held = self._held(paths, labels)
        is_hit = None not in held
        (_HITS if is_hit else _MISSES).inc()
        if is_hit:
            return [entry for entry in held if entry is not None]
        return await self._load(paths, stale=[p for p, e in zip(paths, held, strict=True) if not e])

    @asynccontextmanager
    async def snapshot(self, paths: Sequence[str]) -> AsyncIterator[tuple[Connection, bool]]:
        """A read-only snapshot under no erase of these paths, and whether its vectors are ours.

        Raises as `entries` does.
        """
        async with (
            self._database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await self._labels(connection, paths)
            yield connection, await self._vectors_usable(connection)

    async def _load(self, paths: Sequence[str], stale: Sequence[str]) -> list[Entry]:
        """Read what changed; a path is read by one task at a time, root first."""
        async with AsyncExitStack() as stack:
            for path in stale:
                await stack.enter_async_context(self._loading.setdefault(path, asyncio.Lock()))
            async with (
                self._database.connection() as connection,
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                labels = await self._labels(connection, paths)
                found: list[Entry | Change] = []
                usable = await self._vectors_usable(connection)
                for path, label, held in zip(
                    paths, labels, self._cache.get(self._owner, paths), strict=True
                ):
                    if held is not None and held.label == label:
                        found.append(held)
                    elif held is None and await self._is_too_large(connection, path, label):
                        raise BeyondCache
                    else:
                        found.append(await self._change(connection, path, label, held, usable))
            return [e if isinstance(e, Entry) else await self._apply(e) for e in found]

    async def _labels(self, connection: Connection, paths: Sequence[str]) -> list[Label]:
        state = await connection.fetchrow(_STATE, paths[-1])
        assert state is not None  # noqa: S101 - the function returns one row
        if state["erasing"]:
            # It will not be served again; text under an erase need not wait for its eviction.
            self._cache.discard(self._owner, paths[-1])
            self._refused.pop(paths[-1], None)
            raise ErasePending(
                "An erase of this scope was requested and has not completed",
                hint="Try again when it is done; `afterturn jobs` shows it.",
            )
        return [
            Label(tuple(state["erase"][: at + 1]), state["content"][at], state["removed"][at])
            for at in range(len(paths))
        ]

    def _held(self, paths: Sequence[str], labels: Sequence[Label]) -> list[Entry | None]:
        held = self._cache.get(self._owner, paths)
        return [
            e if e is not None and e.label == label else None
            for e, label in zip(held, labels, strict=True)
        ]

    async def _vectors_usable(self, connection: Connection) -> bool:
        if not self._dim:
            return False
        return bool(await connection.fetchval(_MODEL) == self._model_id)

    async def _change(
        self, connection: Connection, path: str, label: Label, held: Entry | None, vectors: bool
    ) -> Change:
        base = held if held is not None and label.extends(held.label) else Entry(path, _NOTHING)
        change = await self._read(connection, base, label, vectors)
        if base.parts and await connection.fetchval(_COUNT, path) != _count_after(change):
            # Rows came or went without a number: a restored backup, or a hand in the tables.
            change = await self._read(connection, Entry(path, _NOTHING), label, vectors)
        return change

    async def _read(
        self, connection: Connection, base: Entry, label: Label, vectors: bool
    ) -> Change:
        since = base.label.content
        if not label.content:
            return Change(base, label, (), ())  # nothing was ever published here
        records = await connection.fetch(
            _ROWS if vectors else _ROWS_WITHOUT_VECTORS, base.path, since
        )
        sources = await connection.fetch(_SOURCES, base.path, since) if records else ()
        return Change(base, label, records, sources)

    async def _is_too_large(self, connection: Connection, path: str, label: Label) -> bool:
        if not label.content:
            return False
        if path in self._refused:
            if label.extends(self._refused[path]):
                return True
            del self._refused[path]
        size = await connection.fetchrow(_SIZE, path)
        assert size is not None  # noqa: S101 - an aggregate returns one row
        needed = size["records"] * (_RECORD_BYTES + 4 * self._dim) + _TEXT_FACTOR * size["bytes"]
        if needed <= self._cache.bytes_max:
            return False
        _log.warning(
            "A scope of %d records needs some %d bytes of retrieval cache, the limit is %d: it is "
            "read in a stream for every question; raise AFTERTURN_CACHE_BYTES",
            size["records"],
            needed,
            self._cache.bytes_max,
        )
        return True

    async def _apply(self, change: Change) -> Entry:
        if len(change.records) > INLINE_ROWS_MAX:
            entry = await asyncio.to_thread(_applied, change, self._dim)
        else:
            entry = _applied(change, self._dim)
        if not self._cache.put(self._owner, entry):
            self._refuse(entry)
        return entry

    def _refuse(self, entry: Entry) -> None:
        """Know that a scope is larger than the cache, as long as nothing is removed from it."""
        self._refused.pop(entry.path, None)
        self._refused[entry.path] = entry.label
        if len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]


_NOTHING: Final = Label((), -1, -1)


async def named_rows(connection: Connection, places: Sequence[tuple[str, str]]) -> list[Row]:
    """The rows of (path, record id) pairs in their order, as the connection's snapshot has them."""
    found: dict[tuple[str, str], Row] = {}
    for path in dict.fromkeys(path for path, _ in places):
        ids = [record_id for of, record_id in places if of == path]
        records = await connection.fetch(_NAMED, path, ids)
        sources = _by_record(await connection.fetch(_NAMED_SOURCES, path, ids))
        for record in records:
            of_record = tuple(sources.get(record["record_id"], ()))
            row = row_of(record, record["path"].removesuffix("/"), of_record)
            found[path, row.record_id] = row
    return [found[place] for place in places]


def _by_record(sources: Sequence[Any]) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for source in sources:
        of_record = found.setdefault(source["record_id"], [])
        of_record.append((source["turn_id"], source["turn_path"].removesuffix("/")))
    return found


def _count_after(change: Change) -> int:
    new = sum(not change.base.holds(record["record_id"]) for record in change.records)
    return change.base.count + new


def _applied(change: Change, dim: int) -> Entry:
    sources = _by_record(change.sources)
    if any(record["path"] != change.base.path for record in change.records):
        raise ScopeViolation("The database returned rows of another scope than it was asked for")
    path = change.base.path.removesuffix("/")
    rows = [
        row_of(record, path, tuple(sources.get(record["record_id"], ())))
        for record in change.records
    ]
    return change.base.updated(change.label, rows, vectors_of(change.records, dim))
