"""Handing conversations over, and saying afterwards what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from afterturn.database import Database
from afterturn.errors import AfterturnError, MemoryContractError
from afterturn.importing.conversation import Conversation, Message, id_of, turn_id_of
from afterturn.memory import Memory
from afterturn.scope import MemoryScope

IN_FLIGHT: Final = 8
"""Messages under way at once: commits share their fsync, and memory stays bounded."""

_KNOWN = "select turn_id from afterturn.turns where path = $1 and turn_id = any($2)"
# `recorded` is null for a turn that was given up.
_OUTCOMES = """
select count(*) filter (where recorded_at is not null) as recorded,
    count(*) filter (where outcome = 'degraded') as degraded,
    count(*) filter (where outcome = 'dead') as dead,
    coalesce(sum(extracted), 0)::bigint as facts
from afterturn.turns where path = $1 and turn_id >= $2 and turn_id < $3
"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A turn that memory did not take, or a whole conversation."""

    turn_id: str
    reason: str


@dataclass(slots=True)
class Tally:
    """Counts of turns. `taken` were new, `known` are there from an earlier import, `blank` have
    nothing to record; the others say what became of all that these conversations ever gave."""

    conversations: int = 0
    turns: int = 0
    taken: int = 0
    known: int = 0
    blank: int = 0
    refused: list[Refusal] = field(default_factory=list)
    recorded: int = 0
    degraded: int = 0
    dead: int = 0
    facts: int = 0


class Importer:
    """Imports below one scope: each conversation into a child scope named by its id.

    Messages are handed over `IN_FLIGHT` at a time, so neighbours may be staged out of order; their
    times keep the order. Handing over what is known already changes nothing.
    """

    def __init__(
        self,
        memory: Memory,
        database: Database,
        scope: MemoryScope,
        *,
        on_message: Callable[[], None] = lambda: None,
    ) -> None:
        self._memory = memory
        self._database = database
        self._scope = scope
        self._on_message = on_message
        self._handed_over: list[tuple[str, str]] = []
        self.tally = Tally()

    async def hand_over(self, conversations: Iterable[Conversation]) -> None:
        """Hand every turn over; each is durable when this returns.

        Takes the conversations one by one, so they may come from a stream. Raises
        `MemoryContractError`, before anything is handed over, when the scope has no room for
        another one below it, and `MemoryUnavailable` when the database goes away: importing the
        file again goes on from there.
        """
        self._scope.child("conversation")
        for conversation in conversations:
            try:
                scope = self._scope.child(conversation.conversation_id)
            except MemoryContractError as error:
                name = id_of(conversation.conversation_id)[:80]
                self.tally.refused.append(Refusal(name, str(error)))
                continue
            await self._conversation(scope, conversation)

    async def account(self) -> None:
        """Add to the tally what became of the turns; to be called once they are processed."""
        for path, prefix in self._handed_over:
            # The colon ends the conversation's part of a turn id, and a semicolon comes next.
            row = await self._database.row(_OUTCOMES, path, prefix, f"{prefix[:-1]};")
            self.tally.recorded += row["recorded"]
            self.tally.degraded += row["degraded"]
            self.tally.dead += row["dead"]
            self.tally.facts += row["facts"]

    async def _conversation(self, scope: MemoryScope, conversation: Conversation) -> None:
        ids = [message.turn_id for message in conversation.messages]
        rows = await self._database.rows(_KNOWN, scope.stored_path, ids)
        known = {row["turn_id"] for row in rows}
        todo = iter(conversation.messages)
        # Without times the order of staging is the only one there is.
        dated = all(message.occurred_at is not None for message in conversation.messages)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(IN_FLIGHT if dated else 1):
                    group.create_task(self._messages(scope, conversation.names, todo, known))
        except* AfterturnError as several:
            raise several.exceptions[0] from None
        if not conversation.continues:
            self.tally.conversations += 1
            prefix = turn_id_of(conversation.conversation_id, "")
            self._handed_over.append((scope.stored_path, prefix))

    async def _messages(
        self,
        scope: MemoryScope,
        names: tuple[str, str] | None,
        todo: Iterator[Message],
        known: set[str],
    ) -> None:
        for message in todo:
            if message.turn_id in known:
                self.tally.known += 1
            else:
                await self._message(scope, names, message)
            self.tally.turns += 1
            self._on_message()

    async def _message(
        self, scope: MemoryScope, names: tuple[str, str] | None, message: Message
    ) -> None:
        try:
            turn = await self._memory.begin_turn(
                scope, session=message.session, turn_id=message.turn_id
            )
            ticket = await turn.finish(
                message.query,
                message.answer,
                names=names,
                metadata={"caption": message.caption} if message.caption else None,
                occurred_at=message.occurred_at,
            )
        except MemoryContractError as error:
            self.tally.refused.append(Refusal(message.turn_id, str(error)))
            return
        if ticket.status == "blank":
            self.tally.blank += 1
        elif ticket.known:
            self.tally.known += 1
        else:
            self.tally.taken += 1
