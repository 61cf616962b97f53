"""Erase a user while one of their turns is under way."""

import asyncio

from afterturn import Memory, MemoryScope
from afterturn.errors import StaleTurn


async def main() -> None:
    """The turn reads, the erase completes, and then the turn wants to be written."""
    alice = MemoryScope.of("acme", "alice")
    async with Memory() as memory:
        late = await memory.begin_turn(alice)
        found = await late.retrieve("Where does she live?")
        print("read before the erase:", len(found.memories) > 0)

        receipt = await memory.forget(alice, requested_by="alice", reason="she asked")
        print("erased rows of turns:", receipt.counts["turns"])

        try:
            await late.finish("Where do I live?", "In Lisbon.")
        except StaleTurn as error:
            print("refused:", error.message)

        async with memory.turn(alice) as turn:  # the scope can be used again at once
            found = await turn.retrieve("Where does she live?")
            print("remembered now:", len(found.memories))


asyncio.run(main())
