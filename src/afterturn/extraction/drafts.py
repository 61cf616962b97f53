"""A model's facts made into records: cleaned, held to their bounds, or refused one by one."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from afterturn.extraction.facts import ATTRIBUTE, KEY_CHARACTERS_MAX, SUBJECT, fact_id, fact_key
from afterturn.extraction.policy import FactPolicy
from afterturn.extraction.run import EXTRACTED_ORIGIN, RECORD_TEXT_BYTES_MAX
from afterturn.intake import clean_text
from afterturn.records import MemoryRecord, Source
from afterturn.turns import FinishedTurn

FACTS_PER_TURN_MAX: Final = 40
_SCOPES: Final = ("scope", "scope_path", "path", "namespace", "user_id", "tenant")
_SPACES: Final = re.compile(r"\s+")


class Drafts:
    """Judges the facts of one request's answers and counts what it does not take as it is."""

    def __init__(self, turns: Sequence[FinishedTurn], policy: FactPolicy) -> None:
        self._turns = turns
        self._policy = policy
        self._records: list[MemoryRecord] = []
        self._notes: Counter[str] = Counter()

    @property
    def records(self) -> tuple[MemoryRecord, ...]:
        """What may be kept so far."""
        return tuple(self._records)

    @property
    def note(self) -> str:
        """What was refused or ignored, as a short code; empty when nothing was."""
        return ", ".join(f"{what} {count}" for what, count in self._notes.items())

    def add(
        self, facts: Iterable[dict[str, Any]], numbers: Sequence[int], *, is_cut: bool = False
    ) -> None:
        """Judge facts learned from the turns with these numbers (1 is the first)."""
        if is_cut:
            self._notes["answers cut off"] += 1
        for fact in facts:
            if len(self._records) >= FACTS_PER_TURN_MAX * len(self._turns):
                self._notes["refused: too many"] += 1
            elif defect := self._add(fact, numbers):
                self._notes[f"refused: {defect}"] += 1

    def _add(self, fact: dict[str, Any], numbers: Sequence[int]) -> str:
        text = _SPACES.sub(" ", clean_text(fact["text"])).strip()
        if not text:
            return "no text"
        if len(text.encode()) > RECORD_TEXT_BYTES_MAX:
            return "too long"
        if any(fact.get(name) for name in _SCOPES):
            self._notes["scope ignored"] += 1
        layer = self._policy.layer(fact.get("layer"))
        sources = self._sources(fact.get("turns", fact.get("turn")), numbers)
        last = self._turn_of(sources[-1]) if sources else self._turns[numbers[-1] - 1]
        record = MemoryRecord(
            record_id="fact",
            text=text,
            scope_path=self._policy.scope(last.scope, layer).path,
            layer=layer,
            origin=EXTRACTED_ORIGIN,
            metadata=_about(fact),
            importance=_importance(fact.get("importance")),
            occurred_at=last.occurred_at,
            sources=sources,
        )
        record_id = fact_id(text, fact_key(record))
        self._records.append(record.model_copy(update={"record_id": record_id}))
        return ""

    def _sources(self, given: Any, numbers: Sequence[int]) -> tuple[Source, ...]:
        """The turns a fact names of those that were shown; all of them where it names none."""
        listed = given if isinstance(given, list) else [given]
        named = sorted({number for each in listed if (number := _number(each)) in numbers})
        return tuple(
            Source(turn_id=turn.turn_id, turn_path=turn.scope.path)
            for turn in (self._turns[number - 1] for number in named or numbers)
        )

    def _turn_of(self, source: Source) -> FinishedTurn:
        return next(turn for turn in self._turns if turn.turn_id == source.turn_id)


def _about(fact: dict[str, Any]) -> dict[str, Any]:
    subject, attribute = fact.get("subject"), fact.get("attribute")
    if not isinstance(subject, str) or not isinstance(attribute, str):
        return {}
    about = {SUBJECT: clean_text(subject).strip(), ATTRIBUTE: clean_text(attribute).strip()}
    return about if all(0 < len(part) <= KEY_CHARACTERS_MAX for part in about.values()) else {}


def _importance(given: Any) -> float:
    """0 to 1; models that think in tens or hundreds are understood."""
    try:
        value = float(given) if not isinstance(given, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        return 0.5
    if math.isnan(value):
        return 0.5
    for scale in (1.0, 10.0, 100.0):
        if 0.0 <= value <= scale:
            return value / scale
    return 0.0 if value < 0 else 1.0


def _number(given: Any) -> int:
    if isinstance(given, bool):
        return 0
    if isinstance(given, str) and given.strip().isdecimal() and len(given) < 10:
        return int(given)
    return given if isinstance(given, int) else 0
