"""One process's work on the ledger: what a ring, a sweep or a waiting caller asks for."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final

from afterturn import metrics
from afterturn.database import Database
from afterturn.embedding.checked import CheckedEmbedder
from afterturn.errors import MemoryUnavailable
from afterturn.jobs.heartbeat import Heartbeat
from afterturn.jobs.ledger import Lease, Ledger
from afterturn.jobs.names import Kind
from afterturn.jobs.rings import RingPublisher
from afterturn.jobs.tally import Tally
from afterturn.logs import log_outcome
from afterturn.pipeline.applying import TurnApplier
from afterturn.pipeline.batches import RUN_SECONDS, TurnBatches, any_turns
from afterturn.pipeline.due import DueSchedules
from afterturn.pipeline.embedding import EmbedStep
from afterturn.pipeline.extracting import ExtractionStep
from afterturn.pipeline.lifecycle import LifecycleStep
from afterturn.pipeline.recording import Recorder
from afterturn.ports import EmbeddingProvider, MemoryExtractorPort
from afterturn.settings import Settings

_SWEEP = "select * from afterturn.sweep($1, $2)"
_BURY_LOST = "select * from afterturn.bury_lost($1::bigint[], $2)"
_FREE_LOST = "select afterturn.free_lost($1::bigint[], $2)"
_PRUNE = "select afterturn.prune_jobs($1, $2)"
_CLAIM_EMBEDDER = "select * from afterturn.claim_embedder($1, $2)"
_STANDING_EMBEDDER = "select * from afterturn.standing_embedder()"
_EMBED_WAITS = """
select exists (select from afterturn.jobs
    where id = any($1::bigint[]) and kind = 'embed' and finished_at is null
        and lease_token is null and ready_at <= afterturn.clock())
"""
_BLOCKER = """
select blocked_by, finished_at is not null as ended from afterturn.jobs where id = $1
"""
_ATTEMPTED: Final[tuple[Kind, ...]] = ("record", "extract", "embed")
_FREED: Final[tuple[Kind, ...]] = ("record", "extract")
RINGS_PER_SWEEP: Final = 500
PRUNED_AT_ONCE: Final = 1_000
PRUNE_EVERY_SECONDS: Final = 60.0
LIFECYCLE_AT_ONCE: Final = 3
EMBED_EVERY_SECONDS: Final = 1.0
EMBED_PATIENCE_SECONDS: Final = 2.0


class Runner:
    """Runs jobs by id. One a process; its methods may run side by side on one event loop.

    Once `stopping` says so no more is claimed, and what is cancelled is given back, its attempt
    not counted.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        rings: RingPublisher,
        extractor: MemoryExtractorPort | None,
        embedder: EmbeddingProvider | None,
        *,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._database = database
        self._settings = settings
        self._rings = rings
        self._ledger = Ledger(database, settings)
        self._embedder = CheckedEmbedder(embedder) if embedder else None
        embed = embedder is not None
        applier = TurnApplier(self._ledger, rings, embed=embed)
        self._recorder = Recorder(applier, extract_after_seconds=settings.extract_after_seconds)
        extraction = ExtractionStep(database, self._ledger, settings, applier, extractor)
        self._stopping = stopping
        self._recording = TurnBatches(
            self._ledger,
            "record",
            any_turns(self._ledger, "record", settings.batch_turns_max),
            self._recorder.record,
            at_once=1,
            stopping=stopping,
        )
        self._extracting = TurnBatches(
            self._ledger,
            "extract",
            extraction.claim,
            extraction.extract,
            at_once=extraction.at_once,
            stopping=stopping,
        )
        self._embedding = EmbedStep(database, self._ledger, self._embedder)
        self._lifecycle = LifecycleStep(
            database, self._ledger, settings, rings, self._recorder, embed=embed
        )
        self._due = DueSchedules(database, settings)
        self._schedules_looked_at = False
        self._prune_at = 0.0

    async def run(self, kind: Kind, ids: Sequence[int]) -> str:
        """Work on the named jobs (and, for turns, on others of the kind that wait).

        Ids that are unknown, ended or held elsewhere are passed over. Returns a short code, for
        example `recorded 3`. Raises `MemoryUnavailable` when the database is out of reach: the
        jobs stay in the ledger and the sweep rings them again.
        """
        tally = Tally()
        match kind:
            case "record":
                await self._recording.run(ids, tally)
            case "extract":
                await self._extract(ids, tally)
            case "embed":
                await self._run_embeds(ids, tally)
            case "flush" | "forget" | "expire":
                await self._run_side_by_side(ids, tally)
        return str(tally)

    async def sweep(self) -> str:
        """Ring what is ready and not rung lately, wake what waited, turn due schedules into jobs.

        One statement when there is nothing to do; now and then another one that prunes.
        """
        again = timedelta(seconds=max(10.0, 3 * self._settings.sweep_seconds))
        found = await self._database.rows(_SWEEP, RINGS_PER_SWEEP, again)
        by_kind: dict[Kind, list[int]] = {}
        for row in found:
            if row["job_id"] is None:
                self._schedules_looked_at = False
            elif row["ended"]:
                await self._wake_waiters(row["job_id"])
            else:
                by_kind.setdefault(row["kind"], []).append(row["job_id"])
        await self._look_after_lost(by_kind)
        for kind, ids in by_kind.items():
            if ids:
                self._rings.ring(kind, ids)
        rung = sum(map(len, by_kind.values()))
        if not self._schedules_looked_at:  # a process's first sweep does so in any case
            for kind, job_id in await self._due.enqueue():
                self._rings.ring(kind, [job_id])
                rung += 1
            self._schedules_looked_at = True
        await self._prune_now_and_then()
        return f"rang {rung}"

    async def _look_after_lost(self, by_kind: dict[Kind, list[int]]) -> None:
        """Of what a lost worker held: what has no attempt left is given up and rung no more, the
        rest of the turns waits from now on like any other."""
        ids = [each for kind in _ATTEMPTED for each in by_kind.get(kind, ())]
        if not ids:
            return
        for row in await self._database.rows(_BURY_LOST, ids, self._settings.max_attempts):
            by_kind[row["kind"]].remove(row["job_id"])
            metrics.JOBS.labels(row["kind"], "dead").inc()
            log_outcome(row["kind"], "dead", [row["job_id"]], reason="worker lost")
        for kind in _FREED:
            if waiting := by_kind.get(kind):
                freed = await self._database.value(_FREE_LOST, waiting, self._settings.max_attempts)
                metrics.TAKEOVERS.labels(kind).inc(freed)

    async def _prune_now_and_then(self) -> None:
        if time.monotonic() < self._prune_at:
            return
        kept = timedelta(seconds=self._settings.jobs_kept_seconds)
        pruned = await self._database.value(_PRUNE, kept, PRUNED_AT_ONCE)
        await self._due.prune(PRUNED_AT_ONCE)
        if pruned < PRUNED_AT_ONCE:
            self._prune_at = time.monotonic() + PRUNE_EVERY_SECONDS

    async def run_head(self, job_id: int) -> None:
        """Run the job, or whatever stands before it in its lane, if nobody else is at it."""
        if await self._run_lifecycle(job_id, Tally()):
            return
        head = job_id
        while True:
            row = await self._database.row_or_none(_BLOCKER, head)
            if row is None:
                return
            if row["ended"]:
                await self._wake_waiters(head)
                return
            if row["blocked_by"] is None:
                break
            head = row["blocked_by"]
        await self._run_lifecycle(head, Tally())

    async def _extract(self, ids: Sequence[int], tally: Tally) -> None:
        """Vectors do not wait behind the models that others wait for: they are made beside."""
        done = asyncio.Event()
        beside = asyncio.create_task(self._embed_until(done, tally))
        try:
            await self._extracting.run(ids, tally)
        except BaseException:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
            raise
        done.set()
        await beside

    async def _embed_until(self, done: asyncio.Event, tally: Tally) -> None:
        while not done.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), EMBED_EVERY_SECONDS)
                return
            with suppress(MemoryUnavailable):  # whoever extracts says so
                await self._run_embeds((), tally)

    async def _run_embeds(self, ids: Sequence[int], tally: Tally) -> None:
        began = time.monotonic()
        while not self._stopping() and time.monotonic() < began + RUN_SECONDS:
            job = await self._ledger.claim_embed(ids)
            if job is None:
                # Who adds to a waiting job holds its row for a moment, and does not ring again.
                is_early = time.monotonic() < began + EMBED_PATIENCE_SECONDS
                if ids and is_early and await self._database.value(_EMBED_WAITS, list(ids)):
                    await asyncio.sleep(random.uniform(0.01, 0.05))
                    continue
                return
            if not await self._accept_embedder():
                with tally.timed("embed"):
                    verdict = await self._ledger.fail_turn(job.lease, "embedder differs")
                    tally.failed("embed", verdict, "embedder differs", job.lease.job_id)
                continue
            with tally.timed("embed"):
                async with self._held(job.lease):
                    await self._embedding.embed(job, tally)

    async def _run_side_by_side(self, ids: Sequence[int], tally: Tally) -> None:
        """A large erase holds up none of another scope that was rung with it."""
        gate = asyncio.Semaphore(LIFECYCLE_AT_ONCE)

        async def run(job_id: int) -> None:
            async with gate:
                if not self._stopping():
                    await self._run_lifecycle(job_id, tally)

        ended = await asyncio.gather(*map(run, ids), return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error

    async def _run_lifecycle(self, job_id: int, tally: Tally) -> bool:
        """Whether the job could be taken now."""
        verdict, job = await self._ledger.claim_lifecycle(job_id)
        if job is None:
            if verdict in ("requeued", "superseded"):  # behind an erase, whose end rings for it
                tally.add(verdict)
                await self._wake_waiters(job_id)
            return False
        with tally.timed(job.kind):
            async with self._held(job.lease):
                await self._lifecycle.run(job, tally)
        await self._wake_waiters(job_id)
        return True

    @asynccontextmanager
    async def _held(self, lease: Lease) -> AsyncIterator[None]:
        """Keeps the lease meanwhile; a worker that stops gives it back."""
        heartbeat = Heartbeat(self._ledger)
        async with heartbeat.beating():
            heartbeat.hold([lease])
            try:
                yield
            except asyncio.CancelledError:
                if self._stopping():
                    await self._ledger.release([lease])
                raise

    async def _wake_waiters(self, job_id: int) -> None:
        for kind, ids in (await self._ledger.unblock(job_id)).items():
            self._rings.ring(kind, ids)

    async def _accept_embedder(self) -> bool:
        """Whether the database's vectors are of this process's model; the first one decides.

        Asked anew for every job once it is claimed: a `reembed` may have come between.
        """
        if self._embedder is None:
            return True
        row = await self._database.row(_STANDING_EMBEDDER)
        if row["model"] is None:
            row = await self._database.row(
                _CLAIM_EMBEDDER, self._embedder.model_id, self._embedder.dim
            )
        return (row["model"], row["dim"]) == (self._embedder.model_id, self._embedder.dim)
