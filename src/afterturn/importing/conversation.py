"""A conversation as an importer hands it over, whatever format it came in."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

DEFECTS_MAX: Final = 1_000
"""More defects than this are counted and not kept: a file may have one in every line."""

# A turn id may hold these alone; see `afterturn.intake`.
_NOT_IN_AN_ID: Final = re.compile(r"[^A-Za-z0-9_:.-]")


@dataclass(frozen=True, slots=True)
class Message:
    """What becomes one turn: a message of a chat between two people, or a question with its
    answer.

    `occurred_at` is aware, or None where the file has no time; within a session it grows.
    """

    turn_id: str
    query: str | None
    answer: str | None
    session: str | None = None
    caption: str | None = None
    occurred_at: datetime | None = None

    @property
    def text(self) -> str:
        """All that was said."""
        return "\n".join(side for side in (self.query, self.answer) if side)


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a conversation, in order, or the next part of a long one.

    `names` are the two speakers', the first one's first (that one stands on the user's side of
    every turn); None for a user and an assistant. `continues`: an earlier part came before.
    """

    conversation_id: str
    names: tuple[str, str] | None
    messages: tuple[Message, ...]
    continues: bool = False


@dataclass(frozen=True, slots=True)
class Defect:
    """What is wrong in a file and where; never with text of a message."""

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" if self.place else self.reason


@dataclass(slots=True)
class Findings:
    """What was found in a file besides its conversations.

    `left_out` counts by reason what has no place in a memory (tool calls, images, …); `undated`
    counts messages without a readable time; `defects_more` those beyond `DEFECTS_MAX`.
    """

    defects: list[Defect] = field(default_factory=list)
    defects_more: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    undated: int = 0

    def defect(self, place: str, reason: str) -> None:
        """One more thing that is wrong."""
        if len(self.defects) < DEFECTS_MAX:
            self.defects.append(Defect(place, reason))
        else:
            self.defects_more += 1


@dataclass(slots=True)
class Reading(Findings):
    """A whole file: its conversations in memory, and what was found besides."""

    conversations: list[Conversation] = field(default_factory=list)


class Malformed(Exception):
    """A conversation that cannot be read; it is left out and reported."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(place, reason)
        self.place = place
        self.reason = reason


def turn_id_of(conversation_id: str, message_id: str) -> str:
    """`{conversation}:{message}`, with `_` for each character that a turn id may not hold."""
    return id_of(f"{conversation_id}:{message_id}")


def id_of(text: str) -> str:
    """The text with `_` for each character that an id may not hold."""
    return _NOT_IN_AN_ID.sub("_", text)
