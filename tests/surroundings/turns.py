"""The way of a turn in a few lines, for every kind of surroundings."""

from __future__ import annotations

from afterturn import Memory, MemoryQuery, MemoryScope
from afterturn.settings import Settings

ALICE = MemoryScope.of("acme", "alice")
BOB = MemoryScope.of("acme", "bob")


async def travel(settings: Settings) -> None:
    """Turns are handed over, recorded and extracted by a worker, found, and erased."""
    async with Memory(settings) as memory:
        for scope in (ALICE, BOB):
            async with memory.turn(scope) as turn:
                ticket = await turn.finish("My dog is called Rex and I like quinces.", "Noted.")
            outcome = await ticket.wait(timeout=40)
            assert (outcome.status, outcome.recorded) == ("done", 4)
            assert outcome.extracted
        assert await found(memory, ALICE)
        receipt = await memory.forget(ALICE)
        assert (receipt.outcome, receipt.counts["turns"]) == ("done", 1)
        assert not await found(memory, ALICE)
        assert await found(memory, BOB)
        await memory.drain(MemoryScope.of("acme"), timeout=40)


async def found(memory: Memory, scope: MemoryScope) -> bool:
    """Whether something is remembered there."""
    result = await memory.retrieve(MemoryQuery(scope=scope, text="what is my dog called?"))
    return any("Rex" in each.record.text for each in result.memories)
