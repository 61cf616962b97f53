"""Where no worker runs: calls that wait for one are few, and flush and forget are done anyway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from afterturn.errors import MemoryUnavailable
from afterturn.memory import Memory
from afterturn.queries import MemoryQuery
from afterturn.records import MemoryRecord
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from afterturn.writes import WriteRequest

ALICE = MemoryScope.of("acme", "alice")
BOB = MemoryScope.of("acme", "bob")


@pytest.fixture
async def memory(settings: Settings) -> AsyncIterator[Memory]:
    """No worker, no broker, and callers that never work themselves: who waits, waits too long."""
    alone = settings.model_copy(
        update={
            "broker_url": "redis://127.0.0.1:1/0",
            "takeover_seconds": 3_600.0,
            "wait_timeout_seconds": 3_600.0,
        }
    )
    async with Memory(alone, extractor=None) as opened:
        yield opened


async def test_no_call_waits_for_a_worker_but_those_that_say_so(memory: Memory) -> None:
    """Turns, reads, writes, enqueueing, schedules, status, and closing with work outstanding."""
    record = MemoryRecord(
        record_id="r", text="quinces", scope_path=ALICE.path, layer="semantic", origin="test"
    )
    for _ in range(2):  # again with everything outstanding
        async with memory.turn(ALICE, session="s") as turn:
            await turn.retrieve("quinces")
            ticket = await turn.finish("I like quinces", "Noted")
        await (await memory.begin_turn(ALICE)).abandon()
        await memory.retrieve(MemoryQuery(scope=ALICE, text="quinces"))
        await memory.list(ALICE)
        await memory.transcript(ALICE)
        _ = [each async for each in memory.export(ALICE)]
        await memory.write(WriteRequest(scope=ALICE, records=(record,)))
        flush = await memory.enqueue_flush(ALICE)
        forget = await memory.enqueue_forget(BOB)
        later = await memory.schedule_forget(ALICE, at=datetime(2100, 1, 1, tzinfo=UTC))
        await memory.cancel_scheduled(later.schedule_id)
        assert await memory.job(flush.job_id) is None
        assert await forget.progress() == {}
        assert (await memory.status()).outstanding
    for waiting in (ticket.wait(0.01), flush.wait(0.01), memory.drain(ALICE, 0.01)):
        with pytest.raises(MemoryUnavailable):
            await waiting


async def test_flush_and_forget_complete_all_the_same(memory: Memory) -> None:
    """As do those that are made of them: the caller does what nobody has taken."""
    working = memory.settings.model_copy(update={"takeover_seconds": 0.0})
    async with Memory(working, extractor=None) as doing:
        await doing.remember(ALICE, "quinces", record_id="r")
        assert (await doing.flush(ALICE)).outcome == "done"
        assert (await doing.forget_records(ALICE, record_ids=["r"])).outcome == "done"
        assert (await doing.forget(ALICE)).outcome == "done"
