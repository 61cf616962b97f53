"""`afterturn import`, without workers: the command does the work itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from afterturn.memory import Memory
from afterturn.scope import MemoryScope
from tests.importing.writing import locomo, write

from .command import CommandLine

ROOT = MemoryScope.of("acme")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two conversations of twelve messages."""
    return write(tmp_path / "chats.json", locomo("chat-1", 6, 2), locomo("chat-2", 6, 2))


async def _held(memory: Memory) -> list[object]:
    return [item async for item in memory.export(ROOT)]


def test_it_completes_without_workers_or_broker(alone: CommandLine, file: Path) -> None:
    """Everything is recorded, in this process, and that is said."""
    outcome = alone.run("import", file, "--scope", "acme", "--json")
    assert outcome.code == 0
    assert "no worker" in outcome.error
    told = outcome.json
    assert (told["conversations"], told["turns"], told["taken"]) == (2, 24, 24)
    assert (told["known"], told["refused"], told["defects"]) == (0, [], [])
    assert (told["recorded"], told["dead"], told["degraded"]) == (24, 0, 0)
    assert told["processed_by"] == "this process"
    assert alone.run("status", "--json").json["outstanding"] == 0


def test_a_second_run_changes_nothing(
    alone: CommandLine, file: Path, using: Callable[..., list[object]]
) -> None:
    """All is known the second time, and what is held is what was held."""
    alone.run("import", file, "--scope", "acme")
    before = using(_held)
    told = alone.run("import", file, "--scope", "acme", "--json").json
    assert (told["taken"], told["known"], told["recorded"]) == (0, 24, 24)
    assert using(_held) == before


def test_each_conversation_is_a_scope_below_the_given_one(alone: CommandLine, file: Path) -> None:
    """The child scopes are named by the conversations' ids."""
    alone.run("import", file, "--scope", "acme/alice")
    lines = alone.run("export", "acme/alice").stdout.splitlines()
    assert {json.loads(line)["scope_path"] for line in lines} == {
        "v1/acme/alice/chat-1",
        "v1/acme/alice/chat-2",
    }


def test_a_defect_is_located_and_good_conversations_are_kept(
    alone: CommandLine, tmp_path: Path
) -> None:
    """Code 1, a line with file, place and reason; the good conversation is imported."""
    bad = locomo("bad")
    del bad["conversation"]["session_1"][2]["text"]
    file = write(tmp_path / "chats.json", bad, locomo("good", 4))
    outcome = alone.run("import", file, "--scope", "acme", "--json")
    assert outcome.code == 1
    assert outcome.json["recorded"] == 4
    assert outcome.json["defects"] == [
        {"place": "conversation 1 (bad), session_1, message 3", "reason": "it has no text"}
    ]
    assert outcome.stderr.splitlines()[-1] == (
        f"error: {file}: conversation 1 (bad), session_1, message 3: it has no text"
    )


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b'{"a": 1}'])
def test_a_file_that_is_none_is_refused_with_its_name(
    alone: CommandLine, tmp_path: Path, content: bytes
) -> None:
    """What is of no known format is one line on stderr; memory is not even asked."""
    file = tmp_path / "chats.json"
    file.write_bytes(content)
    outcome = alone.run("import", file, "--scope", "acme", database_url="postgresql://nobody@/x")
    assert (outcome.code, outcome.stdout) == (1, "")
    assert outcome.error.startswith(f"error: {file}: ")


def test_a_refused_message_is_named_and_makes_the_import_fail(
    alone: CommandLine, tmp_path: Path
) -> None:
    """A text over the limit is refused alone: the others are recorded, the code is 1."""
    entry = locomo("chat-1", 4)
    entry["conversation"]["session_1"][1]["text"] = "boats " * 20
    file = write(tmp_path / "chats.json", entry)
    outcome = alone.run("import", file, "--scope", "acme", "--json", text_bytes_max="100")
    assert outcome.code == 1
    assert [each["turn_id"] for each in outcome.json["refused"]] == ["chat-1:D1:2"]
    assert outcome.json["recorded"] == 3
    last = outcome.stderr.splitlines()[-1]
    assert last.startswith(f"error: {file}: chat-1:D1:2 was refused: ")
    assert "boats" not in outcome.stderr


def test_the_summary_is_readable(alone: CommandLine, file: Path) -> None:
    """Without --json the summary is a table; off a terminal there is no progress bar."""
    outcome = alone.run("import", file, "--scope", "acme")
    assert "turns/s" in outcome.stdout
    assert "already known" in outcome.stdout
    assert len(outcome.stderr.splitlines()) == 1


EXPORT = [
    {
        "id": "talk",
        "messages": [
            {"role": "system", "content": "You are helpful."},
            {"role": "user", "content": "I am a vegetarian."},
            {"role": "assistant", "content": "Noted."},
            {"role": "user", "content": "half \ud83d and \x00"},
        ],
    },
    {"id": "long", "messages": [{"role": "user", "content": f"said {n}"} for n in range(600)]},
]


def test_message_lists_are_imported_in_order_and_again_changes_nothing(
    alone: CommandLine, tmp_path: Path, using: Callable[..., list[object]]
) -> None:
    """What is left out is counted; texts without a time keep the order of the file."""
    file = tmp_path / "talks.json"
    file.write_text(json.dumps(EXPORT))
    outcome = alone.run("import", file, "--scope", "acme", "--json", extractor="none")
    assert outcome.code == 0
    told = outcome.json
    assert (told["conversations"], told["turns"], told["recorded"]) == (2, 602, 602)
    assert told["left_out"] == {"system messages": 1}
    assert told["undated"] == 602
    lines = [json.loads(line) for line in alone.run("export", "acme").stdout.splitlines()]
    said = {line["turn_id"]: line for line in lines if "happened_at" in line}
    assert said["talk:2"]["query"] == "I am a vegetarian."
    assert said["talk:2"]["answer"] == "Noted."
    assert said["talk:4"]["query"] == "half \ufffd and \ufffd"
    long = sorted(
        (line for key, line in said.items() if key.startswith("long:")),
        key=lambda line: line["happened_at"],
    )
    assert [line["query"] for line in long] == [f"said {n}" for n in range(600)]
    before = using(_held)
    again = alone.run("import", file, "--scope", "acme", "--json").json
    assert (again["taken"], again["known"], again["recorded"]) == (0, 602, 602)
    assert using(_held) == before


def test_a_dry_run_says_what_there_is_and_touches_nothing(
    alone: CommandLine, tmp_path: Path
) -> None:
    """It needs no database; a defect is reported all the same, with code 1."""
    file = tmp_path / "talks.json"
    file.write_text(json.dumps(EXPORT)[:-1] + ', {"id": "bad", "messages": [}]')
    outcome = alone.run(
        "import", file, "--scope", "acme", "--dry-run", "--json", database_url="postgresql://x@/x"
    )
    assert outcome.code == 1
    told = outcome.json
    assert (told["conversations"], told["turns"]) == (2, 602)
    assert "taken" not in told
    assert told["defects"][0]["place"].startswith("conversation 3, line 1, column")
    table = alone.run("import", file, "--scope", "acme", "--dry-run")
    assert "left out: system messages" in table.stdout
