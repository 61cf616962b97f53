"""What an open memory works with: the ports, and where turns are handed over.

`Parts` is all that the facade knows; `PostgresParts` puts them together on the servers, and
`afterturn.testing` has them in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, Protocol, Self, cast

from afterturn.database import Database
from afterturn.embedding.stored import EmbedderIdentity, require_same, stored_embedder
from afterturn.errors import ConfigurationError
from afterturn.extraction.compose import compose_extractor
from afterturn.extraction.service import MemoryExtractionService
from afterturn.generations import capture
from afterturn.jobs.rings import RingPublisher
from afterturn.lifecycle import PostgresLifecycle
from afterturn.migrations import migrate, require_current
from afterturn.pipeline.runner import Runner
from afterturn.pipeline.staging import StagedTurn, Verdict, stage
from afterturn.ports import (
    CandidateScan,
    EmbeddingProvider,
    MemoryExtractorPort,
    MemoryRetrievalPort,
    MemoryWritePort,
)
from afterturn.reading import Reading, TranscriptTurn
from afterturn.receipts import LifecycleReceipt
from afterturn.records import MemoryLayer, MemoryRecord
from afterturn.retrieval.gated import GatedSource
from afterturn.retrieval.service import PostgresRetrieval
from afterturn.schedules import Schedule, Schedules
from afterturn.scope import MemoryScope
from afterturn.servers import Servers, find_servers, leave_servers, revive_servers
from afterturn.settings import Settings
from afterturn.status import MemoryStatus, open_jobs, outstanding, read_status
from afterturn.tickets import read_outcome
from afterturn.turns import TurnOutcome
from afterturn.writes import Token
from afterturn.writing import PostgresWriting


class ReadingPart(Protocol):
    """Reads that need no ranking; see `Memory` for what they return."""

    async def list(
        self,
        scope: MemoryScope,
        *,
        layers: Sequence[MemoryLayer] | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[MemoryRecord, ...]:
        """Published records at exactly this scope."""

    async def transcript(
        self, scope: MemoryScope, *, session: str | None = None, limit: int = 50
    ) -> tuple[TranscriptTurn, ...]:
        """The last turns of exactly this scope."""

    def export(self, scope: MemoryScope) -> AsyncIterator[MemoryRecord | TranscriptTurn]:
        """Everything held under the scope."""


class LifecyclePart(Protocol):
    """`MemoryLifecyclePort`, and the jobs it is made of."""

    async def flush(self, scope: MemoryScope) -> LifecycleReceipt:
        """Publish everything that waits in the subtree."""

    async def forget(self, scope: MemoryScope) -> LifecycleReceipt:
        """Erase the whole subtree, and nothing beyond it."""

    async def enqueue(
        self, kind: Literal["flush", "forget"], scope: MemoryScope, request: Mapping[str, Any]
    ) -> int:
        """Add the job; its id."""

    async def wait(
        self, job_id: int, scope: MemoryScope | None = None, *, timeout: float | None = None
    ) -> LifecycleReceipt:
        """The job's receipt, once it has ended."""

    async def receipt(self, job_id: int) -> LifecycleReceipt | None:
        """The receipt of a job that has ended, else None."""

    async def progress(self, job_id: int) -> dict[str, int]:
        """Rows per table so far."""


class SchedulesPart(Protocol):
    """Erases to come."""

    async def add_forget(
        self, scope: MemoryScope, at: datetime, request: Mapping[str, Any]
    ) -> Schedule:
        """Erase the scope at a moment."""

    async def cancel(self, schedule_id: int) -> Schedule:
        """Cancel it."""


class Parts(Protocol):
    """What the facade calls."""

    @property
    def source(self) -> MemoryRetrievalPort:
        """Retrieval."""

    @property
    def reading(self) -> ReadingPart:
        """Listings, transcript, export."""

    @property
    def writing(self) -> MemoryWritePort:
        """Direct writes."""

    @property
    def lifecycle(self) -> LifecyclePart:
        """Flush and forget."""

    @property
    def schedules(self) -> SchedulesPart:
        """Erases to come."""

    async def capture(self, scope: MemoryScope) -> Token:
        """The token of a turn that begins now; `ErasePending` while an erase stands."""

    async def stage(self, turn: StagedTurn) -> Verdict:
        """Keep a finished turn for good and see to it that somebody works on it."""

    async def outcome(self, scope: MemoryScope, turn_id: str) -> TurnOutcome:
        """What has become of a turn so far."""

    async def status(self) -> MemoryStatus:
        """What waits, runs, is stuck or dead."""

    async def outstanding(self, scope: MemoryScope) -> int:
        """How many jobs stand between the scope and being drained."""

    async def work(self, scope: MemoryScope) -> None:
        """Run the jobs under a scope that may run now, in this process."""

    async def close(self) -> None:
        """Let go of everything."""


class PostgresParts:
    """`Parts` on PostgreSQL, with rings to the workers."""

    def __init__(
        self,
        settings: Settings,
        servers: Servers,
        database: Database,
        rings: RingPublisher,
        source: MemoryRetrievalPort | None,
        extractor: MemoryExtractorPort | None,
        embedder: EmbeddingProvider | None,
    ) -> None:
        self.database = database
        self._servers = servers
        self._rings = rings
        self._ring_after = timedelta(seconds=2 * settings.sweep_seconds)
        self._settings = settings
        self._extractor = extractor
        self._embedder = embedder
        self._composed: MemoryExtractorPort | None = None
        self._runner: Runner | None = None
        self.source: MemoryRetrievalPort = (
            PostgresRetrieval(database, settings, embedder)
            if source is None
            else GatedSource(cast(CandidateScan, source), self.capture)
        )
        self.reading = Reading(database)
        self.writing = PostgresWriting(database, settings)
        self.schedules = Schedules(database)
        self.lifecycle = PostgresLifecycle(
            database,
            settings,
            rings,
            # A waiting caller runs lifecycle jobs alone, and these need no extractor.
            Runner(database, settings, rings, None, embedder),
            not_covered=(type(source).__name__,) if source is not None else (),
        )

    @classmethod
    async def open(
        cls,
        settings: Settings,
        *,
        source: MemoryRetrievalPort | None = None,
        extractor: MemoryExtractorPort | None = None,
        embedder: EmbeddingProvider | None = None,
    ) -> Self:
        """Find the servers and connect; what was opened before a failure is closed again."""
        async with AsyncExitStack() as undo:
            servers = await asyncio.to_thread(find_servers, settings)
            undo.callback(leave_servers, servers)
            if servers.database_is_embedded:
                await migrate(servers.database_url, settings)
            database = Database(
                servers.database_url,
                settings,
                pool_size=settings.pool_size,
                revive=partial(revive_servers, servers, settings),
            )
            undo.push_async_callback(database.close)
            await database.open()
            ours = None if embedder is None else EmbedderIdentity.of(embedder)
            async with database.connection() as conn:
                await require_current(conn)
                require_same(ours, await stored_embedder(conn))
            rings = RingPublisher(servers.broker_url, settings)
            parts = cls(settings, servers, database, rings, source, extractor, embedder)
            undo.pop_all()
            return parts

    async def capture(self, scope: MemoryScope) -> Token:
        """The token of a turn that begins now."""
        async with self.database.connection() as conn:
            return await capture(conn, scope.path)

    async def stage(self, turn: StagedTurn) -> Verdict:
        """Stage in one transaction, then ring."""
        staged = await stage(self.database, turn, ring_after=self._ring_after)
        if staged.record_job is not None:
            self._rings.ring("record", [staged.record_job])
        return staged.verdict

    async def outcome(self, scope: MemoryScope, turn_id: str) -> TurnOutcome:
        """What has become of a turn so far."""
        return await read_outcome(self.database, scope, turn_id)

    async def status(self) -> MemoryStatus:
        """What the ledger holds."""
        return await read_status(self.database)

    async def outstanding(self, scope: MemoryScope) -> int:
        """Unfinished jobs under the scope, and lifecycle jobs above it."""
        return await outstanding(self.database, scope)

    async def work(self, scope: MemoryScope) -> None:
        """Run open jobs with the extractor given, else with that of the settings."""
        if self._runner is None:
            # Composed only here: a process that merely hands turns over needs no extractor.
            if self._extractor is None:
                self._composed = compose_extractor(self._settings)
            extractor = self._extractor or self._composed
            self._runner = Runner(
                self.database, self._settings, self._rings, extractor, self._embedder
            )
        for kind, ids in (await open_jobs(self.database, scope)).items():
            await self._runner.run(kind, ids)

    async def close(self) -> None:
        """Let go of connections, rings and embedded servers."""
        if isinstance(self._composed, MemoryExtractionService):
            await self._composed.aclose()
        await asyncio.to_thread(self._rings.close)
        await self.database.close()
        await asyncio.to_thread(leave_servers, self._servers)


def check_source(source: object) -> None:
    """Refuse a source that cannot be scanned, with a `ConfigurationError`; `None` passes."""
    if source is None:
        return
    if not isinstance(source, MemoryRetrievalPort):
        raise ConfigurationError(
            "A source needs `retrieve`",
            detail=f"{type(source).__name__} has none",
            hint="Implement MemoryRetrievalPort and CandidateScan.",
        )
    if not isinstance(source, CandidateScan):
        raise ConfigurationError(
            "A source needs `scan_candidates`",
            detail=f"{type(source).__name__} has none",
            hint="A widened `retrieve` is no scan: a rejected candidate would cost a place.",
        )
