"""The facts in a model's answer, whatever it has put around them.

Thoughts, fences, prose before and after, another name for the list, and an end that was cut off
are all survived; each try is bounded, so that a long answer costs what its length costs.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from typing import Any, Final

ANSWER_CHARACTERS_MAX: Final = 1 << 20
_STARTS_MAX: Final = 50
_DEPTH_MAX: Final = 4

_THOUGHT: Final = re.compile(r"<(think|thinking|thought|reasoning)>")
_THOUGHT_END: Final = re.compile(r"</(?:think|thinking|thought|reasoning)>")
_START: Final = re.compile(r"[\[{]")
_BETWEEN: Final = re.compile(r"[\s,]*(?=\{)")
_DECODER: Final = json.JSONDecoder(strict=False)
_TEXT_KEYS: Final = ("fact", "content", "memory", "statement")


@dataclass(frozen=True, slots=True)
class Answer:
    """Facts as the model wrote them, unjudged. `is_cut`: its end was missing."""

    facts: tuple[dict[str, Any], ...]
    is_cut: bool = False


def read_answer(text: str) -> Answer | None:
    """The facts of an answer; `None` where it holds no list of facts."""
    text = _without_thoughts(text[:ANSWER_CHARACTERS_MAX])
    starts = [match.start() for match in itertools.islice(_START.finditer(text), _STARTS_MAX)]
    passed = 0
    single: Answer | None = None
    for start in starts:
        if start < passed:
            continue
        try:
            value, passed = _DECODER.raw_decode(text, start)
        except (json.JSONDecodeError, RecursionError):
            continue
        facts = _facts_in(value)
        if facts and (len(facts) > 1 or facts[0] is not value):
            return Answer(tuple(facts))
        if facts is not None and single is None:
            single = Answer(tuple(facts))
    return _cut_off(text, starts) or single


def _without_thoughts(text: str) -> str:
    kept = []
    at = 0
    while opening := _THOUGHT.search(text, at):
        end = text.find(f"</{opening[1]}>", opening.end())
        if end < 0:
            break
        kept.append(text[at : opening.start()])
        at = end + len(opening[1]) + 3
    kept.append(text[at:])
    *_, rest = _THOUGHT_END.split("".join(kept))  # of thoughts whose beginning was cut off
    return rest


def _facts_in(value: Any, depth: int = 0) -> list[dict[str, Any]] | None:
    """The first list of facts in a JSON value, under whatever name."""
    if isinstance(value, list):
        facts = [fact for fact in map(_fact, value) if fact is not None]
        return facts if facts or not value else None
    if not isinstance(value, dict) or depth == _DEPTH_MAX:
        return None
    if not value:
        return []
    empty = None
    for each in value.values():
        if isinstance(each, (list, dict)):
            found = _facts_in(each, depth + 1)
            if found:
                return found
            empty = found if found is not None else empty
        elif isinstance(each, str) and each.lstrip().startswith(("{", "[")):
            inner = read_answer(each) if depth == 0 else None  # arguments, encoded once more
            if inner is not None and inner.facts:
                return list(inner.facts)
    if empty is None and _fact(value) is value:
        return [value]  # a single fact without its list
    return empty


def _fact(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str) and value.strip():
        return {"text": value}
    if isinstance(value, dict):
        if isinstance(value.get("text"), str):
            return value
        for key in _TEXT_KEYS:
            if isinstance(value.get(key), str):
                return {**value, "text": value[key]}
    return None


def _cut_off(text: str, starts: list[int]) -> Answer | None:
    """The whole facts of a list that never ends."""
    for start in starts:
        if text[start] != "[":
            continue
        facts = []
        at = start + 1
        while between := _BETWEEN.match(text, at):
            try:
                value, at = _DECODER.raw_decode(text, between.end())
            except (json.JSONDecodeError, RecursionError):
                break
            fact = _fact(value)
            if fact is not None:
                facts.append(fact)
        if facts:
            return Answer(tuple(facts), is_cut=True)
    return None
