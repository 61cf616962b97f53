"""Erases to come, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from afterturn.errors import MemoryContractError
from afterturn.intake import checked_time
from afterturn.schedules import Schedule
from afterturn.scope import MemoryScope, scope_from_path
from afterturn.testing.store import ReferenceStore


class ReferenceSchedules:
    """`afterturn.parts.SchedulesPart`: what is due by the clock becomes a job at the next work."""

    def __init__(self, store: ReferenceStore) -> None:
        self._store = store
        self._held: dict[int, tuple[Schedule, Mapping[str, Any]]] = {}

    async def add_forget(
        self, scope: MemoryScope, at: datetime, request: Mapping[str, Any]
    ) -> Schedule:
        """Erase the scope at a moment."""
        self._store.require_reachable()
        due_at = checked_time(at, what="The time of an erase")
        assert due_at is not None  # noqa: S101 - only None gives None
        if due_at <= self._store.clock.now():
            raise MemoryContractError("A schedule cannot be in the past")
        made = Schedule(
            schedule_id=self._store.draw(),
            kind="forget",
            state="waiting",
            scope_path=scope.path,
            due_at=due_at,
            derived=request["derived"],
            requested_by=request["requested_by"],
            reason=request["reason"],
        )
        self._held[made.schedule_id] = (made, dict(request))
        return made

    async def cancel(self, schedule_id: int) -> Schedule:
        """Cancel it."""
        self._store.require_reachable()
        if schedule_id not in self._held:
            raise MemoryContractError("There is no such schedule", detail=f"schedule {schedule_id}")
        found, request = self._held[schedule_id]
        if found.state == "done":
            raise MemoryContractError(
                "The erase was due and has become a job",
                detail=f"schedule {schedule_id}, job {found.job_id}",
            )
        ended = found.model_copy(update={"state": "cancelled"})
        self._held[schedule_id] = (ended, request)
        return ended

    def enqueue_due(self) -> None:
        """Make jobs of what is due."""
        now = self._store.clock.now()
        for schedule_id, (found, request) in sorted(self._held.items()):
            if found.state == "waiting" and found.due_at <= now and found.scope_path:
                scope = scope_from_path(found.scope_path)
                job_id = self._store.enqueue("forget", scope, request)
                done = found.model_copy(update={"state": "done", "job_id": job_id, "ran_at": now})
                self._held[schedule_id] = (done, request)
