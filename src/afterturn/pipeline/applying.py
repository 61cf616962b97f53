"""Applying what was made of claimed turns, in batches that fail one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from afterturn.database import error_code
from afterturn.errors import AfterturnError
from afterturn.jobs.ledger import ClaimedTurn, Ledger
from afterturn.jobs.names import Kind
from afterturn.jobs.rings import RingPublisher
from afterturn.jobs.tally import Tally
from afterturn.pipeline.rows import record_row
from afterturn.records import MemoryRecord

# The server is gone, not one turn bad: trying each by itself would only wait as often.
_OUTAGES: Final = frozenset({"ConnectionError", "ConnectionRefusedError", "TimeoutError"})


class TurnApplier:
    """Writes batches of turns and rings the jobs that follow from them."""

    def __init__(self, ledger: Ledger, rings: RingPublisher, *, embed: bool) -> None:
        self._ledger = ledger
        self._rings = rings
        self._embed = embed

    async def apply(
        self,
        kind: Kind,
        turns: Sequence[ClaimedTurn],
        work: Sequence[Mapping[str, Any]],
        tally: Tally,
    ) -> dict[int, str]:
        """Apply `work`, one element a turn; returns the verdict of each job that was judged.

        When the batch fails, each call by itself: one parks alone, the others are done.
        """
        try:
            applied = await self._ledger.apply_turns(kind, work, embed=self._embed)
        except AfterturnError as error:
            if error.detail in _OUTAGES:
                raise
            return await self._each(kind, turns, work, tally, error_code(error))
        for job_id, verdict in applied.verdicts.items():
            if verdict != "again":
                tally.applied(kind, verdict, job_id)
        for next_kind, ids in applied.next_jobs.items():
            self._rings.ring(next_kind, ids)
        return dict(applied.verdicts)

    async def _each(
        self,
        kind: Kind,
        turns: Sequence[ClaimedTurn],
        work: Sequence[Mapping[str, Any]],
        tally: Tally,
        code: str,
    ) -> dict[int, str]:
        calls: dict[object, list[int]] = {}
        for at, each in enumerate(work):
            calls.setdefault(each.get("call", at), []).append(at)
        if len(calls) == 1:
            for turn in turns:
                verdict = await self._ledger.fail_turn(turn.lease, code)
                tally.failed(kind, verdict, code, turn.lease.job_id)
            return {}
        verdicts: dict[int, str] = {}
        for places in calls.values():
            verdicts |= await self.apply(
                kind, [turns[at] for at in places], [work[at] for at in places], tally
            )
        return verdicts


def turn_work(
    turn: ClaimedTurn, records: Sequence[MemoryRecord], *, reason: str = ""
) -> dict[str, Any]:
    """One element of `apply_turns`."""
    return {
        "job": turn.lease.job_id,
        "lease": str(turn.lease.token),
        "path": turn.stored_path,
        "turn_id": turn.turn_id,
        "reason": reason,
        "records": [record_row(record, session=turn.session) for record in records],
    }
