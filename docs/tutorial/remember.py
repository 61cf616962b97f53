"""Hand one exchange over, and wait until it was learned from."""

import asyncio

from afterturn import Memory, MemoryScope


async def main() -> None:
    """One turn of Alice's."""
    alice = MemoryScope.of("acme", "alice")
    async with Memory() as memory:
        async with memory.turn(alice, session="monday") as turn:
            ticket = await turn.finish(
                query="I'm Alice. I live in Lisbon and I'm a vegetarian.",
                answer="Nice to meet you, Alice!",
            )
        print("handed over:", ticket.status)
        outcome = await ticket.wait(timeout=60)  # an agent would not wait
        print("recorded:", outcome.recorded, "learned:", outcome.extracted)
        await memory.drain(alice, timeout=60)  # the vectors, too, so that the next step has them


asyncio.run(main())
