"""What the sweep does with schedules: due ones become jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from afterturn.database import Database
from afterturn.jobs.names import Kind
from afterturn.settings import Settings

_IS_DUE = "select afterturn.schedule_is_due()"
_SETTLE_DEFAULT = "select afterturn.settle_default_rule($1)"
_RUN_ERASE = "select * from afterturn.run_due_erase($1)"
_CLAIM_RULE = "select * from afterturn.claim_due_rule($1)"
_PATHS = "select afterturn.paths_to_expire($1, $2, $3)"
_ENQUEUE_EXPIRE = "select * from afterturn.enqueue_expire($1, $2, $3, $4, $5)"
_RULE_RAN = "select afterturn.rule_ran($1)"
_PRUNE = "select afterturn.prune_schedules($1, $2)"

ERASES_PER_SWEEP: Final = 500
RULES_PER_SWEEP: Final = 20
RULE_HELD: Final = timedelta(minutes=1)
"""How long other sweeps pass over a rule that one is at; one that dies is followed after that."""


class DueSchedules:
    """Turns what is due into jobs; any number of processes may do so at once."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._default_settled = False
        self._ring_after = timedelta(seconds=2 * settings.sweep_seconds)

    async def enqueue(self) -> list[tuple[Kind, int]]:
        """Jobs made of due schedules that may be rung now. One probe when nothing is due."""
        if not self._default_settled:
            await self._database.value(_SETTLE_DEFAULT, self._settings.working_seconds)
            self._default_settled = True
        if not await self._database.value(_IS_DUE):
            return []
        return [*await self._erases(), *await self._rules()]

    async def prune(self, limit: int) -> None:
        """Remove schedules that ended as long ago as finished jobs are kept."""
        kept = timedelta(seconds=self._settings.jobs_kept_seconds)
        await self._database.value(_PRUNE, kept, limit)

    async def _erases(self) -> list[tuple[Kind, int]]:
        ready: list[tuple[Kind, int]] = []
        for _ in range(ERASES_PER_SWEEP):
            row = await self._database.row(_RUN_ERASE, self._ring_after)
            if row["job_id"] is None:
                break
            if not row["blocked"]:
                ready.append(("forget", row["job_id"]))
        return ready

    async def _rules(self) -> list[tuple[Kind, int]]:
        ready: list[tuple[Kind, int]] = []
        for _ in range(RULES_PER_SWEEP):
            rule = await self._database.row(_CLAIM_RULE, RULE_HELD)
            if rule["id"] is None:
                break
            about = (rule["layer"], rule["before"])
            for (path,) in await self._database.rows(_PATHS, rule["path"], *about):
                row = await self._database.row(
                    _ENQUEUE_EXPIRE, rule["id"], path, *about, self._ring_after
                )
                if row["job_id"] is not None and not row["blocked"]:
                    ready.append(("expire", row["job_id"]))
            await self._database.value(_RULE_RAN, rule["id"])
        return ready
