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
