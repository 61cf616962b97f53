"""The rules look at any text in bounded steps: hostile text costs what plain text costs."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterturn.extraction import patterns, retelling, rules, sentences
from afterturn.extraction.sentences import PIECE_CHARACTERS, SENTENCE_CHARACTERS
from tests.extraction.turns import facts

# Words that bring the rules as far as they go before they fail.
WORDS = (
    *("I", "I'm", "my", "we", "am", "love", "really", "not", "any", "more", "moved", "to", "in"),
    *("on", "the", "next", "have", "a", "sister", "Anna", "older", "is", "favourite", "remember"),
    *("that", "and", "but", ",", ".", "!", "?", "(", "\n", '"', "'", "```", ">", "-", "x", "😀"),
)


def repeats(parsed: Any, *, unbounded: bool = False) -> Iterator[str]:
    """Every repeat without a bound that stands inside another one, as its path in the tree."""
    constants = importlib.import_module("re._constants")
    many = {constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT}
    for operation, argument in parsed:
        inner = unbounded
        if operation in many:
            is_endless = argument[1] == constants.MAXREPEAT
            if is_endless and unbounded:
                yield str(operation)
            inner = unbounded or is_endless
        for part in _parts(argument):
            yield from repeats(part, unbounded=inner)


def _parts(argument: Any) -> Iterator[Any]:
    if type(argument).__name__ == "SubPattern":
        yield argument
    elif isinstance(argument, (tuple, list)):
        for each in argument:
            yield from _parts(each)


def all_patterns() -> Iterator[re.Pattern[str]]:
    for module in (patterns, retelling, rules, sentences):
        for value in vars(module).values():
            yield from _patterns(value)


def _patterns(value: object) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _patterns(each)


def test_the_check_finds_what_it_looks_for() -> None:
    """The check below would fail for the textbook's catastrophic expressions."""
    parse = importlib.import_module("re._parser").parse
    for catastrophic in ("(a+)+$", "(?:a*b*)*", "(?:(?:x|y+)z?){2,}", "(?=(?:a+?)+)b"):
        assert list(repeats(parse(catastrophic)))
    assert not list(repeats(parse("(?:a+b){0,3}c*")))


def test_no_endless_repeat_holds_another() -> None:
    """None of the expressions can take exponential time."""
    parse = importlib.import_module("re._parser").parse
    found = list(all_patterns())
    assert len(found) > 70
    for pattern in found:
        assert not list(repeats(parse(pattern.pattern, pattern.flags))), pattern.pattern


@given(st.text(alphabet=st.sampled_from([*" \n.,!?'\"()aIx—"]), max_size=3_000))
def test_statements_are_short_and_no_more_than_the_text(text: str) -> None:
    """A rule never sees more than one short statement, and all together are no longer."""
    found = list(sentences.statements(text))
    assert all(len(each) <= SENTENCE_CHARACTERS for each in found)
    # A spelling such as "im" grows by its apostrophe.
    assert sum(map(len, found)) <= 2 * len(text)


@given(st.integers(0, 4 * PIECE_CHARACTERS), st.sampled_from(["a", "a ", "ab. ", "\n", "a\nb "]))
def test_pieces_are_bounded_and_lose_nothing(length: int, unit: str) -> None:
    """Long texts are looked at in pieces that together are the text."""
    text = (unit * length)[:length]
    found = list(sentences.pieces(text))
    assert "".join(found) == text
    assert all(len(piece) <= PIECE_CHARACTERS for piece in found)


@given(st.lists(st.sampled_from(WORDS), max_size=400))
async def test_no_text_breaks_the_rules(words: list[str]) -> None:
    """Whatever is said, the answer is a short list of short sentences."""
    found = await facts(" ".join(words), " ".join(reversed(words)), names=["Ann", "Bo"])
    assert len(found) <= rules.FACTS_PER_TURN_MAX
    assert all(fact.strip() and len(fact) < 10 * SENTENCE_CHARACTERS for fact in found)


@pytest.mark.parametrize(
    "unit",
    [
        *("a", " ", "\n", "(", '"', "'", ".", "......a", "```", "> \n", "QUJD", "😀"),
        *(
            "I am ",
            "my ",
            "I love a ",
            "I'm really ",
            "I will go on the ",
            ", I",
            "my older older ",
        ),
        *("I switched from from to ", "please remember ", "I don't any ", "my name is Anna Anna "),
    ],
)
async def test_a_megabyte_of_anything_ends(unit: str) -> None:
    """1 MB that was made to be slow is read through (seconds at most; the timeout guards it)."""
    found = await facts((unit * (1_000_000 // len(unit) + 1))[:1_000_000] + ". I live in Oslo")
    assert len(found) <= rules.FACTS_PER_TURN_MAX


async def test_what_is_at_the_end_of_a_megabyte_is_found() -> None:
    """A long text is looked at whole, not only its beginning."""
    said = "We talked about the weather for a while. " * 24_000 + "I'm allergic to nuts."
    assert await facts(said) == ["The user is allergic to nuts"]
