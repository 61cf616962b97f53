"""The extractor that works out of the box: a few dozen patterns for plain English, no model.

It finds what people say of themselves in so many words: names, where they live, work, family and
pets, likes, diet and health, plans with a date, what they ask to have remembered, what is no
longer so. It understands nothing: irony, hints, other people's news, other languages and most
long sentences pass it by. That a fact replaces an earlier one it knows of a few things only, of
which everybody has one at a time (`attributes`). Use a model for more. What it finds, it words so
that the sentence stands alone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from afterturn.extraction import patterns
from afterturn.extraction.attributes import attribute_of
from afterturn.extraction.facts import ATTRIBUTE, SUBJECT, fact_id, fact_key
from afterturn.extraction.patterns import Kind
from afterturn.extraction.policy import FactPolicy
from afterturn.extraction.retelling import Speaker, retell
from afterturn.extraction.run import EXTRACTED_ORIGIN
from afterturn.extraction.sentences import clauses, pieces, statements
from afterturn.records import MemoryRecord, Source
from afterturn.records import Speaker as Side
from afterturn.turns import ExtractionRequest, ExtractionResult, FinishedTurn

FACTS_PER_TURN_MAX: Final = 20
NAME_CHARACTERS_MAX: Final = 200

_WORDS_MAX: Final = 30
_OPENERS_MAX: Final = 6
_PERSONAL: Final = re.compile(
    r"\b(?:i|im|ive|we|my|our|remember|remind|forget|mind|note|fyi|record|call)\b", re.IGNORECASE
)
_LAST_MARK: Final = re.compile(r".*[\w\"'%)+#$€£]", re.DOTALL)
_FILLER: Final = re.compile(
    r"\b(?:too|as well|though|haha|hehe|lol|btw|by the way|you know|tbh|actually|to be honest|"
    r"of course|right)$",
    re.IGNORECASE,
)
_MAY_BE_VAGUE: Final = frozenset(
    {patterns.NOTE, patterns.REMINDER, patterns.PLAN, patterns.RELATION, patterns.PET}
)


@dataclass(frozen=True, slots=True)
class _Fact:
    kind: Kind
    text: str
    side: Side
    speaker: str
    attribute: str | None = None


class RuleExtractor:
    """`MemoryExtractorPort` without a model. See the module for what to expect of it.

    With two speakers' names in the turn's metadata (`names`) both sides are heard, else only the
    user's. At most 20 facts a turn, the most important ones; the event loop gets its turn between
    pieces of a long text.
    """

    def __init__(self, policy: FactPolicy | None = None) -> None:
        self._policy = policy or FactPolicy()

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        """Facts of each turn, in the order of what was said."""
        records = [
            self._record(turn, fact) for turn in request.turns for fact in await _facts(turn)
        ]
        return ExtractionResult(records=tuple(records))

    def _record(self, turn: FinishedTurn, fact: _Fact) -> MemoryRecord:
        about = {SUBJECT: fact.speaker, ATTRIBUTE: fact.attribute} if fact.attribute else {}
        layer = self._policy.layer(fact.kind.layer)
        record = MemoryRecord(
            record_id="fact",
            text=fact.text,
            scope_path=self._policy.scope(turn.scope, layer).path,
            layer=layer,
            origin=EXTRACTED_ORIGIN,
            metadata={"kind": fact.kind.name, "speaker": fact.side, **about},
            importance=fact.kind.importance,
            occurred_at=turn.occurred_at,
            sources=(Source(turn_id=turn.turn_id, turn_path=turn.scope.path),),
        )
        return record.model_copy(update={"record_id": fact_id(fact.text, fact_key(record))})


async def _facts(turn: FinishedTurn) -> list[_Fact]:
    found: dict[str, _Fact] = {}
    for side, text, speaker in _sides(turn):
        for piece in pieces(text):
            for fact in _facts_said(piece, side, speaker):
                found.setdefault(fact.text.casefold(), fact)
            await asyncio.sleep(0)
    facts = list(found.values())
    best = sorted(range(len(facts)), key=lambda at: -facts[at].kind.importance)[:FACTS_PER_TURN_MAX]
    return [facts[at] for at in sorted(best)]


def _sides(turn: FinishedTurn) -> Iterator[tuple[Side, str, Speaker]]:
    names = _names(turn.metadata.get("names"))
    if names is None:
        name = _name(turn.metadata.get("speaker_name")) or "the user"
        yield "user", turn.query or "", Speaker(name)
    else:
        first, second = names
        yield "user", turn.query or "", Speaker(first, listener=second)
        yield "assistant", turn.answer or "", Speaker(second, listener=first)


def _names(value: object) -> tuple[str, str] | None:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        return None
    first, second = _name(value[0]), _name(value[1])
    return (first, second) if first and second else None


def _name(value: object) -> str | None:
    """The name on one line; `None` for anything that can be no name."""
    if not isinstance(value, str) or len(value) > NAME_CHARACTERS_MAX:
        return None
    return " ".join(value.split()) or None


def _facts_said(piece: str, side: Side, speaker: Speaker) -> Iterator[_Fact]:
    for statement in statements(piece):
        if _PERSONAL.search(statement):
            for kind, words in _stated(statement, speaker):
                told = _told(words, kind, speaker)
                if told:
                    yield _Fact(kind, told, side, speaker.name, attribute_of(words))


def _stated(statement: str, speaker: Speaker) -> Iterator[tuple[Kind, str]]:
    """The facts of a statement, still in the speaker's words."""
    asked = patterns.REMEMBER.match(statement)
    reminder = patterns.REMIND.match(statement)
    # Between two people "remember to rest" is advice; an assistant is asked to remember.
    if asked and (speaker.listener is None or patterns.ONESELF.search(asked["what"])):
        yield patterns.NOTE, asked["what"]
    elif reminder and (speaker.listener is None or " me to " in reminder[0]):
        yield patterns.REMINDER, f"I want to be reminded to {reminder['what']}"
    else:
        for pattern in patterns.INTRODUCED:
            introduced = pattern.match(statement)
            if introduced:
                yield patterns.NAMED, f"my name is {introduced['name']}"
        for clause in clauses(statement):
            if patterns.CONDITIONAL.match(clause):
                return
            if clause.count('"') % 2 == 0:  # else it is part of a quotation
                yield from _claimed(_opened(clause))


def _claimed(clause: str) -> Iterator[tuple[Kind, str]]:
    kind = next((kind for kind, pattern in patterns.RULES if pattern.match(clause)), None)
    if kind is not None:
        yield kind, clause
    for mentioned, pattern in patterns.MENTIONED:
        if kind is not mentioned:
            for match in pattern.finditer(clause):
                yield mentioned, f"my {match['who'].lower()} is called {match['name']}"


def _opened(clause: str) -> str:
    """The clause without what people say first; a time moves to its end."""
    at = 0
    for _ in range(_OPENERS_MAX):
        opener = patterns.OPENER.match(clause, at)
        if opener is None:
            break
        at = opener.end()
    time = patterns.LEADING_TIME.match(clause, at)
    if time is None:
        return clause[at:]
    when = time["when"][0].lower() + time["when"][1:]
    return f"{_trimmed(clause[time.end() :])} {when}"


def _told(words: str, kind: Kind, speaker: Speaker) -> str | None:
    words = _trimmed(words)
    if len(words.split()) > _WORDS_MAX:
        return None
    if kind not in _MAY_BE_VAGUE and patterns.VAGUE.search(words):
        return None
    if kind is patterns.NAMED and words.endswith(f" {speaker.name}"):
        return None
    return retell(words, speaker)


def _trimmed(words: str) -> str:
    """Without the small talk, marks and emoji that a clause trails off with."""
    while True:
        last = _LAST_MARK.match(words)
        shorter = _FILLER.sub("", last[0] if last else "")
        if shorter == words:
            return words
        words = shorter
