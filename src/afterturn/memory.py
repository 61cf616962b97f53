"""The facade: one object per process, opened once, used from every coroutine of its loop."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Self

from afterturn.database import Database
from afterturn.embedding.compose import compose_embedder
from afterturn.errors import ConfigurationError, MemoryContractError, MemoryUnavailable
from afterturn.extraction.compose import compose_extractor
from afterturn.extraction.validation import validate_extractor
from afterturn.generations import capture
from afterturn.intake import (
    RECORD_ID_CHARACTERS_MAX,
    SESSION_CHARACTERS_MAX,
    TURN_ID_CHARACTERS_MAX,
    checked_id,
)
from afterturn.jobs.rings import RingPublisher
from afterturn.lifecycle import Derived, PostgresLifecycle, forget_request
from afterturn.migrations import migrate, require_current
from afterturn.model import refusing
from afterturn.pipeline.runner import Runner
from afterturn.ports import (
    CandidateScan,
    EmbeddingProvider,
    MemoryExtractorPort,
    MemoryLifecyclePort,
    MemoryRetrievalPort,
    MemoryWritePort,
)
from afterturn.queries import MemoryQuery, RetrievalResult
from afterturn.reading import Reading, TranscriptTurn
from afterturn.receipts import LifecycleReceipt
from afterturn.records import MemoryLayer, MemoryRecord, checked_layer
from afterturn.retrieval.service import PostgresRetrieval
from afterturn.scope import MemoryScope, checked_scope
from afterturn.servers import Servers, find_servers, leave_servers
from afterturn.settings import Settings
from afterturn.status import MemoryStatus, open_jobs, outstanding, read_status
from afterturn.tickets import JobTicket
from afterturn.turn import OnUnavailable, Turn, why
from afterturn.writes import Token, WriteReceipt, WriteRequest
from afterturn.writing import PostgresWriting

REMEMBERED_ORIGIN = "remembered"
_EMBEDDER = "select embedder_model, embedder_dim from afterturn.installation"


class Memory:
    """Long-term memory for agents. Use it as `async with Memory() as memory:`.

    `settings` default to the environment (`AFTERTURN_*`); where a server URL is missing, an
    embedded server is started and shared with this user's other processes. `source` replaces the
    PostgreSQL retrieval: any object with `retrieve` and `scan_candidates`. `extractor` serves
    in-process draining only (workers compose theirs from `AFTERTURN_EXTRACTOR`); `embedder`
    replaces the one of `AFTERTURN_EMBEDDER`.

    Opening raises `ConfigurationError` for parts that do not fit, `NotMigrated` for a database
    given by URL that lacks this release's tables, `MemoryUnavailable` when it does not answer.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        source: MemoryRetrievalPort | None = None,
        extractor: MemoryExtractorPort | None = None,
        embedder: EmbeddingProvider | None = None,
    ) -> None:
        self.settings = settings or Settings.load()
        _check_source(source)
        validate_extractor(extractor)
        self._source = source
        self._extractor = extractor
        self._embedder = embedder or compose_embedder(self.settings)
        self._parts: _Parts | None = None

    async def open(self) -> Self:
        """Find the servers and connect; opening an open memory is legal."""
        if self._parts is None:
            self._parts = await _Parts.open(
                self.settings, self._source, self._extractor, self._embedder
            )
        return self

    async def close(self) -> None:
        """Let go of connections, rings and embedded servers. What was finished is safe."""
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # -- turns

    @asynccontextmanager
    async def turn(
        self,
        scope: MemoryScope,
        *,
        session: str | None = None,
        turn_id: str | None = None,
        on_unavailable: OnUnavailable = "raise",
    ) -> AsyncIterator[Turn]:
        """A turn for the length of a block; never finished in it, it is abandoned."""
        turn = await self.begin_turn(
            scope, session=session, turn_id=turn_id, on_unavailable=on_unavailable
        )
        try:
            yield turn
        finally:
            turn.leave()

    async def begin_turn(
        self,
        scope: MemoryScope,
        *,
        session: str | None = None,
        turn_id: str | None = None,
        on_unavailable: OnUnavailable = "raise",
    ) -> Turn:
        """Begin a turn: capture the erase numbers that cover its scope, before anything is read.

        Raises `ErasePending` while an erase of the scope stands and `MemoryUnavailable` when the
        database is out of reach, unless `on_unavailable="degrade"`.
        """
        parts = self._opened
        checked_scope(scope)
        if turn_id is not None:
            checked_id(turn_id, what="turn_id", characters_max=TURN_ID_CHARACTERS_MAX)
        if session is not None:
            checked_id(session, what="session", characters_max=SESSION_CHARACTERS_MAX)
        if on_unavailable not in ("raise", "degrade"):
            raise MemoryContractError(
                "on_unavailable must be 'raise' or 'degrade'",
                detail=f"got {ascii(on_unavailable)[:40]}",
            )
        token: Token = ()
        degraded = ""
        try:
            async with parts.database.connection() as conn:
                token = await capture(conn, scope.path)
        except MemoryUnavailable as error:
            if on_unavailable == "raise":
                raise
            # The empty token vouches for scopes that were never erased, and for no others.
            degraded = why(error)
        return Turn(
            scope=scope,
            turn_id=turn_id or uuid.uuid4().hex,
            session=session,
            token=token,
            degraded=degraded,
            on_unavailable=on_unavailable,
            database=parts.database,
            settings=self.settings,
            rings=parts.rings,
            source=parts.source,
        )

    # -- reading

    async def retrieve(self, query: MemoryQuery) -> RetrievalResult:
        """What is remembered about the query, ranked in this process. See `MemoryQuery`."""
        if not isinstance(query, MemoryQuery):
            raise MemoryContractError(
                "A query must be a MemoryQuery",
                detail=f"got {type(query).__name__}",
                hint="Ask MemoryQuery(scope=scope, text=...), or a turn: turn.retrieve(text).",
            )
        return await self._opened.source.retrieve(query)

    async def list(
        self,
        scope: MemoryScope,
        layers: Sequence[MemoryLayer] | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[MemoryRecord, ...]:
        """Published records at exactly this scope by record id, after the id `after`."""
        return await self._opened.reading.list(scope, layers=layers, after=after, limit=limit)

    async def transcript(
        self, scope: MemoryScope, session: str | None = None, limit: int = 50
    ) -> tuple[TranscriptTurn, ...]:
        """The last `limit` recorded turns of exactly this scope, oldest first."""
        return await self._opened.reading.transcript(scope, session=session, limit=limit)

    async def export(self, scope: MemoryScope) -> AsyncIterator[MemoryRecord | TranscriptTurn]:
        """Everything held under the scope, in a stream: turns as said, then records."""
        async for item in self._opened.reading.export(scope):
            yield item

    # -- writing

    async def write(self, request: WriteRequest) -> WriteReceipt:
        """Keep records as pending until a flush; one bad record is an outcome, not an error."""
        return await self._opened.writing.write(request)

    async def remember(
        self,
        scope: MemoryScope,
        text: str,
        *,
        layer: MemoryLayer | str = MemoryLayer.SEMANTIC,
        importance: float = 0.5,
        record_id: str | None = None,
    ) -> WriteReceipt:
        """Write one fact and flush the scope; it is retrievable when this returns."""
        parts = self._opened
        checked_scope(scope)
        with refusing("fact"):
            record = MemoryRecord(
                record_id=uuid.uuid4().hex if record_id is None else record_id,
                text=text,
                scope_path=scope.path,
                layer=checked_layer(layer),
                origin=REMEMBERED_ORIGIN,
                importance=importance,
            )
        async with parts.database.connection() as conn:
            token = await capture(conn, scope.path)
        receipt = await parts.writing.write(
            WriteRequest(scope=scope, records=(record,), token=token)
        )
        if receipt.outcomes[0].status == "refused":
            raise MemoryContractError("The fact cannot be kept", detail=receipt.outcomes[0].reason)
        await parts.lifecycle.flush(scope)
        return receipt

    # -- lifecycle

    async def flush(self, scope: MemoryScope) -> LifecycleReceipt:
        """Publish everything that waits under the scope; waits for the receipt."""
        return await self._opened.lifecycle.flush(checked_scope(scope))

    async def forget(
        self,
        scope: MemoryScope,
        *,
        derived: Derived = "erase",
        requested_by: str = "",
        reason: str = "",
    ) -> LifecycleReceipt:
        """Erase the scope and all below it for good; waits for the receipt.

        From the request on nothing under the scope is read, begun, staged or written; afterwards
        the scope can be used again at once, and turns that had begun before are refused.
        `derived="erase"` also takes what was learned from it elsewhere, unless it rests on other
        turns, too. `requested_by` and `reason` go into the erase log.
        """
        ticket = await self.enqueue_forget(
            scope, derived=derived, requested_by=requested_by, reason=reason
        )
        return await ticket.wait()

    async def forget_records(
        self,
        scope: MemoryScope,
        *,
        record_ids: Sequence[str] = (),
        turn_ids: Sequence[str] = (),
        session: str | None = None,
        derived: Derived = "erase",
        requested_by: str = "",
        reason: str = "",
    ) -> LifecycleReceipt:
        """Erase what is named at exactly this scope: records, turns, a session.

        A record that is one side of a turn stands for the message: its other layer and that side
        of the transcript go with it. Turns begun in the scope and not yet finished become stale;
        those acknowledged before and not named are kept.
        """
        checked_scope(scope)
        named = _selection(record_ids, turn_ids, session)
        request = forget_request(
            derived=derived, requested_by=requested_by, reason=reason, named=named
        )
        lifecycle = self._opened.lifecycle
        return await lifecycle.wait(await lifecycle.enqueue("forget", scope, request), scope)

    async def enqueue_flush(self, scope: MemoryScope) -> JobTicket:
        """`flush`, without waiting."""
        checked_scope(scope)
        return self._ticket(await self._opened.lifecycle.enqueue("flush", scope, {}), scope)

    async def enqueue_forget(
        self,
        scope: MemoryScope,
        *,
        derived: Derived = "erase",
        requested_by: str = "",
        reason: str = "",
    ) -> JobTicket:
        """`forget`, without waiting: the scope is out of use when this returns."""
        checked_scope(scope)
        request = forget_request(derived=derived, requested_by=requested_by, reason=reason)
        return self._ticket(await self._opened.lifecycle.enqueue("forget", scope, request), scope)

    async def job(self, job_id: int) -> LifecycleReceipt | None:
        """The receipt of a lifecycle job, None while it has not ended."""
        return await self._opened.lifecycle.receipt(job_id)

    # -- watching

    async def status(self) -> MemoryStatus:
        """What waits, runs, is stuck or dead."""
        return await read_status(self._opened.database)

    async def drain(
        self, scope: MemoryScope, timeout: float | None = None, *, in_process: bool = False
    ) -> None:
        """Wait until nothing is outstanding under the scope: recorded, extracted, embedded.

        With `in_process=True` the caller runs the outstanding jobs itself, with this memory's
        extractor or that of `AFTERTURN_EXTRACTOR`. Raises `MemoryUnavailable` at the timeout.
        """
        parts = self._opened
        checked_scope(scope)
        runner = parts.draining() if in_process else None
        seconds = self.settings.wait_timeout_seconds if timeout is None else timeout
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        pause = 0.005
        while left := await outstanding(parts.database, scope):
            if loop.time() >= deadline:
                raise MemoryUnavailable(
                    "The scope has not drained in time",
                    detail=f"{left} jobs outstanding after {seconds:g} s",
                    hint="The work goes on; is a worker running? See `afterturn status`.",
                )
            if runner is not None:
                for kind, ids in (await open_jobs(parts.database, scope)).items():
                    await runner.run(kind, ids)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.25)

    # -- narrow ports

    @property
    def retrieval(self) -> MemoryRetrievalPort:
        """Reading alone."""
        return self._opened.source

    @property
    def writing(self) -> MemoryWritePort:
        """Writing alone."""
        return self._opened.writing

    @property
    def lifecycle(self) -> MemoryLifecyclePort:
        """Flush and a forget that stays strictly inside its scope."""
        return self._opened.lifecycle

    @property
    def _opened(self) -> _Parts:
        if self._parts is None:
            raise ConfigurationError(
                "The memory is not open", hint="Use `async with Memory() as memory:`."
            )
        return self._parts

    def _ticket(self, job_id: int, scope: MemoryScope) -> JobTicket:
        lifecycle = self._opened.lifecycle
        return JobTicket(job_id, lambda timeout: lifecycle.wait(job_id, scope, timeout=timeout))


class _Parts:
    """What an open memory holds."""

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
        self.servers = servers
        self.database = database
        self.rings = rings
        self._settings = settings
        self._extractor = extractor
        self._embedder = embedder
        self._draining: Runner | None = None
        self.source: MemoryRetrievalPort = source or PostgresRetrieval(database, settings, embedder)
        self.reading = Reading(database)
        self.writing = PostgresWriting(database, settings)
        self.lifecycle = PostgresLifecycle(
            database,
            settings,
            rings,
            # A waiting caller runs lifecycle jobs alone, and these need no extractor.
            Runner(database, settings, rings, None, embedder),
            not_covered=(type(source).__name__,) if source else (),
        )

    @classmethod
    async def open(
        cls,
        settings: Settings,
        source: MemoryRetrievalPort | None,
        extractor: MemoryExtractorPort | None,
        embedder: EmbeddingProvider | None,
    ) -> _Parts:
        async with AsyncExitStack() as undo:
            servers = await asyncio.to_thread(find_servers, settings)
            undo.callback(leave_servers, servers)
            if servers.database_is_embedded:
                await migrate(servers.database_url, settings)
            database = Database(servers.database_url, settings, pool_size=settings.pool_size)
            undo.push_async_callback(database.close)
            await database.open()
            async with database.connection() as conn:
                await require_current(conn)
            stored = await database.row(_EMBEDDER)
            if embedder is not None and stored["embedder_model"] is not None:
                _check_embedder(embedder, stored["embedder_model"], stored["embedder_dim"])
            rings = RingPublisher(servers.broker_url, settings)
            parts = cls(settings, servers, database, rings, source, extractor, embedder)
            undo.pop_all()
            return parts

    def draining(self) -> Runner:
        """What in-process draining works with; only here is an extractor needed and composed."""
        if self._draining is None:
            extractor = self._extractor or compose_extractor(self._settings)
            self._draining = Runner(
                self.database, self._settings, self.rings, extractor, self._embedder
            )
        return self._draining

    async def close(self) -> None:
        await asyncio.to_thread(self.rings.close)
        await self.database.close()
        await asyncio.to_thread(leave_servers, self.servers)


def _check_source(source: Any) -> None:
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


def _check_embedder(embedder: EmbeddingProvider, model: str, dim: int) -> None:
    if (embedder.model_id, embedder.dim) != (model, dim):
        raise ConfigurationError(
            "The stored vectors are of another embedder",
            detail=f"stored {model} with {dim} dimensions, "
            f"configured {embedder.model_id} with {embedder.dim}",
            hint="Set AFTERTURN_EMBEDDER back, or run `afterturn reembed`.",
        )


def _selection(
    record_ids: Sequence[str], turn_ids: Sequence[str], session: str | None
) -> dict[str, Any]:
    if not record_ids and not turn_ids and session is None:
        raise MemoryContractError(
            "Nothing was named to forget",
            hint="Name record_ids, turn_ids or a session; `forget` erases the whole scope.",
        )
    named: dict[str, Any] = {
        "record_ids": [
            checked_id(each, what="record_id", characters_max=RECORD_ID_CHARACTERS_MAX)
            for each in record_ids
        ],
        "turn_ids": [
            checked_id(each, what="turn_id", characters_max=TURN_ID_CHARACTERS_MAX)
            for each in turn_ids
        ],
    }
    if session is not None:
        named["session"] = checked_id(
            session, what="session", characters_max=SESSION_CHARACTERS_MAX
        )
    return named
