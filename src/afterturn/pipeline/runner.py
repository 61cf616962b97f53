"""One process's work on the ledger: what a ring, a sweep or a waiting caller asks for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from afterturn.database import Database
from afterturn.embedding.checked import CheckedEmbedder
from afterturn.jobs.heartbeat import Heartbeat
from afterturn.jobs.ledger import ClaimedTurn, Ledger
from afterturn.jobs.names import Kind
from afterturn.jobs.rings import RingPublisher
from afterturn.jobs.tally import Tally
from afterturn.pipeline.applying import TurnApplier
from afterturn.pipeline.embedding import EmbedStep
from afterturn.pipeline.extracting import ExtractionStep
from afterturn.pipeline.lifecycle import LifecycleStep
from afterturn.pipeline.recording import Recorder
from afterturn.ports import EmbeddingProvider, MemoryExtractorPort
from afterturn.settings import Settings

_SWEEP = "select * from afterturn.sweep_rings($1, $2)"
_RELEASING = "select afterturn.sweep_releasing($1)"
_PRUNE = "select afterturn.prune_jobs($1, $2)"
_CLAIM_EMBEDDER = "select * from afterturn.claim_embedder($1, $2)"
_BLOCKER = """
select blocked_by, finished_at is not null as ended from afterturn.jobs where id = $1
"""
RINGS_PER_SWEEP: Final = 500
PRUNED_PER_SWEEP: Final = 1_000
EXTRACTED_AT_ONCE: Final = 16


class Runner:
    """Runs jobs by id. One a process; its methods may run side by side on one event loop."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        rings: RingPublisher,
        extractor: MemoryExtractorPort | None,
        embedder: EmbeddingProvider | None,
    ) -> None:
        self._database = database
        self._settings = settings
        self._rings = rings
        self._ledger = Ledger(database, settings)
        self._embedder = CheckedEmbedder(embedder) if embedder else None
        embed = embedder is not None
        applier = TurnApplier(self._ledger, rings, embed=embed)
        self._recorder = Recorder(applier)
        self._extraction = ExtractionStep(self._ledger, settings, applier, extractor)
        self._embedding = EmbedStep(database, self._ledger, self._embedder)
        self._lifecycle = LifecycleStep(
            database, self._ledger, settings, rings, self._recorder, embed=embed
        )
        self._embedder_accepted = embedder is None

    async def run(self, kind: Kind, ids: Sequence[int]) -> str:
        """Work on the named jobs (and, for turns, on others of the kind that wait).

        Ids that are unknown, ended or held elsewhere are passed over. Returns a short code, for
        example `recorded 3`. Raises `MemoryUnavailable` when the database is out of reach: the
        jobs stay in the ledger and the sweep rings them again.
        """
        tally = Tally()
        match kind:
            case "record" | "extract":
                await self._run_turns(kind, ids, tally)
            case "embed":
                await self._run_embeds(ids, tally)
            case "flush" | "forget" | "expire":
                for job_id in ids:
                    await self._run_lifecycle(job_id, tally)
        return str(tally)

    async def sweep(self) -> str:
        """Ring what is ready and not rung lately, wake what waited for an ended job, prune."""
        again = timedelta(seconds=max(10.0, 3 * self._settings.sweep_seconds))
        rows = await self._database.rows(_SWEEP, RINGS_PER_SWEEP, again)
        releasing = [row[0] for row in await self._database.rows(_RELEASING, RINGS_PER_SWEEP)]
        await self._database.value(
            _PRUNE, timedelta(seconds=self._settings.jobs_kept_seconds), PRUNED_PER_SWEEP
        )
        by_kind: dict[Kind, list[int]] = {}
        for row in rows:
            by_kind.setdefault(row["kind"], []).append(row["job_id"])
        for kind, ids in by_kind.items():
            self._rings.ring(kind, ids)
        for job_id in releasing:
            await self._wake_waiters(job_id)
        return f"rang {len(rows)}"

    async def run_head(self, job_id: int) -> None:
        """Run the job, or whatever stands before it in its lane, if nobody else is at it."""
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

    async def _run_turns(self, kind: Kind, ids: Sequence[int], tally: Tally) -> None:
        limit = (
            self._settings.batch_turns_max
            if kind == "record"
            else min(EXTRACTED_AT_ONCE, self._settings.batch_turns_max)
        )
        heartbeat = Heartbeat(self._ledger)
        async with heartbeat.beating():
            while True:
                turns = await self._ledger.claim_turns(kind, ids, limit=limit, fresh=True)
                await self._work_on(kind, turns, heartbeat, tally)
                if len(turns) < limit:
                    break
            # Tried before: one at a time, so that one which kills its process goes alone.
            for job_id in ids:
                retried = await self._ledger.claim_turns(kind, [job_id], limit=1, fresh=False)
                await self._work_on(kind, retried, heartbeat, tally)

    async def _work_on(
        self, kind: Kind, turns: Sequence[ClaimedTurn], heartbeat: Heartbeat, tally: Tally
    ) -> None:
        if not turns:
            return
        leases = [turn.lease for turn in turns]
        heartbeat.hold(leases)
        try:
            step = self._recorder.record if kind == "record" else self._extraction.extract
            await step(turns, tally)
        finally:
            heartbeat.drop(leases)

    async def _run_embeds(self, ids: Sequence[int], tally: Tally) -> None:
        while (job := await self._ledger.claim_embed(ids)) is not None:
            if not await self._accept_embedder():
                verdict = await self._ledger.fail_turn(job.lease, "embedder differs")
                tally.failed(verdict, "embedder differs")
                continue
            heartbeat = Heartbeat(self._ledger)
            async with heartbeat.beating():
                heartbeat.hold([job.lease])
                await self._embedding.embed(job, tally)

    async def _run_lifecycle(self, job_id: int, tally: Tally) -> None:
        verdict, job, successor = await self._ledger.claim_lifecycle(job_id)
        if job is None:
            if verdict == "requeued":
                tally.add("requeued")
                await self._wake_waiters(job_id)
                if successor is not None:
                    self._rings.ring("flush", [successor])
            return
        heartbeat = Heartbeat(self._ledger)
        async with heartbeat.beating():
            heartbeat.hold([job.lease])
            await self._lifecycle.run(job, tally)
        await self._wake_waiters(job_id)

    async def _wake_waiters(self, job_id: int) -> None:
        for kind, ids in (await self._ledger.unblock(job_id)).items():
            self._rings.ring(kind, ids)

    async def _accept_embedder(self) -> bool:
        """Whether the database's vectors are of this process's model; the first one decides."""
        if self._embedder_accepted or self._embedder is None:
            return True
        row = await self._database.row(_CLAIM_EMBEDDER, self._embedder.model_id, self._embedder.dim)
        self._embedder_accepted = (row["model"], row["dim"]) == (
            self._embedder.model_id,
            self._embedder.dim,
        )
        return self._embedder_accepted
