"""A chat with memory. Every line of the input is a message of the user."""

import asyncio
import sys

from afterturn import Memory, MemoryScope


def model(memories: str, message: str) -> str:
    """Stands in for your model: it can answer one question, when it is reminded of the answer."""
    if message.endswith("?"):
        return "Misty!" if "Misty" in memories else "I do not know."
    return "I see."


async def main() -> None:
    """Retrieve, answer, hand over; again."""
    bob = MemoryScope.of("acme", "bob")
    async with Memory() as memory:
        for line in sys.stdin:
            message = line.strip()
            async with memory.turn(bob, session="chat-1", on_unavailable="degrade") as turn:
                found = await turn.retrieve(message, limit=5)
                answer = model(found.render(), message)
                print(answer)
                ticket = await turn.finish(query=message, answer=answer)
            await ticket.wait(timeout=60)  # only so that this page shows the same every time


asyncio.run(main())
