"""What stands between a ranked candidate and the answer.

In order: visibility, duplicates, importance, relevance, limit, characters. A candidate that a
gate turns away takes no place in the answer, and stands in `dropped` with its reason. Pure, so
that every source of candidates goes through the same gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from afterturn.errors import ScopeViolation
from afterturn.queries import Dropped, MemoryQuery, RetrievalResult
from afterturn.records import MemoryRecord
from afterturn.retrieval.rows import identity, message_of
from afterturn.retrieved import RetrievedMemory
from afterturn.scope import MemoryScope, covering_paths


class DropReason(StrEnum):
    """Why a candidate is not in the answer."""

    DUPLICATE = "duplicate"
    """The answer holds the same message or the same text already."""
    IMPORTANCE = "importance"
    RELEVANCE = "relevance"
    LIMIT = "limit"
    MAX_CHARS = "max_chars"


class Candidate(Protocol):
    """What the gates look at: a cached row, or what `admit` makes of a memory."""

    @property
    def record_id(self) -> str:
        """Unique within its scope."""

    @property
    def path(self) -> str:
        """The canonical path of its scope."""

    @property
    def layer(self) -> str:
        """The layer's name."""

    @property
    def text(self) -> str:
        """The memory."""

    @property
    def importance(self) -> float:
        """0 to 1."""

    @property
    def who(self) -> str:
        """Who said it, empty for nobody in particular."""

    @property
    def message(self) -> tuple[str, ...]:
        """Equal for the two layers of one message, empty for what is no message."""


@dataclass(frozen=True, slots=True)
class _Given:
    """The candidate that a source's memory is."""

    record_id: str
    path: str
    layer: str
    text: str
    importance: float
    who: str
    message: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """Which candidates passed, and which did not and why, by their places in the given order."""

    passed: tuple[int, ...]
    dropped: tuple[tuple[int, DropReason], ...]


@dataclass(slots=True)
class _Seen:
    """Texts and messages that a better candidate brought already."""

    texts: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    messages: dict[tuple[str, ...], set[str]] = field(default_factory=dict)

    def repeats(self, candidate: Candidate) -> bool:
        """Whether this candidate says again what came before.

        The same words of two speakers are two memories; words of nobody in particular are no
        news beside any. The two layers of a message are one even where their texts differ.
        """
        said = self.texts.get((candidate.path, candidate.text))
        if said and (candidate.who in said or not candidate.who or "" in said):
            return True
        if not self.messages:
            return False
        layers = self.messages.get(candidate.message)
        return layers is not None and candidate.layer not in layers

    def remember(self, candidate: Candidate) -> None:
        """From now on this candidate's text and message are known."""
        self.texts.setdefault((candidate.path, candidate.text), set()).add(candidate.who)
        if candidate.message:
            self.messages.setdefault(candidate.message, set()).add(candidate.layer)


def require_visible(scope: MemoryScope, candidates: Sequence[Candidate]) -> None:
    """Raise `ScopeViolation` if any candidate lies where the reader may not look.

    All of them, whatever their rank: dropping one quietly would leave the leak for the next
    reader.
    """
    visible = frozenset(covering_paths(scope.path))
    hidden = [c.record_id for c in candidates if c.path not in visible]
    if hidden:
        raise ScopeViolation(
            "The source returned records that this scope may not see",
            detail=f"{len(hidden)} records, the first {hidden[0]}",
            hint="Nothing was served. Check which scope the source was asked for.",
        )


def require_visible_memories(scope: MemoryScope, memories: Sequence[RetrievedMemory]) -> None:
    """`require_visible` for what a source returned."""
    require_visible(scope, [_given(memory.record) for memory in memories])


def passage(
    candidates: Sequence[Candidate], scores: Sequence[float], query: MemoryQuery
) -> Passage:
    """Take candidates, best first and with their scores, through all gates."""
    require_visible(query.scope, candidates)
    seen = _Seen()
    passed: list[int] = []
    dropped: list[tuple[int, DropReason]] = []
    chars = 0
    limit, max_chars = query.limit, query.max_chars
    least_importance, least_relevance = query.min_importance, query.min_relevance
    for at, (candidate, score) in enumerate(zip(candidates, scores, strict=True)):
        if seen.repeats(candidate):
            reason = DropReason.DUPLICATE
        elif least_importance is not None and not candidate.importance >= least_importance:
            reason = DropReason.IMPORTANCE
        elif least_relevance is not None and not score >= least_relevance:
            reason = DropReason.RELEVANCE
        elif len(passed) >= limit:
            reason = DropReason.LIMIT
        elif max_chars is not None and chars + len(candidate.text) > max_chars:
            reason = DropReason.MAX_CHARS
        else:
            passed.append(at)
            chars += len(candidate.text)
            # Only what is returned makes another one a duplicate: else both would be lost.
            seen.remember(candidate)
            continue
        dropped.append((at, reason))
    return Passage(tuple(passed), tuple(dropped))


def admit(
    memories: Sequence[RetrievedMemory], query: MemoryQuery, *, degraded: Sequence[str] = ()
) -> RetrievalResult:
    """The answer from a source's candidates, best first."""
    candidates = [_given(memory.record) for memory in memories]
    result = passage(candidates, [memory.score for memory in memories], query)
    return RetrievalResult(
        memories=tuple(memories[at] for at in result.passed),
        dropped=tuple(
            Dropped(record_id=memories[at].record.record_id, reason=reason)
            for at, reason in result.dropped
        ),
        degraded=tuple(degraded),
    )


def _given(record: MemoryRecord) -> _Given:
    turn_id, speaker, speaker_name = identity(record.metadata)
    return _Given(
        record_id=record.record_id,
        path=record.scope_path,
        layer=record.layer.value,
        text=record.text,
        importance=record.importance,
        who=speaker_name or speaker,
        message=message_of(record.scope_path, record.layer.value, turn_id, speaker),
    )
