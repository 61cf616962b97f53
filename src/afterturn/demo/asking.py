"""Asking the demo's questions, and judging what came back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from afterturn.demo.shipped import Question
from afterturn.memory import Memory
from afterturn.queries import MemoryQuery
from afterturn.records import MemoryRecord
from afterturn.retrieved import RetrievedMemory
from afterturn.scope import MemoryScope

LIMIT: Final = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for a question, and after how many milliseconds."""

    question: Question
    memories: Sequence[RetrievedMemory]
    milliseconds: float

    @property
    def is_right(self) -> bool:
        """Whether a message that answers the question, or a fact learned from it, is there."""
        return any(self.is_evidence(memory.record) for memory in self.memories)

    def is_evidence(self, record: MemoryRecord) -> bool:
        """Whether this record is what the question was about."""
        return not turns_of(record).isdisjoint(self.question.evidence)


async def ask(memory: Memory, root: MemoryScope, questions: Sequence[Question]) -> list[Answer]:
    """Ask each question in its conversation's scope, one after the other."""
    answers = []
    for question in questions:
        scope = root.child(question.conversation_id)
        began = time.perf_counter()
        found = await memory.retrieve(MemoryQuery(scope=scope, text=question.text, limit=LIMIT))
        milliseconds = (time.perf_counter() - began) * 1000
        answers.append(Answer(question, found.memories, milliseconds))
    return answers


def turns_of(record: MemoryRecord) -> set[str]:
    """The turn that a record is a side of, or the turns that a fact was learned from."""
    own = record.metadata.get("turn_id")
    return {source.turn_id for source in record.sources} | (
        {own} if isinstance(own, str) else set()
    )
