"""Finished turns for the tests of extraction."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from afterturn.extraction.rules import RuleExtractor
from afterturn.records import MemoryRecord
from afterturn.scope import MemoryScope
from afterturn.turns import ExtractionRequest, FinishedTurn

SCOPE = MemoryScope.of("acme", "nora", "c-1")
SAID_AT = datetime(2025, 5, 9, 12, tzinfo=UTC)


def turn(
    query: str | None, answer: str | None = None, *, turn_id: str = "t-1", **metadata: Any
) -> FinishedTurn:
    """A turn in `SCOPE`."""
    return FinishedTurn(
        turn_id=turn_id,
        scope=SCOPE,
        query=query,
        answer=answer,
        occurred_at=SAID_AT,
        metadata=metadata,
    )


def request(*turns: FinishedTurn, related: tuple[MemoryRecord, ...] = ()) -> ExtractionRequest:
    """A request for turns of `SCOPE`."""
    return ExtractionRequest(scope=SCOPE, turns=turns, related=related)


async def records(*turns: FinishedTurn) -> tuple[MemoryRecord, ...]:
    """What the rules make of the turns."""
    return (await RuleExtractor().extract(request(*turns))).records


async def facts(query: str | None, answer: str | None = None, **metadata: Any) -> list[str]:
    """The texts of what the rules make of one turn."""
    return [record.text for record in await records(turn(query, answer, **metadata))]
