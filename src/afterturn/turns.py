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
    """Turns of one scope, oldest first, to learn from, and facts already known there.

    `related` is filled for an extractor that sets `related` to how many it wants to see; they are
    of exactly this scope.
    """

    scope: MemoryScope
    turns: tuple[FinishedTurn, ...]
    related: tuple[MemoryRecord, ...] = ()


class TokenUsage(Model):
    """What an extraction cost: calls of a model, tokens sent and received."""

    calls: int = Field(default=0, ge=0)
    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            calls=self.calls + other.calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
        )


Cause = Literal["", "unavailable", "unusable"]


class ExtractionResult(Model):
    """Facts learned, or `degraded` with a reason: nothing could be learned.

    What becomes of degraded turns is said by `cause`. Empty: they are tried again, each by itself,
    up to the limit. `unavailable`: the model is out of reach and nothing is wrong with the turns,
    so that they wait, at least `retry_after_seconds`, and no attempt is counted. `unusable`: the
    model answers, and repeating the call would not help; turns of a batch are tried one by one, a
    single one is given up. A reason without `degraded` is a note on turns that are done.
    """

    records: tuple[MemoryRecord, ...] = ()
    degraded: bool = False
    reason: str = ""
    cause: Cause = ""
    retry_after_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    usage: TokenUsage = TokenUsage()
