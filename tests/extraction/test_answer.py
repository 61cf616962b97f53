"""What is made of a model's answer, in whatever it is wrapped."""

from __future__ import annotations

import json

import pytest

from afterturn.extraction.answer import read_answer

FACTS = [{"text": "Nora lives in Oslo", "turns": [1]}, {"text": "Nora has a dog", "turns": [2]}]
GOOD = json.dumps({"facts": FACTS})

SURVIVED = {
    "as asked": GOOD,
    "spread over lines": json.dumps({"facts": FACTS}, indent=2),
    "in a fence": f"```json\n{GOOD}\n```",
    "in a nameless fence": f"```\n{GOOD}\n```",
    "prose before": f"Sure! Here are the facts:\n\n{GOOD}",
    "prose after": f"{GOOD}\n\nI left out the greetings. Let me know {{if}} you need [more].",
    "braces in the prose before": f"As {{you}} asked [1], {{}} here: {GOOD}",
    "thoughts": f"<think>Maybe {{'facts': []}}? No, {json.dumps(FACTS[:1])}</think>{GOOD}",
    "thoughts under another name": f"<reasoning>\nhm\n</reasoning>\n{GOOD}",
    "thoughts without a beginning": f'I think {{"facts": [{{"text": "x"}}]}}</think>\n{GOOD}',
    "another name on top": json.dumps({"memories": FACTS}),
    "another level on top": json.dumps({"result": {"data": {"facts": FACTS}}}),
    "numbers before the list": json.dumps({"count": 2, "shown": [1, 2], "facts": FACTS}),
    "a bare list": json.dumps(FACTS),
    "encoded twice": json.dumps({"arguments": GOOD}),
    "another name for the text": json.dumps(
        {"facts": [{"fact": f["text"], "turns": f["turns"]} for f in FACTS]}
    ),
    "a line break in a text": GOOD.replace("a dog", "a\ndog"),
}


@pytest.mark.parametrize("kind", SURVIVED)
def test_facts_are_found(kind: str) -> None:
    """Both facts with their turns, nothing of the wrapping."""
    answer = read_answer(SURVIVED[kind])
    assert answer is not None
    assert [(" ".join(f["text"].split()), f["turns"]) for f in answer.facts] == [
        (f["text"], f["turns"]) for f in FACTS
    ]
    assert not answer.is_cut


@pytest.mark.parametrize(
    "cut", range(len('{"facts": [') + len(json.dumps(FACTS[0])), len(GOOD) - 1)
)
def test_whole_facts_of_an_answer_that_was_cut_off_are_kept(cut: int) -> None:
    """Wherever the end is missing: the first fact is whole, and the second when it is."""
    answer = read_answer("```json\n" + GOOD[:cut])
    assert answer is not None
    assert answer.is_cut
    whole = 2 if cut >= len(GOOD) - 2 else 1
    assert [f["text"] for f in answer.facts] == [f["text"] for f in FACTS[:whole]]


@pytest.mark.parametrize(
    "text", ['{"facts": []}', "{}", "[]", 'None found: {"facts": []}.', '{"memories": []}']
)
def test_no_facts_is_an_answer(text: str) -> None:
    """Nothing was worth keeping; that is not asked again."""
    answer = read_answer(text)
    assert answer is not None
    assert answer.facts == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I could not find anything.",
        "null",
        "{",
        '{"facts": [',
        '{"facts": [{"text": "half',
        '{"facts": {"Nora": {"age": 5}}}',
        "[1, 2, 3]",
        "<think>and so on",
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
    ids=lambda text: text[:30] or "nothing",
)
def test_what_is_no_answer(text: str) -> None:
    """It is asked once more."""
    assert read_answer(text) is None


def test_a_single_fact_without_its_list() -> None:
    """Small models forget the list."""
    answer = read_answer('{"text": "Nora lives in Oslo", "layer": "semantic"}')
    assert answer is not None
    assert [f["text"] for f in answer.facts] == ["Nora lives in Oslo"]


def test_half_an_emoji_and_nul_in_one_fact_leave_the_others() -> None:
    """They are valid JSON and come through; they are cleaned where the fact is judged."""
    answer = read_answer('{"facts": [{"text": "a \\ud83d"}, {"text": "b\\u0000"}, {"text": "c"}]}')
    assert answer is not None
    assert [f["text"] for f in answer.facts] == ["a \ud83d", "b\x00", "c"]


@pytest.mark.parametrize("unit", ["[", "{", '{"facts": [{"text": "a"},', "<think>", '"', "]", "\\"])
def test_hostile_answers_cost_what_their_length_costs(unit: str) -> None:
    """A megabyte of any of these is read or given up within the time that a test may take."""
    answer = read_answer(unit * ((1 << 20) // len(unit)))
    assert answer is None or len(answer.facts) > 0
