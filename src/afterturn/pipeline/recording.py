"""Recording: a staged turn's raw records."""

from __future__ import annotations

from collections.abc import Sequence

from afterturn.jobs.ledger import ClaimedTurn
from afterturn.jobs.tally import Tally
from afterturn.pipeline.applying import TurnApplier, turn_work
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


class Recorder:
    """Writes batches of claimed turns; their extraction may begin `extract_after_seconds` later."""

    def __init__(self, applier: TurnApplier, *, extract_after_seconds: float = 0.0) -> None:
        self._applier = applier
        self._later = {"extract_after": extract_after_seconds} if extract_after_seconds else {}

    async def record(self, turns: Sequence[ClaimedTurn], tally: Tally) -> None:
        """Record a batch. A turn that fails does so alone."""
        work = [{**turn_work(turn, records_of(turn)), **self._later} for turn in turns]
        await self._applier.apply("record", turns, work, tally)
