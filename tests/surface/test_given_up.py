"""A turn whose extraction fails for good: what the caller, the ledger and its operator are told."""

from __future__ import annotations

import pytest

from afterturn.database import Database
from afterturn.errors import MemoryContractError
from afterturn.jobs.inspection import find_jobs
from afterturn.memory import Memory
from afterturn.records import MemoryLayer
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from afterturn.turns import ExtractionRequest, ExtractionResult

ALICE = MemoryScope.of("acme", "alice")
MARKER = "quinces"


class Failing:
    """Fails for the turn `bad`, in one of three ways; the error quotes what was said."""

    def __init__(self, how: str) -> None:
        self._how = how
        self.calls = 0

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        (turn,) = request.turns
        if turn.turn_id != "bad":
            return ExtractionResult()
        self.calls += 1
        if self._how == "raises":
            raise RuntimeError(turn.query)
        if self._how == "refuses":
            raise MemoryContractError(str(turn.query))
        return ExtractionResult(degraded=True, reason="no model")


@pytest.mark.parametrize(
    ("how", "reason", "calls"),
    [
        ("raises", "failed: RuntimeError", 2),
        ("degrades", "no model", 2),
        ("refuses", "contract: MemoryContractError", 1),
    ],
)
async def test_a_turn_that_is_given_up_is_told_of_everywhere(
    settings: Settings, database: Database, how: str, reason: str, calls: int
) -> None:
    """The ticket, the count of the status and the job by the turn's id say the same reason, which
    quotes nobody; what was said is kept, and the turns beside it are done."""
    failing = Failing(how)
    few = settings.model_copy(update={"max_attempts": 2})
    async with Memory(few, extractor=failing) as memory:
        tickets = {}
        for turn_id in ("before", "bad", "after"):
            async with memory.turn(ALICE, turn_id=turn_id) as turn:
                tickets[turn_id] = await turn.finish(f"I like {MARKER} {turn_id}", "Noted")
        await memory.drain(ALICE, in_process=True)
        outcomes = {turn_id: await ticket.wait() for turn_id, ticket in tickets.items()}
        status = await memory.status()
        said = await memory.list(ALICE, layers=[MemoryLayer.EPISODIC])
    (job,) = await find_jobs(database, states=("dead",), turn_id="bad")
    assert (job.kind, job.attempts, job.reason) == ("extract", calls, reason)
    assert failing.calls == calls
    bad = outcomes.pop("bad")
    assert (bad.status, bad.reason, bad.recorded, bad.extracted) == ("degraded", reason, 4, 0)
    assert {outcome.status for outcome in outcomes.values()} == {"done"}
    assert (status.dead, status.outstanding) == (1, 0)
    assert sum(f"{MARKER} bad" in record.text for record in said) == 1
