"""What a reader asks and what comes back."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import Field, StrictStr

from afterturn.errors import MemoryContractError
from afterturn.intake import Time
from afterturn.model import Model
from afterturn.records import MemoryLayer
from afterturn.render import render_memories
from afterturn.retrieved import RetrievedMemory
from afterturn.scope import MemoryScope


class MemoryQuery(Model):
    """One question to memory.

    `limit` is the largest number of memories returned (0 or less returns none, and says so in
    `dropped`). `layers` limits what is looked at; `min_relevance` is a bound on the score, in
    standard deviations above the mean of the scope; `min_importance` is 0 to 1; `max_chars`
    bounds the summed length of the returned texts; `now` is the reader's time for words such
    as "yesterday" and defaults to the current time.

    `recency_weight` and `importance_weight` are options, 0 by default: what a record of this
    moment, or one of importance 1, gains over others, in about the unit of the other signals
    (see the page on ranking). A record loses half of the gain in 30 days.
    """

    scope: MemoryScope
    text: StrictStr
    limit: int = 8
    layers: tuple[MemoryLayer, ...] | None = None
    min_relevance: float | None = None
    min_importance: float | None = None
    max_chars: int | None = None
    now: Time | None = None
    recency_weight: float = Field(default=0.0, ge=0.0, le=100.0)
    importance_weight: float = Field(default=0.0, ge=0.0, le=100.0)


def checked_query(query: MemoryQuery) -> MemoryQuery:
    """The query itself; anything else, a text among them, is refused by its type."""
    if not isinstance(query, MemoryQuery):
        raise MemoryContractError(
            "A query must be a MemoryQuery",
            detail=f"got {type(query).__name__}",
            hint="Ask MemoryQuery(scope=scope, text=...), or a turn: turn.retrieve(text).",
        )
    return query


class Dropped(Model):
    """A candidate that was not returned, and why."""

    record_id: str
    reason: str


class RetrievalResult(Model):
    """Memories, best first; the candidates that were not returned; the arms that were missing."""

    memories: tuple[RetrievedMemory, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    degraded: tuple[str, ...] = ()

    def render(
        self,
        *,
        max_chars: int | None = None,
        max_tokens: int | None = None,
        count_tokens: Callable[[str], int] | None = None,
    ) -> str:
        """The memories as one delimited plain text block for a prompt; empty when there are none.

        Text of a memory can neither close the block nor open another one. The query is not part.

        `max_chars` and `max_tokens` bound the whole block: memories that do not fit are left out,
        never cut. Tokens are counted by `count_tokens` of a text, by default with an estimate that
        is rather too high.
        """
        return render_memories(
            self.memories, max_chars=max_chars, max_tokens=max_tokens, count_tokens=count_tokens
        )
