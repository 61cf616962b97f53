"""Handing conversations over, and saying afterwards what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from afterturn.database import Database
from afterturn.errors import AfterturnError, MemoryContractError
from afterturn.importing.conversation import Conversation, Message
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
from afterturn.turns where path = $1 and turn_id = any($2)
"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message that memory did not take."""

    turn_id: str
    reason: str


@dataclass(slots=True)
class Tally:
    """Counts of messages. `taken` were new, `known` are there from an earlier import, `blank`
    have nothing to record; of `taken` and `known` together the others say what became of them."""

    conversations: int = 0
    messages: int = 0
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
        self.tally = Tally()

    async def hand_over(self, conversations: Sequence[Conversation]) -> None:
        """Hand every message over; each is durable when this returns.

        Raises `MemoryContractError`, before anything is handed over, when a conversation's scope
        is not possible, and `MemoryUnavailable` when the database goes away: importing the file
        again goes on from there.
        """
        scopes = [self._scope.child(each.conversation_id) for each in conversations]
        for scope, conversation in zip(scopes, conversations, strict=True):
            await self._conversation(scope, conversation)

    async def account(self, conversations: Sequence[Conversation]) -> None:
        """Add to the tally what became of the messages; to be called once they are processed."""
        for conversation in conversations:
            ids = [message.turn_id for message in conversation.messages]
            path = self._scope.child(conversation.conversation_id).stored_path
            row = await self._database.row(_OUTCOMES, path, ids)
            self.tally.recorded += row["recorded"]
            self.tally.degraded += row["degraded"]
            self.tally.dead += row["dead"]
            self.tally.facts += row["facts"]

    async def _conversation(self, scope: MemoryScope, conversation: Conversation) -> None:
        ids = [message.turn_id for message in conversation.messages]
        rows = await self._database.rows(_KNOWN, scope.stored_path, ids)
        known = {row["turn_id"] for row in rows}
        todo = iter(conversation.messages)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(IN_FLIGHT):
                    group.create_task(self._messages(scope, conversation.names, todo, known))
        except* AfterturnError as several:
            raise several.exceptions[0] from None
        self.tally.conversations += 1

    async def _messages(
        self,
        scope: MemoryScope,
        names: tuple[str, str],
        todo: Iterator[Message],
        known: set[str],
    ) -> None:
        for message in todo:
            if message.turn_id in known:
                self.tally.known += 1
            else:
                await self._message(scope, names, message)
            self.tally.messages += 1
            self._on_message()

    async def _message(self, scope: MemoryScope, names: tuple[str, str], message: Message) -> None:
        turn = await self._memory.begin_turn(
            scope, session=message.session, turn_id=message.turn_id
        )
        try:
            ticket = await turn.finish(
                message.text if message.by_first_speaker else None,
                None if message.by_first_speaker else message.text,
                names=names,
                metadata={"caption": message.caption} if message.caption else None,
                occurred_at=message.occurred_at,
            )
        except MemoryContractError as error:
            self.tally.refused.append(Refusal(message.turn_id, str(error)))
            return
        if ticket.status == "blank":
            self.tally.blank += 1
        else:
            self.tally.taken += 1
