"""Ask what is remembered, in another process, in another conversation."""

import asyncio

from afterturn import Memory, MemoryScope


async def main() -> None:
    """A turn that only reads: it is abandoned at the end of its block."""
    alice = MemoryScope.of("acme", "alice")
    async with Memory() as memory, memory.turn(alice, session="tuesday") as turn:
        found = await turn.retrieve("What does she eat?", limit=2)
        print(found.render())


asyncio.run(main())
