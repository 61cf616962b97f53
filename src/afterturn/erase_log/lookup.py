"""When, by whom and what was erased of a scope that one knows."""

from __future__ import annotations

from typing import Any

import asyncpg

from afterturn.database import Database
from afterturn.intake import Time
from afterturn.model import Model
from afterturn.scope import MemoryScope

# Of a scope above only erases of all of it say something about this one.
_ERASED = """
select c.path, l.* from unnest(afterturn.covering($1)) c(path)
join afterturn.erase_log l on l.scope_key = afterturn.scope_key(c.path)
where c.path = $1 or l.what = 'scope'
order by l.completed_at, l.id
"""


class ErasedEntry(Model):
    """One erase of a scope or of one above it; `what` as in the log, `hash` its entry there.

    `replays` is the hash of the entry that an erase in a restored database repeated.
    """

    scope_path: str
    what: str
    derived: str
    generation: int
    requested_by: str
    reason: str
    requested_at: Time
    completed_at: Time
    counts: dict[str, int]
    hash: str
    replays: str | None


async def erased(database: Database, scope: MemoryScope) -> tuple[ErasedEntry, ...]:
    """What the log says about a scope, oldest first: its own entries, and erases above it."""
    rows = await database.rows(_ERASED, scope.stored_path)
    return tuple(_entry(row) for row in rows)


def _entry(row: asyncpg.Record) -> ErasedEntry:
    detail: dict[str, Any] = row["detail"]
    return ErasedEntry(
        scope_path=row["path"].removesuffix("/"),
        what=row["what"],
        derived=detail.get("derived", ""),
        generation=row["generation"],
        requested_by=row["requested_by"],
        reason=row["reason"],
        requested_at=row["requested_at"],
        completed_at=row["completed_at"],
        counts=row["counts"],
        hash=row["hash"].hex(),
        replays=detail.get("replays"),
    )
