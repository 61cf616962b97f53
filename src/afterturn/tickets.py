"""Tickets: what a caller may wait with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from afterturn.database import Database
from afterturn.errors import MemoryUnavailable
from afterturn.intake import checked_seconds
from afterturn.receipts import LifecycleReceipt
from afterturn.scope import MemoryScope
from afterturn.turns import StageStatus, TurnOutcome
from afterturn.waiting import wait_until

_TURN = """
select recorded, extracted, recorded_at is not null as is_recorded,
    extracted_at is not null as is_extracted, outcome, reason
from afterturn.turns where path = $1 and turn_id = $2
"""


class TurnTicket:
    """Says what became of a finished turn.

    `status` is what the hand-over itself came to: `staged` (on disk), `blank`, or with
    `on_unavailable="degrade"` also `refused` and `unavailable`; `reason` says why. `known` is true
    when the same turn had been handed over before: then that text stands, and this one does not.
    """

    def __init__(
        self,
        turn_id: str,
        status: StageStatus,
        *,
        reason: str = "",
        known: bool = False,
        outcome: Callable[[], Awaitable[TurnOutcome]],
        timeout: float = 120.0,
    ) -> None:
        self.turn_id = turn_id
        self.status = status
        self.reason = reason
        self.known = known
        self._outcome = outcome
        self._timeout = timeout

    async def wait(self, timeout: float | None = None) -> TurnOutcome:
        """The outcome, once the turn is recorded, extracted (or given up) and readable.

        A database that goes away meanwhile is waited for, too. Raises `MemoryUnavailable` at the
        timeout; the work goes on.
        """
        if self.status != "staged":
            return TurnOutcome(status=self.status, reason=self.reason)
        seconds = self._timeout if timeout is None else checked_seconds(timeout, what="timeout")

        async def look(_waited: float) -> TurnOutcome | None:
            outcome = await self._outcome()
            return None if outcome.status == "waiting" else outcome

        return await wait_until(
            look,
            seconds,
            what=f"turn {self.turn_id}",
            too_late=lambda: MemoryUnavailable(
                "The turn has not been processed in time",
                detail=f"turn {self.turn_id}, waited {seconds:g} s",
                hint="It is safe in the ledger; is a worker running? See `afterturn status`.",
            ),
        )


class JobTicket:
    """A lifecycle job under way."""

    def __init__(
        self,
        job_id: int,
        wait: Callable[[float | None], Awaitable[LifecycleReceipt]],
        progress: Callable[[], Awaitable[dict[str, int]]],
    ) -> None:
        self.job_id = job_id
        self._wait = wait
        self._progress = progress

    async def wait(self, timeout: float | None = None) -> LifecycleReceipt:
        """The receipt, once the job has ended. Raises `MemoryUnavailable` at the timeout."""
        return await self._wait(timeout)

    async def progress(self) -> dict[str, int]:
        """Rows per table that the job has dealt with so far, chunk by chunk."""
        return await self._progress()


async def read_outcome(database: Database, scope: MemoryScope, turn_id: str) -> TurnOutcome:
    """What has become of a turn; `waiting` until it is recorded and extracted or given up."""
    row = await database.row_or_none(_TURN, scope.stored_path, turn_id)
    if row is None:
        return TurnOutcome(status="refused", reason="stale turn")
    finished = row["outcome"] == "dead" or (row["is_recorded"] and row["is_extracted"])
    return TurnOutcome(
        status=row["outcome"] if finished and row["outcome"] != "waiting" else "waiting",
        recorded=row["recorded"] or 0,
        extracted=row["extracted"] or 0,
        reason=row["reason"],
    )
