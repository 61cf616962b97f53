"""A finished turn as extractors see it, and what becomes of one."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from afterturn.intake import Metadata, Time, TurnId
from afterturn.model import Model
from afterturn.records import MemoryRecord
from afterturn.scope import MemoryScope

StageStatus = Literal["staged", "blank", "refused", "unavailable"]
TurnStatus = Literal["waiting", "done", "degraded", "dead", "blank", "refused", "unavailable"]


class FinishedTurn(Model):
    """One exchange as it was handed over. `metadata` may hold `session` and speaker names."""

    turn_id: TurnId
    scope: MemoryScope
    query: str | None
    answer: str | None
    occurred_at: Time | None = None
    metadata: Metadata = Field(default_factory=dict)


class TurnOutcome(Model):
    """What became of a turn.

    `recorded` and `extracted` count records and facts. `degraded`: recorded, and extraction was
    given up; `dead`: recording was given up; `refused`: an erase took the turn.
    """

    status: TurnStatus
    recorded: int = 0
    extracted: int = 0
    reason: str = ""


class ExtractionRequest(Model):
    """Turns of one scope to learn from, and facts already known there."""

    scope: MemoryScope
    turns: tuple[FinishedTurn, ...]
    related: tuple[MemoryRecord, ...] = ()


class ExtractionResult(Model):
    """Facts learned. `degraded` with a reason: the model was missing, try again later."""

    records: tuple[MemoryRecord, ...] = ()
    degraded: bool = False
    reason: str = ""
