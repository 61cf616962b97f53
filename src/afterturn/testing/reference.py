"""`Memory` without servers: a fake for unit tests that obeys the same contracts."""

from __future__ import annotations

from typing import Final

from afterturn.errors import MemoryContractError
from afterturn.extraction.run import run_extraction
from afterturn.memory import Memory
from afterturn.parts import Parts
from afterturn.pipeline.staging import StagedTurn, Verdict
from afterturn.ports import CandidateScan, MemoryExtractorPort, MemoryRetrievalPort
from afterturn.retrieval.gated import GatedSource
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from afterturn.status import KindStatus, MemoryStatus
from afterturn.testing.clock import SettableClock
from afterturn.testing.ports import (
    ReferenceLifecycle,
    ReferenceReading,
    ReferenceRetrieval,
    ReferenceSchedules,
    ReferenceWriting,
)
from afterturn.testing.store import HeldTurn, ReferenceStore, covers
from afterturn.turns import ExtractionRequest, FinishedTurn, TurnOutcome
from afterturn.writes import Token

_ATTEMPTS_MAX: Final = 5


class ReferenceMemory(Memory):
    """An in-memory `Memory` for unit tests: no servers, no workers, nothing in the background.

    Work waits until somebody asks for it: `drain` and a turn ticket's `wait` record and extract
    (with `extractor`, none by default), `flush` and `forget` run at once. `clock` says what time it
    is. `reachable = False` is an outage. What is held outlives `close`, so a test can look at it
    from a second block. It ranks by shared words, and knows neither vectors, nor retention, nor
    keys and history of facts. Not for production: it is slow, and it forgets with the process.
    """

    def __init__(
        self,
        *,
        source: MemoryRetrievalPort | None = None,
        extractor: MemoryExtractorPort | None = None,
        clock: SettableClock | None = None,
    ) -> None:
        # Not from the environment: a unit test must not depend on what is set there.
        settings = Settings.model_construct(embedder="none", extractor="none")
        super().__init__(settings, source=source, extractor=extractor)
        self.clock = clock or SettableClock()
        self._store = ReferenceStore(
            clock=self.clock,
            not_covered=(type(source).__name__,) if source is not None else (),
        )

    @property
    def reachable(self) -> bool:
        """Whether the store answers; set it to False to see what an outage does."""
        return self._store.reachable

    @reachable.setter
    def reachable(self, reachable: bool) -> None:
        self._store.reachable = reachable

    async def _put_together(self) -> Parts:
        return ReferenceParts(
            self._store, self.settings, source=self._source, extractor=self._extractor
        )


class ReferenceParts:
    """`afterturn.parts.Parts` in memory."""

    def __init__(
        self,
        store: ReferenceStore,
        settings: Settings,
        *,
        source: MemoryRetrievalPort | None = None,
        extractor: MemoryExtractorPort | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._extractor = extractor
        self.source: MemoryRetrievalPort = (
            GatedSource(source, self.capture)
            if isinstance(source, CandidateScan)
            else ReferenceRetrieval(store)
        )
        self.reading = ReferenceReading(store)
        self.writing = ReferenceWriting(store, text_bytes_max=settings.text_bytes_max)
        self.lifecycle = ReferenceLifecycle(store)
        self.schedules = ReferenceSchedules(store)

    async def capture(self, scope: MemoryScope) -> Token:
        """The token of a turn that begins now."""
        return self._store.token(scope.path)

    async def stage(self, turn: StagedTurn) -> Verdict:
        """Take a finished turn."""
        return self._store.stage(turn)

    async def outcome(self, scope: MemoryScope, turn_id: str) -> TurnOutcome:
        """What has become of a turn, after working on it: nobody else would."""
        await self.work(scope)
        turn = self._store.turns.get((scope.path, turn_id))
        if turn is None:
            return TurnOutcome(status="refused", reason="stale turn")
        return TurnOutcome(
            status=turn.outcome,
            recorded=turn.recorded or 0,
            extracted=turn.extracted or 0,
            reason=turn.reason,
        )

    async def status(self) -> MemoryStatus:
        """What waits."""
        self._store.require_reachable()
        waiting = {
            "record": sum(t.recorded is None for t in self._store.turns.values()),
            "extract": sum(
                t.is_open and t.recorded is not None for t in self._store.turns.values()
            ),
            "flush": self._waiting_jobs("flush"),
            "forget": self._waiting_jobs("forget"),
        }
        return MemoryStatus(
            jobs={kind: KindStatus(waiting=count) for kind, count in waiting.items() if count},
            standing_intents=waiting["forget"],
            scheduled=sum(s.shown.state == "waiting" for s in self._store.schedules.values()),
            pending=len(self._store.pending),
        )

    async def outstanding(self, scope: MemoryScope) -> int:
        """Open turns under the scope, and waiting jobs that overlap it."""
        self._store.require_reachable()
        self._store.enqueue_due()
        jobs = sum(
            job.receipt is None
            and (covers(scope.path, job.scope.path) or covers(job.scope.path, scope.path))
            for job in self._store.jobs.values()
        )
        return jobs + len(self._open_turns(scope))

    async def work(self, scope: MemoryScope) -> None:
        """Run every waiting job, then record and extract what is open under the scope."""
        self._store.enqueue_due()
        self._store.run_jobs()
        for turn in self._open_turns(scope):
            if turn.recorded is None:
                self._store.record(turn)
            await self._extract(turn)

    async def close(self) -> None:
        """Nothing to let go of."""

    def _waiting_jobs(self, kind: str) -> int:
        return sum(job.kind == kind and job.receipt is None for job in self._store.jobs.values())

    def _open_turns(self, scope: MemoryScope) -> list[HeldTurn]:
        turns = self._store.turns.values()
        return [turn for turn in turns if turn.is_open and covers(scope.path, turn.key[0])]

    async def _extract(self, turn: HeldTurn) -> None:
        token = list(turn.token)
        turn.attempts += 1
        try:
            learned = None if self._extractor is None else await run_extraction(
                self._extractor,
                _request(turn),
                timeout_seconds=self._settings.model_timeout_seconds,
            )  # fmt: skip
        except MemoryContractError as error:
            turn.outcome, turn.reason = "degraded", f"contract: {type(error).__name__}"
            return
        # While the extractor thought, an erase may have taken the turn or given it new numbers.
        if self._store.turns.get(turn.key) is not turn or turn.token != token:
            return
        if learned is not None and learned.degraded:
            turn.reason = learned.reason
            if turn.attempts >= _ATTEMPTS_MAX:
                turn.outcome, turn.extracted = "degraded", 0
            return
        for record in learned.records if learned else ():
            self._store.learn(record)
        turn.extracted = len(learned.records) if learned else 0
        turn.outcome = "done"


def _request(turn: HeldTurn) -> ExtractionRequest:
    said = turn.said
    metadata = dict(said.metadata)
    if said.session:
        metadata["session"] = said.session
    if said.names:
        metadata["names"] = list(said.names)
    finished = FinishedTurn(
        turn_id=said.turn_id,
        scope=said.scope,
        query=said.query,
        answer=said.answer,
        occurred_at=said.occurred_at or turn.staged_at,
        metadata=metadata,
    )
    return ExtractionRequest(scope=said.scope, turns=(finished,))
