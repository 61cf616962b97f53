"""Reading LoCoMo files."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterturn.importing.formats import read_file
from afterturn.importing.locomo import read_locomo

from .writing import locomo, write

Change = Callable[[dict[str, Any]], object]


def test_each_message_has_its_turn_session_side_and_time() -> None:
    """A message keeps who spoke, its session and caption, and is a second after the one before."""
    (conversation,) = read_locomo([locomo("chat-1", messages=2, sessions=2)]).conversations
    assert conversation.conversation_id == "chat-1"
    assert conversation.names == ("Ann", "Bob")
    assert [m.turn_id for m in conversation.messages] == [
        "chat-1:D1:1",
        "chat-1:D1:2",
        "chat-1:D2:1",
        "chat-1:D2:2",
    ]
    assert [m.session for m in conversation.messages] == ["session_1"] * 2 + ["session_2"] * 2
    assert [m.query is not None for m in conversation.messages] == [True, False, True, False]
    assert [m.caption for m in conversation.messages[:2]] == ["a photo of boat 0", None]
    assert conversation.messages[0].occurred_at == datetime(2023, 5, 1, 13, 51, tzinfo=UTC)
    assert conversation.messages[1].occurred_at == datetime(2023, 5, 1, 13, 51, 1, tzinfo=UTC)


def test_sessions_come_in_the_order_of_their_numbers() -> None:
    """Session 10 follows session 9, whatever the order in the file."""
    entry = locomo(sessions=11, messages=1)
    body = entry["conversation"]
    entry["conversation"] = dict(sorted(body.items(), reverse=True))
    (conversation,) = read_locomo(entry).conversations
    assert [m.session for m in conversation.messages] == [f"session_{n}" for n in range(1, 12)]


def test_a_date_without_a_session_is_no_session() -> None:
    """LoCoMo files name dates of sessions that they do not contain."""
    entry = locomo()
    entry["conversation"]["session_7_date_time"] = "no time at all"
    assert read_locomo([entry]).defects == []


def test_characters_that_an_id_may_not_hold_are_replaced() -> None:
    """The turn id is usable whatever the conversation is called; the scope keeps the name."""
    (conversation,) = read_locomo([locomo("café / 1", messages=1)]).conversations
    assert conversation.conversation_id == "café / 1"
    assert conversation.messages[0].turn_id == "caf____1:D1:1"


def _drop(*path: Any) -> Change:
    def change(entry: dict[str, Any]) -> None:
        _at(entry, path[:-1]).pop(path[-1])

    return change


def _set(value: Any, *path: Any) -> Change:
    def change(entry: dict[str, Any]) -> None:
        _at(entry, path[:-1])[path[-1]] = value

    return change


def _at(entry: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        entry = entry[key]
    return entry


SECOND_MESSAGE = ("conversation", "session_1", 1)


@pytest.mark.parametrize(
    ("change", "place", "reason"),
    [
        (_drop("sample_id"), "conversation 2", "no sample_id"),
        (_set(True, "sample_id"), "conversation 2", "no sample_id"),
        (_set("a\nb", "sample_id"), "conversation 2", "cannot name a scope"),
        (_set([], "conversation"), "conversation 2", "`conversation`"),
        (_drop("conversation", "speaker_a"), "(bad)", "speaker_a"),
        (_set("Ann", "conversation", "speaker_b"), "(bad)", "same name"),
        (_set({}, "conversation", "session_1"), "session_1", "list of messages"),
        (_drop("conversation", "session_1_date_time"), "session_1", "session_1_date_time"),
        (_set("soon", "conversation", "session_1_date_time"), "session_1_date_time", "not a time"),
        (_set("text", *SECOND_MESSAGE), "session_1, message 2", "not an object"),
        (_drop(*SECOND_MESSAGE, "text"), "session_1, message 2", "no text"),
        (_set(7, *SECOND_MESSAGE, "text"), "session_1, message 2", "no text"),
        (_drop(*SECOND_MESSAGE, "dia_id"), "session_1, message 2", "no dia_id"),
        (_set("D1:1", *SECOND_MESSAGE, "dia_id"), "session_1, message 2", "came before"),
        (_set("x" * 200, *SECOND_MESSAGE, "dia_id"), "session_1, message 2", "at most 160"),
        (_set("Eve", *SECOND_MESSAGE, "speaker"), "session_1, message 2", "neither"),
        (_set([1], *SECOND_MESSAGE, "blip_caption"), "session_1, message 2", "blip_caption"),
    ],
)
def test_a_defect_names_its_place_and_spares_the_others(
    change: Change, place: str, reason: str
) -> None:
    """A conversation with a defect is left out and located; its neighbours are kept."""
    bad = locomo("bad")
    change(bad)
    reading = read_locomo([locomo("good-1"), bad, locomo("good-2")])
    assert [each.conversation_id for each in reading.conversations] == ["good-1", "good-2"]
    (defect,) = reading.defects
    assert defect.place.startswith("conversation 2")
    assert place in defect.place
    assert reason in defect.reason
    assert "boats" not in str(defect)
    assert "Eve" not in str(defect)


def test_two_conversations_with_one_id_are_not_mixed() -> None:
    """The second of two conversations with one id is a defect that names the first."""
    reading = read_locomo([locomo("chat-1"), locomo("chat-2"), locomo("chat-1")])
    assert len(reading.conversations) == 2
    assert "conversation 1" in reading.defects[0].reason
    assert reading.defects[0].place == "conversation 3"


def test_an_empty_list_of_locomo_is_said_to_be_empty(tmp_path: Path) -> None:
    """A file that is said to be LoCoMo and holds nothing is not taken for a success."""
    (defect,) = read_file(write(tmp_path / "chat.json"), "locomo").defects
    assert "no conversation" in defect.reason


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    """Files of editors that write one are read."""
    file = tmp_path / "chat.json"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(locomo()).encode())
    assert len(read_file(file).conversations) == 1


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "sample_id",
                    "conversation",
                    "session_1",
                    "session_1_date_time",
                    "speaker_a",
                    "text",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(_JSON)
def test_no_document_makes_the_reader_fail(document: Any) -> None:
    """Whatever JSON a file holds, reading it gives conversations or defects."""
    reading = read_locomo(document)
    assert reading.conversations or reading.defects
