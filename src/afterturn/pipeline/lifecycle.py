"""Lifecycle jobs run here: flush, forget, expire, in any process that holds their lease."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import timedelta
from typing import Final, assert_never

from afterturn import metrics
from afterturn.database import Database, error_code
from afterturn.errors import AfterturnError, MemoryUnavailable
from afterturn.jobs.ledger import ClaimedJob, Ledger
from afterturn.jobs.rings import RingPublisher
from afterturn.jobs.tally import Tally
from afterturn.pipeline.expiring import ExpireStep
from afterturn.pipeline.recording import Recorder
from afterturn.settings import Settings

_HORIZON = """
select coalesce(max(id), 0) from afterturn.jobs
where finished_at is null and kind = 'record' and path >= $1 and path < afterturn.under_end($1)
"""
# Turns acknowledged before and still not recorded, but for those that an erase holds back.
_UNRECORDED = """
select count(*) from afterturn.jobs
where finished_at is null and kind = 'record' and id <= $2 and attempts < $3
    and path >= $1 and path < afterturn.under_end($1)
    and not afterturn.erasing(afterturn.covering(path))
"""
_FLUSH_CHUNK = "select * from afterturn.flush_chunk($1, $2, $3, $4, $5, $6)"
_NEEDS_CHUNKS = "select afterturn.needs_chunks($1, $2)"
_FORGET_FLUSHES = "select afterturn.forget_flushes($1, $2, $3, $4, $5)"
_FORGET_TURNS = "select * from afterturn.forget_turns($1, $2, $3, $4, $5, $6, $7)"
_FORGET_MEMORIES = "select * from afterturn.forget_memories($1, $2, $3, $4, $5, $6, $7)"
_FORGET_SOURCES = "select * from afterturn.forget_sources($1, $2, $3, $4, $5, $6, $7)"
_FORGET_SAID = "select * from afterturn.forget_said($1, $2, $3, $4, $5, $6, $7)"
_FORGET_JOBS = "select afterturn.forget_turn_jobs($1, $2, $3, $4, $5)"
_OTHERS_WORKED = "select afterturn.others_worked($1)"
_FORGET_FINAL = "select verdict from afterturn.forget_final($1, $2, $3, $4)"
_FORGET_INSIST = "select afterturn.forget_insist($1, $2, $3, $4)"

RECORD_PASSES_MAX: Final = 10
"""How often a flush looks for turns to record, before it fails and is tried again later."""

POLITE_PART: Final = 16
"""Beside others an erase deletes this part of `chunk_rows` at a time, since they wait for each."""

POLITE_PAUSE: Final = 8.0
"""And pauses after it, by the time that it took."""

POLITE_PAUSE_SECONDS_MAX: Final = 1.0

BUSY_BEFORE_INSISTING: Final = 20
"""Failed tries at the exclusive lock before scopes outside the erased one are marked, too."""


class LifecycleStep:
    """Runs claimed lifecycle jobs to their end; each chunk is one transaction under the lease."""

    def __init__(
        self,
        database: Database,
        ledger: Ledger,
        settings: Settings,
        rings: RingPublisher,
        recorder: Recorder,
        *,
        embed: bool,
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._settings = settings
        self._rings = rings
        self._recorder = recorder
        self._embed = embed
        self._expiry = ExpireStep(database, ledger, settings)

    async def run(self, job: ClaimedJob, tally: Tally) -> None:
        """Run one job to its end. A failure puts it back with a backoff."""
        try:
            match job.kind:
                case "flush":
                    await self._flush(job, tally)
                case "forget":
                    await self._forget(job, tally)
                case "expire":
                    await self._expiry.expire(job, tally)
                case "record" | "extract" | "embed":
                    raise AfterturnError("Not a lifecycle job of this release", detail=job.kind)
                case _:
                    assert_never(job.kind)
        except AfterturnError as error:
            verdict, _ = await self._ledger.fail_lifecycle(job.lease, error_code(error))
            tally.failed(job.kind, verdict, error_code(error), job.lease.job_id)

    async def _flush(self, job: ClaimedJob, tally: Tally) -> None:
        await self._record_first(job, tally)
        while True:
            row = await self._database.row(
                _FLUSH_CHUNK,
                job.lease.job_id,
                job.lease.token,
                job.stored_path,
                self._settings.chunk_rows,
                self._embed,
                self._ledger.lease_time,
            )
            if row["embed_jobs"]:
                self._rings.ring("embed", row["embed_jobs"])
            if row["verdict"] != "more":
                _ended(job, row["verdict"], tally)
                return

    async def _record_first(self, job: ClaimedJob, tally: Tally) -> None:
        """Record what was acknowledged before, so that finish, flush, retrieve sees the turn."""
        until = int(await self._database.value(_HORIZON, job.stored_path))
        for _ in range(RECORD_PASSES_MAX):
            await self._record_pass(job, until, tally)
            # An erase elsewhere may have taken a lease meanwhile, and given the turn new numbers.
            left = await self._database.value(
                _UNRECORDED, job.stored_path, until, self._settings.max_attempts
            )
            if not left:
                return
            await asyncio.sleep(random.uniform(0.01, 0.05))
        raise MemoryUnavailable("Turns acknowledged before the flush are not recorded yet")

    async def _record_pass(self, job: ClaimedJob, until: int, tally: Tally) -> None:
        after = 0
        while after < until:
            turns = await self._ledger.claim_unrecorded(
                job.stored_path, after, until, self._settings.batch_turns_max
            )
            if not turns:
                break
            after = turns[-1].lease.job_id
            await self._recorder.record(turns, tally)
            await self._ledger.renew([job.lease])

    async def _forget(self, job: ClaimedJob, tally: Tally) -> None:
        if "named" not in job.request and await self._database.value(
            _NEEDS_CHUNKS, job.stored_path, self._settings.chunk_rows
        ):
            await self._forget_in_chunks(job)
        tries = 0
        while True:
            verdict = await self._database.value(
                _FORGET_FINAL,
                job.lease.job_id,
                job.lease.token,
                job.stored_path,
                self._ledger.lease_time,
            )
            if verdict not in ("busy", "reembedding"):
                _ended(job, verdict, tally)
                return
            tries += verdict == "busy"
            if tries == BUSY_BEFORE_INSISTING:
                await self._insist(job)
            await self._ledger.renew([job.lease])
            # Nobody queues for the exclusive lock; writers that hold it shared end soon.
            await asyncio.sleep(random.uniform(0.01, 0.05))

    async def _forget_in_chunks(self, job: ClaimedJob) -> None:
        """Commit the bulk of the deletes beforehand, in the direction in which text moves."""
        fence = (job.lease.job_id, job.lease.token, job.stored_path)
        lease, rows_max = self._ledger.lease_time, self._settings.chunk_rows
        for sql in (_FORGET_FLUSHES, _FORGET_JOBS):
            while True:
                ended = await self._database.value(sql, *fence, rows_max, lease)
                if ended is None or ended < rows_max:
                    break
        others = True  # until it is known
        for sql in (_FORGET_TURNS, _FORGET_MEMORIES, _FORGET_SOURCES, _FORGET_SAID):
            after = ("", "")
            while True:
                limit = max(1, rows_max // POLITE_PART) if others else rows_max
                started = time.monotonic()
                row = await self._database.row(sql, *fence, limit, lease, *after)
                if row["rows"] is None or row["rows"] < limit:
                    break
                after = (row["last_path"], row["last_id"])
                took = time.monotonic() - started
                others = await self._database.value(_OTHERS_WORKED, timedelta(seconds=took))
                if others:
                    await asyncio.sleep(min(took * POLITE_PAUSE, POLITE_PAUSE_SECONDS_MAX))

    async def _insist(self, job: ClaimedJob) -> None:
        await self._database.value(
            _FORGET_INSIST,
            job.lease.job_id,
            job.lease.token,
            job.stored_path,
            self._ledger.lease_time,
        )


def _ended(job: ClaimedJob, verdict: str, tally: Tally) -> None:
    """Note a job's end, and how long it took from its request on, whoever waited for it."""
    tally.applied(job.kind, verdict, job.lease.job_id)
    if verdict == "done":
        metrics.LIFECYCLE_SECONDS.labels(job.kind).observe(job.age_seconds)
