"""The demo from its first word to its last."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from afterturn.cli.lifecycle import receipt_rows
from afterturn.database import Database
from afterturn.demo.asking import Answer, ask
from afterturn.demo.remains import remains
from afterturn.demo.screen import Screen
from afterturn.demo.shipped import Shipped, load
from afterturn.demo.stack import Stack, running
from afterturn.errors import StaleTurn
from afterturn.importing.conversation import Conversation
from afterturn.importing.draining import Drain, patience_seconds
from afterturn.importing.importer import Importer
from afterturn.memory import Memory
from afterturn.scope import MemoryScope
from afterturn.turn import Turn

ROOT: Final = MemoryScope.of("demo")


def tell(home: Path | None, *, keep: bool) -> bool:
    """Run the demo; whether everything it showed was true. Leaves nothing running."""
    screen = Screen()
    screen.say(
        "afterturn is long-term memory for programs that talk with people. After each turn of a "
        "conversation it is handed what was said; later it gives back what matters, and when "
        "somebody asks to be forgotten it erases, for good. All parts you see are the real ones."
    )
    began = time.monotonic()
    screen.step(
        "Starting PostgreSQL, Valkey (a Redis), three Celery workers, their clock, and Flower"
    )
    with running(home) as stack:
        screen.say(f"Ready after {time.monotonic() - began:.1f} s, in {stack.settings.home}.")
        if stack.flower_url:
            screen.say(
                f"Flower, which shows the workers, is at {stack.flower_url} (no login: only this "
                "machine reaches it, and it can change nothing)."
            )
        asyncio.run(_Story(screen, load(), stack).tell())
        if keep:
            _keep(screen, stack)
        screen.step("Stopping")
    _conclude(screen, time.monotonic() - began, home)
    return not screen.untrue


@dataclass(frozen=True)
class _Story:
    screen: Screen
    shipped: Shipped
    stack: Stack

    async def tell(self) -> None:
        settings = self.stack.settings
        database = Database(str(settings.database_url), settings, pool_size=2)
        try:
            async with Memory(settings) as memory:
                await self._remember(memory, database)
                before = await self._recall(memory)
                await self._erase(memory)
                await self._recall_again(memory, before)
        finally:
            await database.close()

    async def _remember(self, memory: Memory, database: Database) -> None:
        conversations = self.shipped.conversations
        messages = [m for conversation in conversations for m in conversation.messages]
        sessions = sum(len({m.session for m in each.messages}) for each in conversations)
        people = sorted({name for each in conversations for name in each.names or ()})
        self.screen.step("Remembering")
        self.screen.say(
            f"{len(messages)} messages of {len(conversations)} chats between "
            f"{', '.join(people[:-1])} and {people[-1]}, {sessions} sittings over "
            f"{_months(conversations)} months. Each is safe "
            "on disk as soon as it is handed over; the workers file it, learn facts from it and "
            "make it findable by its meaning."
        )
        began = time.monotonic()
        importer = Importer(memory, database, ROOT)
        await importer.hand_over(conversations)
        handed_over = time.monotonic() - began
        drain = Drain(memory, database, patience_seconds(memory.settings))
        helped = await drain.run(ROOT)
        await importer.account()
        tally, seconds = importer.tally, time.monotonic() - began
        self.screen.pairs(
            {
                "handed over": f"{tally.turns} messages in {handed_over:.2f} s",
                "filed and findable": f"{tally.recorded} after {seconds:.2f} s, "
                f"{tally.turns / seconds:.0f} messages/s",
                "facts learned": tally.facts,
            }
        )
        self.screen.claim(
            "every message was filed, by the workers",
            tally.recorded == len(messages) and not helped,
        )

    async def _recall(self, memory: Memory) -> list[Answer]:
        self.screen.step("Recalling")
        questions = self.shipped.questions
        began = time.perf_counter()
        await ask(memory, ROOT, questions[:1])
        first = time.perf_counter() - began
        answers = await ask(memory, ROOT, questions)
        self.screen.say(
            f"{len(questions)} questions, each asked in one of the chats. Nobody is "
            "waited for: this process ranks what it holds in memory. The number before a memory "
            "is its score, a star marks one that answers the question."
        )
        self.screen.answers(answers)
        right = sum(answer.is_right for answer in answers)
        median = statistics.median(answer.milliseconds for answer in answers)
        self.screen.gap()
        self.screen.say(
            f"Half of the answers took less than {median:.1f} ms. (The very first question loads "
            f"the memories and the language model: {first * 1000:.0f} ms, asked beforehand.)"
        )
        self.screen.claim(
            f"{right} of {len(answers)} questions were answered by what came back",
            right > len(answers) / 2,
        )
        return answers

    async def _erase(self, memory: Memory) -> None:
        erased = self.shipped.erased
        scope = ROOT.child(erased.conversation_id)
        first, second = erased.names or ("one", "another")
        self.screen.step(f"Erasing the chat between {first} and {second}")
        self.screen.say(
            "Meanwhile an assistant is in the middle of a turn of this chat: it began before the "
            "erase and will hand its turn over afterwards."
        )
        under_way = await memory.begin_turn(scope)
        receipt = await memory.forget(
            scope, requested_by="demo", reason="shown in step four of the demo"
        )
        self.screen.say(
            f"Done; `afterturn forget {'/'.join(scope.segments)}` does the same. The receipt:"
        )
        self.screen.pairs(receipt_rows(receipt))
        self.screen.claim("the erase is complete", receipt.outcome == "done")
        self.screen.claim(
            "the turn that was under way is refused, so it cannot bring anything back",
            await _is_refused(under_way, erased.messages[0].text),
        )

    async def _recall_again(self, memory: Memory, before: list[Answer]) -> None:
        self.screen.step("Asking the same questions again")
        gone = [answer.question for answer in before if answer.question.is_erased]
        kept = [answer for answer in before if not answer.question.is_erased]
        answers = await ask(memory, ROOT, gone)
        self.screen.answers(answers)
        self.screen.gap()
        self.screen.claim(
            "nothing of the erased chat comes back",
            not any(answer.memories for answer in answers),
        )
        looked, found = await remains(memory, ROOT, self.shipped.erased)
        self.screen.claim(
            f"in everything that memory still holds ({looked} rows) there is no word of it",
            looked > 0 and found == 0,
        )
        again = await ask(memory, ROOT, [answer.question for answer in kept])
        self.screen.claim(
            "the other chat is remembered as before",
            [a.is_right for a in again] == [a.is_right for a in kept],
        )


async def _is_refused(turn: Turn, text: str) -> bool:
    try:
        await turn.finish(text, "Noted.")
    except StaleTurn:
        return True
    return False


def _keep(screen: Screen, stack: Stack) -> None:
    screen.step("Keeping it running")
    screen.say(
        f"Look around: {stack.flower_url or 'Flower does not run'}; "
        f"AFTERTURN_HOME={stack.settings.home} afterturn status. Ctrl-C stops everything."
    )
    with contextlib.suppress(KeyboardInterrupt):
        stack.watch(screen.say)


def _conclude(screen: Screen, seconds: float, home: Path | None) -> None:
    where = "nothing is left of it" if home is None else f"its data is in {home}"
    screen.say(f"Everything has stopped, {where}. The demo took {seconds:.0f} s.")
    if screen.untrue:
        screen.say("Not true: " + "; ".join(screen.untrue))
        return
    screen.say(
        "All that was shown was true. Start it for yourself with `afterturn up`: the command "
        "stands beside the Python that ran this."
    )


def _months(conversations: Sequence[Conversation]) -> int:
    messages = (m for conversation in conversations for m in conversation.messages)
    times = [m.occurred_at for m in messages if m.occurred_at]
    return max(1, round((max(times) - min(times)).days / 30))
