"""A record as it comes back from a question."""

from __future__ import annotations

from pydantic import Field

from afterturn.model import Model
from afterturn.records import MemoryRecord


class RetrievedMemory(Model):
    """A record that came back, its score, and the signals the score was summed from."""

    record: MemoryRecord
    score: float
    signals: dict[str, float] = Field(default_factory=dict)
