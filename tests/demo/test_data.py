"""The demo's conversations and questions: LoCoMo's layout, and evidence for every question."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files
from itertools import pairwise
from typing import Any, Final

import pytest

from afterturn.scope import MemoryScope

DATA: Final = files("afterturn") / "demo"
FILES: Final = ("conversations.json", "questions.json")
WHEN: Final = "%I:%M %p on %d %B, %Y"
KEPT: Final = "nora-theo"
ERASED: Final = "nora-hana"
PRIVATE: Final = ("aarhus", "denmark", "danish", "hearing", "audiologist", "interview", "kirsten")

Conversation = dict[str, Any]


def _load(name: str) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def _sessions(conversation: Conversation) -> list[list[dict[str, str]]]:
    body = conversation["conversation"]
    count = sum(re.fullmatch(r"session_\d+", key) is not None for key in body)
    return [body[f"session_{number}"] for number in range(1, count + 1)]


def _messages(conversation: Conversation) -> Iterator[dict[str, str]]:
    for session in _sessions(conversation):
        yield from session


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from (key, *_strings(inner))
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


@pytest.fixture(scope="module")
def conversations() -> dict[str, Conversation]:
    loaded = _load("conversations.json")
    by_id = {conversation["sample_id"]: conversation for conversation in loaded}
    assert len(by_id) == len(loaded)
    return by_id


@pytest.fixture(scope="module")
def questions() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = _load("questions.json")
    return loaded


def test_two_conversations_are_named_by_ids_that_can_be_segments(
    conversations: dict[str, Conversation],
) -> None:
    """There are two conversations, and each id makes a scope whose path needs no encoding."""
    assert set(conversations) == {KEPT, ERASED}
    for name in conversations:
        assert re.fullmatch(r"[A-Za-z0-9._:-]+", name)
        assert MemoryScope.of("demo", name).path == f"v1/demo/{name}"


def test_a_conversation_holds_speakers_and_numbered_sessions_only(
    conversations: dict[str, Conversation],
) -> None:
    """Every session from 1 on has its date, and nothing else stands beside the speakers."""
    for conversation in conversations.values():
        assert set(conversation) == {"sample_id", "conversation", "qa"}
        numbers = range(1, len(_sessions(conversation)) + 1)
        expected = {"speaker_a", "speaker_b"}
        expected |= {f"session_{number}" for number in numbers}
        expected |= {f"session_{number}_date_time" for number in numbers}
        assert set(conversation["conversation"]) == expected


def test_there_is_enough_to_remember(conversations: dict[str, Conversation]) -> None:
    """At least twelve sessions and 220 messages, most of them in the conversation that stays."""
    assert sum(len(_sessions(c)) for c in conversations.values()) >= 12
    sizes = {name: len(list(_messages(c))) for name, c in conversations.items()}
    assert sum(sizes.values()) >= 220
    assert sizes[KEPT] > sizes[ERASED]


def test_sessions_follow_each_other_in_time(conversations: dict[str, Conversation]) -> None:
    """Each date is one of LoCoMo's form and later than the one before; ten or more days differ."""
    days = set()
    for conversation in conversations.values():
        body = conversation["conversation"]
        times = [
            datetime.strptime(body[f"session_{number}_date_time"], WHEN).replace(tzinfo=UTC)
            for number in range(1, len(_sessions(conversation)) + 1)
        ]
        assert times == sorted(set(times))
        days |= {time.date() for time in times}
    assert len(days) >= 10


def test_messages_take_turns_under_ids_of_their_place(
    conversations: dict[str, Conversation],
) -> None:
    """`D3:4` is the fourth message of the third session; the two speakers alternate."""
    for conversation in conversations.values():
        body = conversation["conversation"]
        speakers = {body["speaker_a"], body["speaker_b"]}
        assert len(speakers) == 2
        for number, session in enumerate(_sessions(conversation), start=1):
            assert [m["dia_id"] for m in session] == [
                f"D{number}:{place}" for place in range(1, len(session) + 1)
            ]
            assert {m["speaker"] for m in session} == speakers
            pairs = pairwise(session)
            assert all(before["speaker"] != after["speaker"] for before, after in pairs)


def test_a_message_has_text_and_at_most_a_caption(
    conversations: dict[str, Conversation],
) -> None:
    """Texts have 5 to 60 words and none is said twice; some messages come with a caption."""
    messages = [m for c in conversations.values() for m in _messages(c)]
    for message in messages:
        assert {"speaker", "dia_id", "text"} <= set(message)
        assert set(message) <= {"speaker", "dia_id", "text", "blip_caption"}
        assert 5 <= len(message["text"].split()) <= 60, message["dia_id"]
    texts = [m["text"] for m in messages]
    assert len(set(texts)) == len(texts)
    assert sum("blip_caption" in m for m in messages) >= 3


def test_ten_questions_have_evidence(
    conversations: dict[str, Conversation], questions: list[dict[str, Any]]
) -> None:
    """Seven questions are about what stays, three about what goes; all evidence exists."""
    assert len(questions) == 10
    assert sum(question["erased"] for question in questions) == 3
    for question in questions:
        assert set(question) == {"question", "scope", "evidence", "erased"}
        assert question["erased"] is (question["scope"] == ERASED)
        known = {m["dia_id"] for m in _messages(conversations[question["scope"]])}
        assert question["evidence"]
        assert set(question["evidence"]) <= known


def test_the_questions_are_those_of_the_conversations(
    conversations: dict[str, Conversation], questions: list[dict[str, Any]]
) -> None:
    """`qa` and the questions agree, so that they cannot drift apart; each has an answer."""
    answered = [
        (qa["question"], name, qa["evidence"])
        for name, conversation in conversations.items()
        for qa in conversation["qa"]
        if qa["answer"] and qa["category"] in range(1, 5)
    ]
    assert answered == [(q["question"], q["scope"], q["evidence"]) for q in questions]


def test_what_is_private_stands_in_one_conversation_only(
    conversations: dict[str, Conversation],
) -> None:
    """The conversation that stays says nothing of what the erased one tells."""
    kept = " ".join(m["text"] for m in _messages(conversations[KEPT])).lower()
    gone = " ".join(m["text"] for m in _messages(conversations[ERASED])).lower()
    for word in PRIVATE:
        assert word in gone
        assert not re.search(rf"\b{word}\b", kept)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_small_plain_text(name: str) -> None:
    """Under 120 kB, and no control, format or unassigned character in any string."""
    raw = (DATA / name).read_bytes()
    assert len(raw) < 120_000
    for text in _strings(json.loads(raw)):
        assert not [c for c in text if unicodedata.category(c).startswith("C")]
        assert text == text.strip()
