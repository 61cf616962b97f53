"""One turn that always fails, and rings that mean nothing."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from afterturn.database import Database
from afterturn.jobs.names import KINDS, Kind
from afterturn.jobs.rings import RingPublisher
from afterturn.pipeline.runner import Runner
from afterturn.settings import Settings
from afterturn.turns import ExtractionRequest, ExtractionResult
from tests.pipeline.conftest import CHAT_1, Desk

OPEN = "select id from afterturn.jobs where kind = 'extract' and finished_at is null"


class Poisoned:
    """A model that one turn breaks every time."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        (turn,) = request.turns
        self.calls[turn.turn_id] += 1
        if turn.turn_id == "poison":
            raise RuntimeError("it breaks")
        return ExtractionResult()


async def test_a_turn_that_always_fails_parks_alone(
    desk: Desk, database: Database, settings: Settings, quiet: RingPublisher
) -> None:
    """Ten good turns of the same scope are done; the bad one is given up after its attempts,
    visible by its id, and the model was asked about it no more often than that."""
    model = Poisoned()
    runner = Runner(database, settings, quiet, model, None)
    names = [f"t{n}" for n in range(10)]
    for name in (*names[:5], "poison", *names[5:]):
        await desk.record(await desk.stage(CHAT_1, name))
    while ids := [row["id"] for row in await desk.rows(OPEN)]:
        await runner.run("extract", ids)
        await asyncio.sleep(0.01)
    assert model.calls == {**dict.fromkeys(names, 1), "poison": settings.max_attempts}
    rows = await desk.rows("select turn_id, outcome, recorded from afterturn.turns")
    told = {row["turn_id"]: (row["outcome"], row["recorded"]) for row in rows}
    assert told == {**dict.fromkeys(names, ("done", 4)), "poison": ("degraded", 4)}
    (dead,) = await desk.rows("select turn_id from afterturn.jobs where outcome = 'dead'")
    assert dead["turn_id"] == "poison"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_ring_for_jobs_that_are_not_there_finds_nothing(
    kind: Kind, database: Database, settings: Settings, quiet: RingPublisher
) -> None:
    """Ids of another database, of ended jobs, of another kind: passed over."""
    runner = Runner(database, settings, quiet, None, None)
    assert await runner.run(kind, [4711, 2**63 - 1]) == "nothing to do"


async def test_a_ring_of_the_wrong_kind_takes_no_job(
    desk: Desk, database: Database, settings: Settings, quiet: RingPublisher
) -> None:
    """A record job rung as a forget, or a forget as an embed, stays where it is."""
    runner = Runner(database, settings, quiet, None, None)
    staged = await desk.stage(CHAT_1, "t1")
    erase = await desk.enqueue_forget(CHAT_1.child("elsewhere"))
    assert staged.record_job is not None
    wrong: tuple[Kind, ...] = ("forget", "extract", "embed")
    for kind in wrong:
        assert await runner.run(kind, [staged.record_job]) == "nothing to do"
    others: tuple[Kind, ...] = ("record", "embed")
    for kind in others:
        await runner.run(kind, [erase])
    leased = "select count(*) from afterturn.jobs where attempts > 0 and finished_at is null"
    assert await desk.value(leased) == 0
    assert (await desk.outcome(erase))[0] is None
