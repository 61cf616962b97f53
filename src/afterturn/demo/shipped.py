"""What the demo ships with: the conversations, and questions whose answers are known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from afterturn.importing.conversation import Conversation, turn_id_of
from afterturn.importing.formats import read_file

_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the conversation it is asked in, and the turns that answer it."""

    text: str
    conversation_id: str
    evidence: frozenset[str]
    is_erased: bool


@dataclass(frozen=True, slots=True)
class Shipped:
    """Conversations and questions; one conversation is the one that the demo erases."""

    conversations: Sequence[Conversation]
    questions: Sequence[Question]

    @property
    def erased(self) -> Conversation:
        """The conversation whose questions are marked as erased."""
        marked = {question.conversation_id for question in self.questions if question.is_erased}
        (erased,) = (each for each in self.conversations if each.conversation_id in marked)
        return erased


def load() -> Shipped:
    """Read the two files beside this one."""
    reading = read_file(_HERE / "conversations.json")
    if reading.defects:
        raise ValueError(f"conversations.json: {reading.defects[0]}")
    questions = [
        Question(
            text=each["question"],
            conversation_id=each["scope"],
            evidence=frozenset(turn_id_of(each["scope"], number) for number in each["evidence"]),
            is_erased=each["erased"],
        )
        for each in json.loads((_HERE / "questions.json").read_text("utf-8"))
    ]
    return Shipped(tuple(reading.conversations), tuple(questions))
