"""The facade: one object per process, opened once, used from every coroutine of its loop."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from afterturn.embedding.checked import CheckedEmbedder
from afterturn.embedding.compose import compose_embedder
from afterturn.errors import ConfigurationError, MemoryContractError, MemoryUnavailable
from afterturn.extraction.facts import fact_id
from afterturn.extraction.validation import validate_extractor
from afterturn.intake import (
    RECORD_ID_CHARACTERS_MAX,
    SESSION_CHARACTERS_MAX,
    TURN_ID_CHARACTERS_MAX,
    checked_id,
    checked_ids,
    checked_number,
    checked_seconds,
)
from afterturn.lifecycle import Derived, forget_request
from afterturn.model import refusing
from afterturn.parts import Parts, PostgresParts, check_source
from afterturn.ports import (
    EmbeddingProvider,
    MemoryExtractorPort,
    MemoryLifecyclePort,
    MemoryRetrievalPort,
    MemoryWritePort,
)
from afterturn.queries import MemoryQuery, RetrievalResult, checked_query
from afterturn.reading import TranscriptTurn
from afterturn.receipts import LifecycleReceipt
from afterturn.records import MemoryLayer, MemoryRecord, checked_layer
from afterturn.schedules import Schedule
from afterturn.scope import MemoryScope, checked_scope
from afterturn.settings import Settings
from afterturn.status import MemoryStatus
from afterturn.tickets import JobTicket
from afterturn.turn import OnUnavailable, Turn, why
from afterturn.waiting import wait_until
from afterturn.writes import Token, WriteReceipt, WriteRequest

REMEMBERED_ORIGIN = "remembered"


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
        if not isinstance(settings, Settings | None):
            raise ConfigurationError(
                "The settings must be Settings",
                detail=f"got {type(settings).__name__}",
                hint="Pass Settings(...), or nothing: then they come from AFTERTURN_*.",
            )
        self.settings = settings or Settings.load()
        check_source(source)
        validate_extractor(extractor)
        self._source = source
        self._extractor = extractor
        self._embedder = (
            compose_embedder(self.settings) if embedder is None else CheckedEmbedder(embedder)
        )
        self._parts: Parts | None = None

    async def open(self) -> Self:
        """Find the servers and connect; opening an open memory is legal."""
        if self._parts is None:
            self._parts = await self._put_together()
        return self

    async def _put_together(self) -> Parts:
        return await PostgresParts.open(
            self.settings,
            source=self._source,
            extractor=self._extractor,
            embedder=self._embedder,
        )

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
            token = await parts.capture(scope)
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
            desk=parts,
            settings=self.settings,
        )

    # -- reading

    async def retrieve(self, query: MemoryQuery) -> RetrievalResult:
        """What is remembered about the query, ranked in this process. See `MemoryQuery`."""
        return await self._opened.source.retrieve(checked_query(query))

    async def list(
        self,
        scope: MemoryScope,
        layers: Sequence[MemoryLayer] | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[MemoryRecord, ...]:
        """Published records at exactly this scope by record id, after the id `after`."""
        checked_number(limit, what="limit", at_least=1)
        if after:
            checked_id(after, what="record_id", characters_max=RECORD_ID_CHARACTERS_MAX)
        return await self._opened.reading.list(scope, layers=layers, after=after, limit=limit)

    async def transcript(
        self, scope: MemoryScope, session: str | None = None, limit: int = 50
    ) -> tuple[TranscriptTurn, ...]:
        """The last `limit` recorded turns of exactly this scope, oldest first."""
        checked_number(limit, what="limit", at_least=1)
        if session is not None:
            checked_id(session, what="session", characters_max=SESSION_CHARACTERS_MAX)
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
        """Write one fact and flush the scope; it is retrievable when this returns.

        Without a `record_id` it is known by its words: the same ones again are the same fact.
        """
        parts = self._opened
        checked_scope(scope)
        with refusing("fact"):
            record = MemoryRecord(
                # Known by its words, as a fact that was learned is: said both ways it is one row.
                record_id=fact_id(str(text)) if record_id is None else record_id,
                text=text,
                scope_path=scope.path,
                layer=checked_layer(layer),
                origin=REMEMBERED_ORIGIN,
                importance=importance,
            )
        token = await parts.capture(scope)
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
        of the transcript go with it, and what was learned from the turn, unless it rests on other
        turns, too; the side that is left is extracted again. Turns begun in the scope and not yet
        finished become stale; those acknowledged before and not named are kept.
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

    async def schedule_forget(
        self,
        scope: MemoryScope,
        *,
        at: datetime,
        derived: Derived = "erase",
        requested_by: str = "",
        reason: str = "",
    ) -> Schedule:
        """Erase the scope at a moment to come; until then it is used as ever.

        A worker's sweep makes it a `forget`, once; what came due while none ran is done when one
        runs again. Raises `MemoryContractError` for a time without a zone or in the past.
        """
        checked_scope(scope)
        request = forget_request(derived=derived, requested_by=requested_by, reason=reason)
        return await self._opened.schedules.add_forget(scope, at, request)

    async def cancel_scheduled(self, schedule_id: int) -> Schedule:
        """Cancel an erase to come; twice is legal. Raises `MemoryContractError` once it was due."""
        return await self._opened.schedules.cancel(checked_number(schedule_id, what="schedule_id"))

    async def job(self, job_id: int) -> LifecycleReceipt | None:
        """The receipt of a lifecycle job, None while it has not ended."""
        return await self._opened.lifecycle.receipt(checked_number(job_id, what="job_id"))

    # -- watching

    async def status(self) -> MemoryStatus:
        """What waits, runs, is stuck or dead."""
        return await self._opened.status()

    async def drain(
        self, scope: MemoryScope, timeout: float | None = None, *, in_process: bool = False
    ) -> None:
        """Wait until nothing is outstanding under the scope: recorded, extracted, embedded.

        With `in_process=True` the caller runs the outstanding jobs itself, with this memory's
        extractor or that of `AFTERTURN_EXTRACTOR`. A database that goes away meanwhile is waited
        for, too. Raises `MemoryUnavailable` at the timeout.
        """
        parts = self._opened
        checked_scope(scope)
        seconds = self.settings.wait_timeout_seconds
        if timeout is not None:
            seconds = checked_seconds(timeout, what="timeout")
        left = 0

        async def look(waited: float) -> bool | None:
            nonlocal left
            left = await parts.outstanding(scope)
            if left and in_process and waited < seconds:
                await parts.work(scope)
            return None if left else True

        await wait_until(
            look,
            seconds,
            what="the drain of a scope",
            too_late=lambda: MemoryUnavailable(
                "The scope has not drained in time",
                detail=f"{left} jobs outstanding after {seconds:g} s",
                hint="The work goes on; is a worker running? See `afterturn status`.",
            ),
        )

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
    def _opened(self) -> Parts:
        if self._parts is None:
            raise ConfigurationError(
                "The memory is not open", hint="Use `async with Memory() as memory:`."
            )
        return self._parts

    def _ticket(self, job_id: int, scope: MemoryScope) -> JobTicket:
        lifecycle = self._opened.lifecycle
        return JobTicket(
            job_id,
            lambda timeout: lifecycle.wait(job_id, scope, timeout=timeout),
            lambda: lifecycle.progress(job_id),
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
        "record_ids": checked_ids(
            record_ids, what="record_id", characters_max=RECORD_ID_CHARACTERS_MAX
        ),
        "turn_ids": checked_ids(turn_ids, what="turn_id", characters_max=TURN_ID_CHARACTERS_MAX),
    }
    if session is not None:
        named["session"] = checked_id(
            session, what="session", characters_max=SESSION_CHARACTERS_MAX
        )
    return named
