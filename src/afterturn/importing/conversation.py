"""A conversation as an importer hands it over, whatever format it came in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

# A turn id may hold these alone; see `afterturn.intake`.
_NOT_IN_AN_ID: Final = re.compile(r"[^A-Za-z0-9_:.-]")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a two-person chat, which becomes one turn with one side.

    `occurred_at` is aware; within a session it grows from message to message.
    """

    turn_id: str
    session: str
    by_first_speaker: bool
    text: str
    caption: str | None
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class Conversation:
    """All messages of a conversation, in order. `names` are the two speakers', the first one's
    first: that one stands on the user's side of every turn."""

    conversation_id: str
    names: tuple[str, str]
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Defect:
    """What is wrong in a file and where; never with text of a message."""

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" if self.place else self.reason


@dataclass(slots=True)
class Reading:
    """What a file gave: whole conversations, and the defects of those that are left out."""

    conversations: list[Conversation] = field(default_factory=list)
    defects: list[Defect] = field(default_factory=list)


def turn_id_of(conversation_id: str, message_id: str) -> str:
    """`{conversation}:{message}`, with `_` for each character that a turn id may not hold."""
    return _NOT_IN_AN_ID.sub("_", f"{conversation_id}:{message_id}")
