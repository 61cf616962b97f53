"""Reading message lists, and files of any format that are odd or large."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from afterturn.importing.conversation import DEFECTS_MAX, Findings, Reading
from afterturn.importing.formats import read_file, stream_file, survey_file
from afterturn.importing.messages import PART_TURNS_MAX


def _user(text: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **fields}


def _assistant(text: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


TALK = [_user("What do I eat?"), _assistant("Plants."), _user("And drink?"), _assistant("Tea.")]
TURNS = [("What do I eat?", "Plants."), ("And drink?", "Tea.")]


def _written(tmp_path: Path, text: str, name: str = "talk.json") -> Path:
    file = tmp_path / name
    file.write_text(text)
    return file


def _turns(reading: Reading) -> list[tuple[str | None, str | None]]:
    return [(turn.query, turn.answer) for each in reading.conversations for turn in each.messages]


def _lines(*values: Any) -> str:
    return "\n".join(json.dumps(value) for value in values) + "\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (json.dumps(TALK), ["talk-1"]),
        (_lines(*TALK), ["talk-1"]),
        (json.dumps({"messages": TALK}), ["talk-1"]),
        (json.dumps({"id": "own", "messages": TALK}), ["own"]),
        (json.dumps([{"messages": TALK}]), ["talk-1"]),
        (json.dumps([TALK]), ["talk-1"]),
        (_lines({"id": "a", "messages": TALK[:2]}, {"messages": TALK[2:]}), ["a", "talk-2"]),
        (json.dumps([TALK[:2], TALK[2:]]), ["talk-1", "talk-2"]),
        (_lines(TALK[:2], TALK[2:]), ["talk-1", "talk-2"]),
    ],
)
def test_every_layout_gives_the_same_turns(tmp_path: Path, text: str, names: list[str]) -> None:
    """One list, one object, lists of either, one of either a line, one message a line."""
    reading = read_file(_written(tmp_path, text))
    assert _turns(reading) == TURNS
    assert [each.conversation_id for each in reading.conversations] == names
    assert reading.defects == []


def test_turns_are_named_by_the_number_of_their_first_message(tmp_path: Path) -> None:
    """So a list that has grown gives the same ids and new ones."""
    (short,) = read_file(_written(tmp_path, json.dumps(TALK))).conversations
    (grown,) = read_file(_written(tmp_path, json.dumps([*TALK, _user("More.")]))).conversations
    assert [turn.turn_id for turn in short.messages] == ["talk-1:1", "talk-1:3"]
    assert grown.messages[:2] == short.messages
    assert grown.messages[2].turn_id == "talk-1:5"


def test_who_speaks_twice_or_first_is_heard(tmp_path: Path) -> None:
    """Questions without an answer, answers in several messages, an assistant that begins."""
    talk = [
        _assistant("Welcome."),
        _user("one"),
        _user("two"),
        _assistant("First part."),
        _assistant("Second part."),
    ]
    assert _turns(read_file(_written(tmp_path, json.dumps(talk)))) == [
        (None, "Welcome."),
        ("one", None),
        ("two", "First part.\n\nSecond part."),
    ]


def test_odd_content_is_taken_or_counted(tmp_path: Path) -> None:
    """Parts, pictures, tools, nothing, NUL, lone surrogates: never a failure."""
    picture = {"type": "image_url", "image_url": {"url": "data:…"}}
    talk = [
        {"role": "system", "content": "You are helpful."},
        {"role": "developer", "content": "Be brief."},
        _user(
            [{"type": "text", "text": "What is"}, picture, {"type": "input_text", "text": "it?"}]
        ),
        _assistant(None, tool_calls=[{"id": "1"}]),
        {"role": "tool", "content": "42"},
        {"role": "function", "content": "42"},
        _assistant([{"type": "output_text", "text": "A boat."}, {"type": "audio"}, 7]),
        _user([picture]),
        _user(""),
        _user(None),
        _user(7),
        _user({"text": "x"}),
        {"role": "narrator", "content": "Later."},
        {"content": "by nobody"},
        _user("half \ud83d and \x00"),
    ]
    reading = read_file(_written(tmp_path, json.dumps(talk)))
    assert _turns(reading) == [("What is\nit?", "A boat."), ("half \ud83d and \x00", None)]
    assert dict(reading.left_out) == {
        "system messages": 2,
        "tool messages": 2,
        "tool calls": 1,
        "image parts": 2,
        "audio parts": 1,
        "parts that are no objects": 1,
        "messages without text": 5,
        "contents that are neither text nor parts": 2,
        "messages of another role": 2,
    }
    assert reading.defects == []


def test_a_message_that_is_none_is_placed_and_the_others_are_kept(tmp_path: Path) -> None:
    """In a list of messages, in one a line, and in an object's list."""
    for text, place in (
        (json.dumps([TALK[0], 7, TALK[1]]), "conversation 1, message 2"),
        (json.dumps({"messages": [TALK[0], "x", TALK[1]]}), "conversation 1, message 2"),
    ):
        reading = read_file(_written(tmp_path, text))
        assert _turns(reading) == TURNS[:1]
        assert [str(each) for each in reading.defects] == [f"{place}: not an object"]
    reading = read_file(
        _written(tmp_path, _lines(*TALK[:2]) + '{"role": "user", \n' + _lines(*TALK[2:]))
    )
    assert len(reading.defects) == 1
    assert _turns(reading)[0] == TURNS[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1_700_000_000, datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        (1_700_000_000_500, datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC)),
        ("2023-11-14T22:13:20Z", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("2023-11-14T22:13:20", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("2023-11-15T00:13:20+02:00", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("yesterday", None),
        (True, None),
        (-5, None),
        (1e300, None),
        (None, None),
        ([], None),
    ],
)
def test_times_are_understood_or_left_open(
    tmp_path: Path, value: Any, expected: datetime | None
) -> None:
    """Seconds, milliseconds, ISO 8601; what is none is counted."""
    for key in ("created_at", "create_time", "timestamp"):
        talk = [_user("hello", **{key: value})]
        reading = read_file(_written(tmp_path, json.dumps(talk)))
        assert reading.conversations[0].messages[0].occurred_at == expected
        assert reading.undated == (expected is None)


@pytest.mark.parametrize(
    ("content", "place", "reason"),
    [
        (b"", "", "known format"),
        (b"[]", "", "known format"),
        (b"3", "", "known format"),
        (b'{"a": 1}', "", "known format"),
        (b"[1, 2, 3]", "", "known format"),
        (b'["\xff"]', "line 1, column 3", "UTF-8"),
        (b"[{", "line 1, column 2", "ends in the middle"),
        (b"[" * 200_000, "line 1", "middle"),
    ],
)
def test_a_file_that_holds_no_conversation_says_why(
    tmp_path: Path, content: bytes, place: str, reason: str
) -> None:
    """One reason, with the place where there is one."""
    file = tmp_path / "chat.json"
    file.write_bytes(content)
    reading = read_file(file)
    assert reading.conversations == []
    defect = reading.defects[0]
    assert defect.place.startswith(place)
    assert reason in defect.reason


def test_a_wrong_format_is_refused_entry_by_entry(tmp_path: Path) -> None:
    """A format that was named is not guessed again."""
    file = _written(tmp_path, json.dumps(TALK))
    assert read_file(file, "messages").defects == []
    for wrong in ("locomo", "chatgpt"):
        reading = read_file(file, wrong)
        assert reading.conversations == []
        assert len(reading.defects) == len(TALK)


def test_defects_without_end_are_counted(tmp_path: Path) -> None:
    """The first thousand are kept."""
    text = "\n".join([json.dumps({"messages": TALK}), *["{]}"] * (DEFECTS_MAX + 50)])
    findings = Findings()
    assert len(list(stream_file(_written(tmp_path, text), findings))) == 1
    assert (len(findings.defects), findings.defects_more) == (DEFECTS_MAX, 50)


def test_a_long_conversation_comes_in_parts(tmp_path: Path) -> None:
    """Together they are the whole, in order; a survey counts one conversation."""
    count = 2 * PART_TURNS_MAX + 7
    file = _written(tmp_path, json.dumps([_user(f"said {at}") for at in range(count)]))
    parts = list(stream_file(file, Findings()))
    assert [part.continues for part in parts] == [False, True, True]
    assert {part.conversation_id for part in parts} == {"talk-1"}
    said = [turn.query for part in parts for turn in part.messages]
    assert said == [f"said {at}" for at in range(count)]
    survey = survey_file(file)
    assert (survey.conversations, survey.turns) == (1, count)


def test_an_answer_without_end_is_split(tmp_path: Path) -> None:
    """A log in which only the assistant speaks does not become one turn."""
    file = _written(tmp_path, json.dumps([_assistant("x" * 90_000) for _ in range(10)]))
    (conversation,) = read_file(file).conversations
    assert len(conversation.messages) == 5
    assert max(len(turn.text) for turn in conversation.messages) < 200_000


# -- large files

_SURVEY = """
import resource, sys
from pathlib import Path
from afterturn.importing.formats import survey_file
survey_file(Path(sys.argv[2]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
survey = survey_file(Path(sys.argv[1]))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(survey.conversations, survey.turns, len(survey.defects), after - before)
"""


def _chatgpt(tmp_path: Path, megabytes: int) -> Iterator[str]:
    from .test_chatgpt import Export

    yield "["
    for number in range(megabytes * 4):
        export = Export(f"c-{number}")
        for turn in range(50):
            export.say("user", f"question {turn} " + "x" * 1_000)
            export.say("assistant", f"answer {turn} " + "y" * 3_500)
        yield ("," if number else "") + json.dumps(export.document)
    yield "]"


def _list(tmp_path: Path, megabytes: int) -> Iterator[str]:
    yield "["
    for number in range(megabytes * 200):
        pair = [_user(f"question {number} " + "x" * 1_000), _assistant("y" * 4_000)]
        yield ("," if number else "") + json.dumps(pair)[1:-1]
    yield "]"


@pytest.mark.parametrize("layout", [_chatgpt, _list])
def test_a_large_file_needs_little_memory(tmp_path: Path, layout: Any) -> None:
    """50 MB, of many conversations or of one: a fraction of it is in memory at any moment."""
    large, small = tmp_path / "large.json", tmp_path / "small.json"
    with large.open("w") as stream:
        stream.writelines(layout(tmp_path, 52))
    with small.open("w") as stream:
        stream.writelines(layout(tmp_path, 2))
    assert large.stat().st_size > 50_000_000
    done = subprocess.run(
        [sys.executable, "-c", _SURVEY, str(large), str(small)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    conversations, turns, defects, grown_kilobytes = map(int, done.stdout.split())
    assert (turns, defects) == (10_400, 0)
    assert conversations in (1, 208)
    assert grown_kilobytes < 15_000, f"{grown_kilobytes} kB more than for a file of 2 MB"
