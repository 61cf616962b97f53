"""Bringing every vector to another model, while reading goes on.

One transaction takes the old vectors away, moves the content numbers and enqueues the work (see
`schema/functions/77_reembed.sql`). The work itself is embed jobs like any other: workers of the
new model take part, and what is broken off is taken up again by calling it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from afterturn.database import Database
from afterturn.embedding.checked import CheckedEmbedder
from afterturn.errors import MemoryUnavailable
from afterturn.pipeline.runner import Runner

_BEGIN = "select * from afterturn.begin_reembed($1, $2)"
# Published rows, and those of them that have a vector.
_PROGRESS = """
select count(*) as records, count(m.embedding) as embedded
from afterturn.memories m where not m.pending
"""
_OPEN = """
select j.id from afterturn.jobs j
where j.kind = 'embed' and j.finished_at is null order by j.id limit 100
"""
# The last reason of an embed job that has failed as often as it may.
_DEAD = """
select j.reason from afterturn.jobs j
where j.kind = 'embed' and j.outcome = 'dead' and j.id > $1 order by j.id desc limit 1
"""
_LAST_JOB = "select coalesce(max(j.id), 0) from afterturn.jobs j"
PROBE: Final = "afterturn"
_LOOK_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Reembedded:
    """What a re-embedding found and did."""

    model_id: str
    replaced: str | None
    """The model before; the same one when an earlier call had begun, `None` when there was none."""
    removed: int
    """Vectors of the model before that were taken away."""
    embedded: int
    """Records that have a vector of the new model now."""


async def reembed(
    database: Database,
    runner: Runner,
    embedder: CheckedEmbedder,
    on_progress: Callable[[int, int], None] = lambda _embedded, _records: None,
) -> Reembedded:
    """Make `embedder` the model of this database and wait until every record has its vector.

    `runner` must run embed jobs with this embedder. The embedder is tried once before anything is
    touched. Raises `MemoryUnavailable` when it fails, then or later (what was done stays done).
    """
    await asyncio.to_thread(embedder.embed, [PROBE])
    last_job = await database.value(_LAST_JOB)
    async with database.connection() as connection:
        # As long as it takes: it touches every record that has a vector.
        began = await connection.fetchrow(
            _BEGIN, embedder.model_id, embedder.dim, timeout=24 * 3600.0
        )
    assert began is not None  # noqa: S101 - the function returns one row
    work: asyncio.Task[str] | None = None
    try:
        while True:
            row = await database.row(_PROGRESS)
            on_progress(row["embedded"], row["records"])
            if row["embedded"] == row["records"]:
                return Reembedded(
                    model_id=embedder.model_id,
                    replaced=began["replaced"],
                    removed=began["removed"],
                    embedded=row["embedded"],
                )
            dead = await database.row_or_none(_DEAD, last_job)
            if dead is not None:
                raise MemoryUnavailable(
                    "Some records could not be embedded",
                    detail=f"{dead['reason']}; {row['records'] - row['embedded']} are left",
                    hint="Call `afterturn reembed` again: it goes on where it ended.",
                )
            if work is None or work.done():
                jobs = [job["id"] for job in await database.rows(_OPEN)]
                if not jobs:
                    await database.row(_BEGIN, embedder.model_id, embedder.dim)
                    continue
                work = asyncio.create_task(runner.run("embed", jobs))
            await asyncio.wait({work}, timeout=_LOOK_SECONDS)
            if work.done():
                work.result()
                # What is left may be a worker's, or waits before its next attempt.
                await asyncio.sleep(_PAUSE_SECONDS)
    finally:
        if work is not None and not work.done():
            work.cancel()
            await asyncio.wait({work})
