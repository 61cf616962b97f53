"""Plain reading: listings, the transcript, and the export of everything held under a scope."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from pydantic import Field

from afterturn.database import Connection, Database
from afterturn.errors import ErasePending
from afterturn.intake import Metadata, Time
from afterturn.model import Model
from afterturn.records import MemoryLayer, MemoryRecord, Source, checked_layers
from afterturn.scope import MemoryScope, checked_scope

_ERASING = "select afterturn.erasing(afterturn.covering($1))"
# At exactly one scope, in the order of record ids.
_LIST = """
select m.*, afterturn.record_sources(m.path, m.record_id, m.pending) as sources
from afterturn.memories m
where m.path = $1 and not m.pending and m.record_id > $2
    and ($3::text[] is null or m.layer = any($3))
order by m.record_id limit $4
"""
# Under a scope, except where an erase stands; pending rows are held, too.
_EXPORT_RECORDS = """
select m.*, afterturn.record_sources(m.path, m.record_id, m.pending) as sources
from afterturn.memories m
where m.path >= $1 and m.path < afterturn.under_end($1)
    and (m.path, m.record_id, m.pending) > ($2, $3, $4)
    and not exists (select from afterturn.erase_intents i
        where m.path >= i.path and m.path < afterturn.under_end(i.path))
order by m.path, m.record_id, m.pending limit $5
"""
_EXPORT_TURNS = """
select t.path, t.turn_id, t.session, t.query, t.answer, t.names, t.metadata, t.happened_at
from afterturn.turns t
where t.path >= $1 and t.path < afterturn.under_end($1) and (t.path, t.turn_id) > ($2, $3)
    and not exists (select from afterturn.erase_intents i
        where t.path >= i.path and t.path < afterturn.under_end(i.path))
order by t.path, t.turn_id limit $4
"""
# What keyed facts said before, or in other words: held, though no reader gets it.
_EXPORT_STATEMENTS = """
select f.*, (
    select min(l.said_at) from afterturn.fact_statements l
    where l.path = f.path and l.record_id = f.record_id and l.digest <> f.digest
        and (l.said_at, l.staged_at, l.turn_path, l.turn_id)
            > (f.said_at, f.staged_at, f.turn_path, f.turn_id)) as valid_to
from afterturn.fact_statements f
where f.path >= $1 and f.path < afterturn.under_end($1)
    and (f.path, f.record_id, f.turn_path, f.turn_id) > ($2, $3, $4, $5)
    and not exists (select from afterturn.memories m where m.path = f.path
        and m.record_id = f.record_id and not m.pending and m.text = f.text)
    and not exists (select from afterturn.erase_intents i
        where f.path >= i.path and f.path < afterturn.under_end(i.path))
order by f.path, f.record_id, f.turn_path, f.turn_id limit $6
"""
_TRANSCRIPT = """
select t.path, t.turn_id, t.session, t.query, t.answer, t.names, t.metadata, t.happened_at
from afterturn.turns t
where t.path = $1 and t.recorded_at is not null and ($2::text is null or t.session = $2)
order by t.happened_at desc, t.turn_id desc limit $3
"""
_PAGE = 500


class TranscriptTurn(Model):
    """One exchange as it was said."""

    turn_id: str
    scope_path: str
    session: str | None = None
    query: str | None = None
    answer: str | None = None
    names: tuple[str, str] | None = None
    metadata: Metadata = Field(default_factory=dict)
    happened_at: Time


class Reading:
    """Reads that need no ranking. Each refuses (`ErasePending`) while an erase stands."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(
        self,
        scope: MemoryScope,
        *,
        layers: Sequence[MemoryLayer] | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[MemoryRecord, ...]:
        """Published records at exactly this scope, by record id, after the one named `after`."""
        names = None if layers is None else [layer.value for layer in checked_layers(layers)]
        async with self._snapshot(scope) as conn:
            rows = await conn.fetch(_LIST, scope.stored_path, after or "", names, limit)
        return tuple(record_from(row) for row in rows)

    async def transcript(
        self, scope: MemoryScope, *, session: str | None = None, limit: int = 50
    ) -> tuple[TranscriptTurn, ...]:
        """The last `limit` recorded turns of exactly this scope, oldest first."""
        async with self._snapshot(scope) as conn:
            rows = await conn.fetch(_TRANSCRIPT, scope.stored_path, session, limit)
        return tuple(_turn_from(row) for row in reversed(rows))

    async def export(self, scope: MemoryScope) -> AsyncIterator[MemoryRecord | TranscriptTurn]:
        """Everything held under the scope, waiting rows included: turns first, then records.

        Last comes what keyed facts said before; its metadata has `superseded`, `valid_from` and
        `valid_to`.
        Streams in pages; a page is one snapshot. A scope below on which an erase stands is left
        out; when one covers the scope itself, `ErasePending` is raised.
        """
        turn_key = ("", "")
        while True:
            async with self._snapshot(scope) as conn:
                rows = await conn.fetch(_EXPORT_TURNS, scope.stored_path, *turn_key, _PAGE)
            for row in rows:
                yield _turn_from(row)
            if len(rows) < _PAGE:
                break
            turn_key = (rows[-1]["path"], rows[-1]["turn_id"])
        record_key: tuple[str, str, bool] = ("", "", False)
        while True:
            async with self._snapshot(scope) as conn:
                rows = await conn.fetch(_EXPORT_RECORDS, scope.stored_path, *record_key, _PAGE)
            for row in rows:
                yield record_from(row)
            if len(rows) < _PAGE:
                break
            last = rows[-1]
            record_key = (last["path"], last["record_id"], last["pending"])
        statement_key = ("", "", "", "")
        while True:
            async with self._snapshot(scope) as conn:
                rows = await conn.fetch(
                    _EXPORT_STATEMENTS, scope.stored_path, *statement_key, _PAGE
                )
            for row in rows:
                yield _statement_from(row)
            if len(rows) < _PAGE:
                break
            last = rows[-1]
            statement_key = (last["path"], last["record_id"], last["turn_path"], last["turn_id"])

    @asynccontextmanager
    async def _snapshot(self, scope: MemoryScope) -> AsyncIterator[Connection]:
        """One snapshot for the intents and the rows."""
        checked_scope(scope)
        async with (
            self._database.connection() as conn,
            conn.transaction(isolation="repeatable_read", readonly=True),
        ):
            if await conn.fetchval(_ERASING, scope.stored_path):
                raise ErasePending(
                    "An erase that covers this scope has not completed",
                    hint="Try again when it is done.",
                )
            yield conn


def record_from(row: asyncpg.Record) -> MemoryRecord:
    """A record from a row of `memories` with its `sources`; it was validated when it came in."""
    sources: list[Any] = row["sources"]
    return MemoryRecord.model_construct(
        record_id=row["record_id"],
        text=row["text"],
        scope_path=row["path"].removesuffix("/"),
        layer=MemoryLayer(row["layer"]),
        origin=row["origin"],
        metadata=row["metadata"],
        importance=row["importance"],
        occurred_at=row["occurred_at"],
        recorded_at=row["recorded_at"],
        sources=tuple(
            Source.model_construct(turn_id=turn_id, turn_path=path.removesuffix("/"))
            for turn_id, path in sources
        ),
    )


def _statement_from(row: asyncpg.Record) -> MemoryRecord:
    return MemoryRecord.model_construct(
        record_id=row["record_id"],
        text=row["text"],
        scope_path=row["path"].removesuffix("/"),
        layer=MemoryLayer(row["layer"]),
        origin=row["origin"],
        metadata={
            **row["metadata"],
            "superseded": row["superseded"],
            "valid_from": row["said_at"].isoformat(),
            # Unknown where an erase took what replaced it.
            "valid_to": row["valid_to"].isoformat() if row["valid_to"] else None,
        },
        importance=row["importance"],
        occurred_at=row["said_at"],
        recorded_at=row["recorded_at"],
        sources=(
            Source.model_construct(
                turn_id=row["turn_id"], turn_path=row["turn_path"].removesuffix("/")
            ),
        ),
    )


def _turn_from(row: asyncpg.Record) -> TranscriptTurn:
    return TranscriptTurn.model_construct(
        turn_id=row["turn_id"],
        scope_path=row["path"].removesuffix("/"),
        session=row["session"],
        query=row["query"],
        answer=row["answer"],
        names=tuple(row["names"]) if row["names"] else None,
        metadata=row["metadata"],
        happened_at=row["happened_at"],
    )
