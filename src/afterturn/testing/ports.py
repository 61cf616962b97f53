"""The ports over the reference store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from afterturn.errors import MemoryContractError
from afterturn.intake import TEXT_BYTES_MAX, checked_time
from afterturn.lifecycle import forget_request
from afterturn.queries import MemoryQuery, RetrievalResult, checked_query
from afterturn.reading import TranscriptTurn
from afterturn.receipts import LifecycleReceipt
from afterturn.records import MemoryLayer, MemoryRecord, checked_layers
from afterturn.retrieval import gates
from afterturn.retrieval.tokenizer import terms
from afterturn.retrieved import RetrievedMemory
from afterturn.schedules import Schedule
from afterturn.scope import MemoryScope, checked_scope
from afterturn.testing.store import HeldSchedule, HeldTurn, ReferenceStore, covers
from afterturn.writes import WriteReceipt, WriteRequest, checked_request, receipt_of, refusals


class ReferenceRetrieval:
    """`MemoryRetrievalPort` and `CandidateScan`: ranked by the share of the question's words."""

    SCAN_BUDGET: Final = 1_000

    def __init__(self, store: ReferenceStore) -> None:
        self._store = store

    async def retrieve(self, query: MemoryQuery) -> RetrievalResult:
        """The visible records that pass the gates, best first."""
        found = gates.admit(self._candidates(query), query)
        return found.model_copy(update={"dropped": found.dropped[: self.SCAN_BUDGET]})

    async def scan_candidates(self, query: MemoryQuery) -> RetrievalResult:
        """The visible records, best first, before any gate."""
        return RetrievalResult(memories=tuple(self._candidates(query)[: self.SCAN_BUDGET]))

    def _candidates(self, query: MemoryQuery) -> list[RetrievedMemory]:
        asked = frozenset(terms(checked_query(query).text))
        scored = [
            RetrievedMemory(record=record, score=score, signals={"words": score})
            for record in self._store.visible(query.scope)
            if query.layers is None or record.layer in query.layers
            for score in [len(asked & set(terms(record.text))) / (len(asked) or 1)]
        ]
        return sorted(scored, key=lambda each: (-each.score, each.record.record_id))


class ReferenceWriting:
    """`MemoryWritePort`."""

    def __init__(self, store: ReferenceStore, *, text_bytes_max: int = TEXT_BYTES_MAX) -> None:
        self._store = store
        self._text_bytes_max = text_bytes_max

    async def write(self, request: WriteRequest) -> WriteReceipt:
        """Keep the records until a flush; one bad record goes alone."""
        checked_request(request)
        self._store.require_vouched(request.scope.path, request.token)
        refused = refusals(request, text_bytes_max=self._text_bytes_max)
        status: dict[str, Literal["pending", "updated", "erased"]] = {
            record.record_id: "erased"
            if self._store.has_erased_source(record)
            else self._store.keep(record)
            for at, record in enumerate(request.records)
            if at not in refused
        }
        return receipt_of(request, refused, status)


class ReferenceLifecycle:
    """`MemoryLifecyclePort`, and the jobs it is made of; a job runs when it is waited for."""

    def __init__(self, store: ReferenceStore) -> None:
        self._store = store

    async def flush(self, scope: MemoryScope) -> LifecycleReceipt:
        """Publish everything that waits in the subtree."""
        return await self.wait(await self.enqueue("flush", scope, {}))

    async def forget(self, scope: MemoryScope) -> LifecycleReceipt:
        """Erase the whole subtree, and nothing beyond it."""
        return await self.wait(await self.enqueue("forget", scope, forget_request(derived="keep")))

    async def enqueue(
        self, kind: Literal["flush", "forget"], scope: MemoryScope, request: Mapping[str, Any]
    ) -> int:
        """Add the job; its id."""
        return self._store.enqueue(kind, checked_scope(scope), request)

    async def wait(
        self,
        job_id: int,
        scope: MemoryScope | None = None,  # noqa: ARG002 - PostgreSQL needs to know
        *,
        timeout: float | None = None,  # noqa: ARG002 - here nothing is waited for
    ) -> LifecycleReceipt:
        """Run the jobs up to this one; its receipt."""
        self._store.receipt(job_id)
        self._store.run_jobs(job_id)
        receipt = self._store.receipt(job_id)
        assert receipt is not None  # noqa: S101 - it ran just now
        return receipt

    async def receipt(self, job_id: int) -> LifecycleReceipt | None:
        """The receipt of a job that has ended, else None."""
        return self._store.receipt(job_id)

    async def progress(self, job_id: int) -> dict[str, int]:
        """Rows per table so far: a job is done at once here, or not begun."""
        receipt = self._store.receipt(job_id)
        return {} if receipt is None else receipt.counts


class ReferenceSchedules:
    """Erases to come; one whose time has come becomes a job at the next `drain`."""

    def __init__(self, store: ReferenceStore) -> None:
        self._store = store

    async def add_forget(
        self, scope: MemoryScope, at: datetime, request: Mapping[str, Any]
    ) -> Schedule:
        """Erase the scope at a moment."""
        self._store.require_reachable()
        due_at = checked_time(at, what="The time of an erase")
        if due_at is None or due_at <= self._store.clock.now():
            raise MemoryContractError(
                "The time of an erase lies in the past",
                hint="Forget at once: memory.forget(scope).",
            )
        schedule = Schedule(
            schedule_id=self._store.draw(),
            kind="forget",
            state="waiting",
            scope_path=scope.path,
            due_at=due_at,
            derived=request["derived"],
            requested_by=request["requested_by"],
            reason=request["reason"],
        )
        self._store.schedules[schedule.schedule_id] = HeldSchedule(schedule, scope, request)
        return schedule

    async def cancel(self, schedule_id: int) -> Schedule:
        """Cancel an erase that has not become a job; twice is legal."""
        self._store.require_reachable()
        held = self._store.schedules.get(schedule_id)
        if held is None:
            raise MemoryContractError("There is no such schedule", detail=f"schedule {schedule_id}")
        if held.shown.state == "done":
            raise MemoryContractError(
                "The erase was due and has become a job", detail=f"job {held.shown.job_id}"
            )
        if held.shown.state == "waiting":
            held.shown = held.shown.model_copy(update={"state": "cancelled"})
        return held.shown


class ReferenceReading:
    """Listings, transcript and export."""

    def __init__(self, store: ReferenceStore) -> None:
        self._store = store

    async def list(
        self,
        scope: MemoryScope,
        *,
        layers: Sequence[MemoryLayer] | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[MemoryRecord, ...]:
        """Published records at exactly this scope, by record id."""
        wanted = None if layers is None else checked_layers(layers)
        self._store.require_open(checked_scope(scope).path)
        found = sorted(
            record_id
            for path, record_id in self._store.published
            if path == scope.path and record_id > (after or "")
        )
        records = (self._store.published[scope.path, record_id] for record_id in found)
        return tuple(r for r in records if wanted is None or r.layer in wanted)[:limit]

    async def transcript(
        self, scope: MemoryScope, *, session: str | None = None, limit: int = 50
    ) -> tuple[TranscriptTurn, ...]:
        """The last recorded turns of exactly this scope, oldest first."""
        self._store.require_open(checked_scope(scope).path)
        turns = [
            _told(turn)
            for (path, _), turn in self._store.turns.items()
            if path == scope.path
            and turn.recorded is not None
            and session in (None, turn.said.session)
        ]
        return tuple(sorted(turns, key=lambda turn: (turn.happened_at, turn.turn_id)))[-limit:]

    async def export(self, scope: MemoryScope) -> AsyncIterator[MemoryRecord | TranscriptTurn]:
        """Everything held under the scope: turns first, then records."""
        self._store.require_open(checked_scope(scope).path)
        for key, turn in sorted(self._store.turns.items(), key=lambda item: item[0]):
            if self._exported(scope, key[0]):
                yield _told(turn)
        for table in (self._store.published, self._store.pending):
            for key, record in sorted(table.items(), key=lambda item: item[0]):
                if self._exported(scope, key[0]):
                    yield record

    def _exported(self, scope: MemoryScope, path: str) -> bool:
        return covers(scope.path, path) and not self._store.erasing(path)


def _told(turn: HeldTurn) -> TranscriptTurn:
    said = turn.said
    return TranscriptTurn(
        turn_id=said.turn_id,
        scope_path=said.scope.path,
        session=said.session,
        query=said.query,
        answer=said.answer,
        names=said.names,
        metadata=dict(said.metadata),
        happened_at=said.occurred_at or turn.staged_at,
    )
