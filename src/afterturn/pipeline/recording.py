"""Recording: a staged turn's raw records, and the batches that write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from afterturn.database import error_code
from afterturn.errors import AfterturnError, MemoryUnavailable
from afterturn.jobs.ledger import ClaimedTurn, Ledger
from afterturn.jobs.tally import Tally
from afterturn.pipeline.rows import record_row
from afterturn.records import MemoryRecord, turn_records
from afterturn.scope import scope_from_stored_path


def records_of(turn: ClaimedTurn) -> list[MemoryRecord]:
    """The turn's records with the speaker's name and the turn's time."""
    named = []
    for record in turn_records(
        query=turn.query,
        answer=turn.answer,
        scope=scope_from_stored_path(turn.stored_path),
        extra_metadata=turn.metadata,
        turn_id=turn.turn_id,
    ):
        metadata = dict(record.metadata)
        if turn.session:
            metadata["session"] = turn.session
        if turn.names:
            metadata["speaker_name"] = turn.names[0 if metadata["speaker"] == "user" else 1]
        named.append(
            record.model_copy(update={"metadata": metadata, "occurred_at": turn.occurred_at})
        )
    return named


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


class Recorder:
    """Writes batches of claimed turns."""

    def __init__(self, ledger: Ledger, *, embed: bool) -> None:
        self._ledger = ledger
        self._embed = embed

    async def record(self, turns: Sequence[ClaimedTurn], tally: Tally) -> tuple[int, ...]:
        """Record a batch; returns the embed jobs to ring. A turn that fails does so alone."""
        work = [turn_work(turn, records_of(turn)) for turn in turns]
        return await apply_apart(self._ledger, "record", turns, work, tally, embed=self._embed)


async def apply_apart(
    ledger: Ledger,
    kind: Any,
    turns: Sequence[ClaimedTurn],
    work: Sequence[Mapping[str, Any]],
    tally: Tally,
    *,
    embed: bool,
) -> tuple[int, ...]:
    """Apply a batch; when it fails as a whole, each turn by itself, so that one parks alone."""
    try:
        applied = await ledger.apply_turns(kind, work, embed=embed)
    except AfterturnError as error:
        if len(turns) == 1:
            verdict = await ledger.fail_turn(turns[0].lease, error_code(error))
            tally.failed(verdict, error_code(error))
            return ()
        if isinstance(error, MemoryUnavailable) and error.detail in _OUTAGES:
            raise
        jobs: list[int] = []
        for turn, each in zip(turns, work, strict=True):
            jobs.extend(await apply_apart(ledger, kind, [turn], [each], tally, embed=embed))
        return tuple(jobs)
    for verdict in applied.verdicts.values():
        tally.applied(kind, verdict)
    return applied.embed_jobs


# The server is gone, not one turn bad: trying each by itself would only wait as often.
_OUTAGES = frozenset({"ConnectionError", "ConnectionRefusedError", "TimeoutError", "OSError"})
