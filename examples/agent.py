"""A chat agent with memory, in one file.

python examples/agent.py                    # a scripted model: nothing to install or to pay
AGENT_MODEL=gpt-4o-mini python examples/agent.py

Settings: AGENT_MODEL, AGENT_BASE_URL and AGENT_API_KEY for any OpenAI-compatible endpoint (needs
"afterturn[openai]"), AGENT_USER for who is talking (alice), and those of afterturn, AFTERTURN_*.
Where a fleet runs (`afterturn up`), its workers process the turns; else this process does.

Say /facts to see what is known of you, /forget me to be forgotten, /quit to leave.
"""

import asyncio
import contextlib
import os
import sys
import uuid

from afterturn import Memory, MemoryLayer, MemoryScope
from afterturn.errors import AfterturnError, MemoryUnavailable

INSTRUCTIONS = "You are a friendly assistant. Answer in one or two sentences."


# --8<-- [start:model]
async def answered(memories: str, message: str) -> str:
    """The model's answer: a scripted one, or that of the endpoint in AGENT_MODEL."""
    if not os.environ.get("AGENT_MODEL"):
        return scripted(memories, message)
    from openai import AsyncOpenAI

    client = AsyncOpenAI(
        base_url=os.environ.get("AGENT_BASE_URL"),
        api_key=os.environ.get("AGENT_API_KEY", "none"),
    )
    async with client:
        completion = await client.chat.completions.create(
            model=os.environ["AGENT_MODEL"],
            messages=[
                {"role": "system", "content": f"{INSTRUCTIONS}\n\n{memories}".strip()},
                {"role": "user", "content": message},
            ],
        )
    return completion.choices[0].message.content or ""


def scripted(memories: str, message: str) -> str:
    """Stands in for a model: it can read out what it was reminded of."""
    if not message.endswith("?"):
        return "I see."
    told = [line.split('"')[1] for line in memories.splitlines() if ", user, " in line]
    return f'You told me: "{told[0]}"' if told else "I do not know."


# --8<-- [end:model]
class Agent:
    """One conversation with one user."""

    def __init__(self, memory: Memory, user: str) -> None:
        self.memory = memory
        # --8<-- [start:scope]
        # One scope a user, one session a conversation: what was said in one is known in the next,
        # and each can be erased by itself.
        self.scope = MemoryScope.of("example", user)
        self.session = uuid.uuid4().hex
        # --8<-- [end:scope]
        self.work: set[asyncio.Task[None]] = set()

    # --8<-- [start:turn]
    async def reply(self, message: str) -> str:
        """Remember, answer, hand over. Memory that is out of reach does not end the chat."""
        if not await self.is_reachable():
            return await answered("", message)
        async with self.memory.turn(
            self.scope, session=self.session, on_unavailable="degrade"
        ) as turn:
            found = await turn.retrieve(message, limit=5)
            say_degraded(found.degraded)
            answer = await answered(found.render(), message)
            ticket = await turn.finish(query=message, answer=answer)
            if ticket.status != "staged":
                say_degraded((ticket.reason,))
        self.process()
        return answer

    # --8<-- [end:turn]
    # --8<-- [start:outage]
    async def is_reachable(self) -> bool:
        """Open the memory if it is not open yet; say so when it cannot be."""
        try:
            await self.memory.open()
        except MemoryUnavailable as error:
            say_degraded((error.message,))
            return False
        return True

    # --8<-- [end:outage]
    # --8<-- [start:forget]
    async def forget(self) -> str:
        """Erase all that is known of the user, and prove it."""
        receipt = await self.memory.forget(
            self.scope, requested_by=self.scope.segments[-1], reason="asked for in the chat"
        )
        gone = sum(receipt.counts.values())
        return f"You are forgotten: {gone} rows erased, log entry {receipt.log_head[:12]}."

    # --8<-- [end:forget]
    # --8<-- [start:facts]
    async def facts(self) -> str:
        """What was learned of the user, as far as it has been processed."""
        await self.settled()
        known = await self.memory.list(self.scope, layers=[MemoryLayer.SEMANTIC])
        return "\n".join(f"- {fact.text}" for fact in known) or "I know nothing of you."

    # --8<-- [end:facts]
    # --8<-- [start:process]
    def process(self) -> None:
        """Record and learn in the background. With a fleet of workers this is not needed."""
        task = asyncio.create_task(self.drain())
        self.work.add(task)
        task.add_done_callback(self.work.discard)

    async def drain(self) -> None:
        """Process what was handed over; what cannot be now stays in the ledger."""
        with contextlib.suppress(AfterturnError):
            await self.memory.drain(self.scope, in_process=True)

    # --8<-- [end:process]
    async def settled(self) -> None:
        """Wait for what is under way in the background."""
        while self.work:
            await asyncio.wait(self.work)


def say_degraded(reasons: tuple[str, ...]) -> None:
    """Tell the user, in one line."""
    for reason in reasons:
        print(f"(without memory for now: {reason})", file=sys.stderr)


async def converse(agent: Agent, message: str) -> str:
    """One line of the chat: a command, or a message for the model."""
    try:
        match message:
            case "/facts":
                return await agent.facts()
            case "/forget me":
                await agent.settled()
                return await agent.forget()
            case _:
                return await agent.reply(message)
    except AfterturnError as error:
        return f"That cannot be done now. {error}"


async def main() -> None:
    """Chat until the input ends."""
    memory = Memory()
    agent = Agent(memory, os.environ.get("AGENT_USER", "alice"))
    try:
        while message := await asyncio.to_thread(sys.stdin.readline):
            if message.strip() == "/quit":
                break
            if message.strip():
                print(await converse(agent, message.strip()), flush=True)
        await agent.settled()
    finally:
        await memory.close()


if __name__ == "__main__":
    asyncio.run(main())
