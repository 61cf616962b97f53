"""The lifecycle port on PostgreSQL: enqueue the ordered job, wait for its receipt.

Waiting polls with a short backoff. When no worker has taken the job after a moment, the waiting
caller runs it itself (and whatever stands before it): an erase needs neither Redis nor workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

import asyncpg

from afterturn.database import Database
from afterturn.errors import MemoryContractError, MemoryUnavailable
from afterturn.intake import checked_seconds, clean_text
from afterturn.jobs.rings import RingPublisher
from afterturn.pipeline.runner import Runner
from afterturn.receipts import LifecycleKind, LifecycleReceipt
from afterturn.scope import MemoryScope, checked_scope
from afterturn.settings import Settings
from afterturn.waiting import wait_until

Derived = Literal["keep", "erase"]

_ENQUEUE = "select * from afterturn.enqueue_lifecycle($1, $2, $3::jsonb, $4)"
_JOB = """
select id, kind, path, outcome, counts, receipt, created_at, finished_at, attempts, reason,
    lease_token is not null and ready_at > afterturn.clock() as leased, blocked_by
from afterturn.jobs where id = $1
"""
NOTE_CHARACTERS_MAX: Final = 500


class PostgresLifecycle:
    """Flush and forget as ordered jobs."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        rings: RingPublisher,
        runner: Runner,
        *,
        not_covered: tuple[str, ...] = (),
    ) -> None:
        self._database = database
        self._settings = settings
        self._rings = rings
        self._runner = runner
        self._not_covered = not_covered

    async def flush(self, scope: MemoryScope) -> LifecycleReceipt:
        """Publish everything that waits in the subtree, after recording what was acknowledged."""
        job_id = await self.enqueue("flush", checked_scope(scope), {})
        return await self.wait(job_id, scope)

    async def forget(self, scope: MemoryScope) -> LifecycleReceipt:
        """Erase the whole subtree and nothing beyond it; what was learned elsewhere is counted."""
        job_id = await self.enqueue("forget", checked_scope(scope), forget_request(derived="keep"))
        return await self.wait(job_id, scope)

    async def enqueue(
        self, kind: Literal["flush", "forget"], scope: MemoryScope, request: Mapping[str, Any]
    ) -> int:
        """Add the job to the ledger and ring; returns its id.

        From this moment on a forget's scope can be neither read nor written.
        """
        ring_after = timedelta(seconds=2 * self._settings.sweep_seconds)
        row = await self._database.row(_ENQUEUE, kind, scope.stored_path, dict(request), ring_after)
        if not row["blocked"]:
            self._rings.ring(kind, [row["job_id"]])
        return int(row["job_id"])

    async def wait(
        self, job_id: int, scope: MemoryScope | None = None, *, timeout: float | None = None
    ) -> LifecycleReceipt:
        """The job's receipt, once it has ended; a requeued flush is followed to its successor.

        A database that goes away meanwhile is waited for, too. Raises `MemoryContractError` for an
        unknown job, `MemoryUnavailable` at the timeout (the job goes on).
        """
        seconds = self._settings.wait_timeout_seconds if timeout is None else timeout
        checked_seconds(seconds, what="timeout")
        waiting = _Waiting(job_id)

        async def look(waited: float) -> asyncpg.Record | None:
            row = await self._followed(waiting)
            is_taken = row["outcome"] is not None or row["leased"]
            if is_taken or not self._settings.takeover_seconds <= waited < seconds:
                return None if row["outcome"] is None else row
            await self._runner.run_head(waiting.job_id)
            row = await self._followed(waiting)
            return None if row["outcome"] is None else row

        row = await wait_until(
            look,
            seconds,
            what=f"job {job_id}",
            too_late=lambda: MemoryUnavailable(
                f"The {waiting.kind} has not completed in time",
                detail=f"job {waiting.job_id}, waited {seconds:g} s, {waiting.state}",
                hint="It stays in the ledger; wait for it again, or see `afterturn status`.",
            ),
        )
        return self._receipt(row, scope)

    async def _followed(self, waiting: _Waiting) -> asyncpg.Record:
        """The job's row, or that of the one that took its place."""
        while True:
            row = await self._job(waiting.job_id)
            waiting.kind, waiting.state = row["kind"], _state(row)
            if row["outcome"] != "requeued" or "successor" not in row["receipt"]:
                return row
            waiting.job_id = row["receipt"]["successor"]

    async def receipt(self, job_id: int) -> LifecycleReceipt | None:
        """The receipt of a job that has ended, else None."""
        row = await self._job(job_id)
        return None if row["outcome"] is None else self._receipt(row, None)

    async def progress(self, job_id: int) -> dict[str, int]:
        """Rows per table so far: an erase and a flush commit in chunks, each of which counts."""
        counts: dict[str, int] = (await self._job(job_id))["counts"]
        return counts

    async def _job(self, job_id: int) -> asyncpg.Record:
        row = await self._database.row_or_none(_JOB, job_id)
        if row is None or row["kind"] not in ("flush", "forget", "expire"):
            raise MemoryContractError(
                "There is no such lifecycle job",
                detail=f"job {job_id}",
                hint="Finished jobs are kept for AFTERTURN_JOBS_KEPT_SECONDS.",
            )
        return row

    def _receipt(self, row: asyncpg.Record, scope: MemoryScope | None) -> LifecycleReceipt:
        kind: LifecycleKind = row["kind"]
        path = scope.path if scope else (row["path"] or "").removesuffix("/")
        told: dict[str, Any] = row["receipt"]
        return LifecycleReceipt(
            job_id=row["id"],
            kind=kind,
            scope_path=path,
            outcome=row["outcome"],
            counts=row["counts"],
            derived_outside=told.get("derived_outside", 0),
            not_covered=self._not_covered if kind == "forget" else (),
            generation=told.get("generation", 0),
            requested_at=row["created_at"],
            completed_at=row["finished_at"],
            log_head=told.get("log_head", ""),
        )


def forget_request(
    *,
    derived: Derived,
    requested_by: str = "",
    reason: str = "",
    named: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The request of a forget job; `named` limits it to turns, records or a session."""
    if derived not in ("keep", "erase"):
        raise MemoryContractError(
            "derived must be 'keep' or 'erase'", detail=f"got {ascii(derived)[:40]}"
        )
    request: dict[str, Any] = {"derived": derived}
    for name, note in (("requested_by", requested_by), ("reason", reason)):
        if not isinstance(note, str):
            raise MemoryContractError(
                f"The {name} must be text", detail=f"got {type(note).__name__}"
            )
        if len(note) > NOTE_CHARACTERS_MAX:
            raise MemoryContractError(
                f"{name} is too long",
                detail=f"{len(note)} characters, at most {NOTE_CHARACTERS_MAX}",
                hint="It is kept in the erase log for ever: name a ticket, not its text.",
            )
        request[name] = clean_text(note)
    if named is not None:
        request["named"] = dict(named)
    return request


@dataclass
class _Waiting:
    """What is waited for, and how it stood when it was seen last."""

    job_id: int
    kind: str = ""
    state: str = ""


def _state(row: asyncpg.Record) -> str:
    if row["blocked_by"] is not None:
        return f"behind job {row['blocked_by']}"
    if row["leased"]:
        return f"running, attempt {row['attempts']}"
    return f"waiting after {row['attempts']} attempts {row['reason']}".rstrip()
