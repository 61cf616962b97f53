"""`afterturn export`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from afterturn.memory import Memory
from afterturn.scope import MemoryScope

from .command import CommandLine

SCOPE = MemoryScope.of("acme", "alice")


async def _stage(memory: Memory) -> None:
    async with memory.turn(SCOPE, session="s1", turn_id="t1") as turn:
        await turn.finish("I like \u00e4pfel \u2028 and 梨", "Noted")


async def _ask_to_forget(memory: Memory) -> None:
    await memory.enqueue_forget(SCOPE)


def test_every_row_is_a_line_of_json(alone: CommandLine, using: Callable[..., None]) -> None:
    """Turns come first, then records; text of any script survives, one line a row."""
    using(_stage)
    alone.run("flush", "acme")
    outcome = alone.run("export", "acme")
    assert outcome.code == 0
    rows = [json.loads(line) for line in outcome.stdout.rstrip("\n").split("\n")]
    assert [row["kind"] for row in rows] == ["turn"] + ["record"] * 4
    assert rows[0]["query"] == "I like \u00e4pfel \u2028 and 梨"
    assert {row["scope_path"] for row in rows} == {SCOPE.path}
    assert {row["layer"] for row in rows[1:]} == {"working", "episodic"}


def test_it_writes_to_a_file(
    alone: CommandLine, using: Callable[..., None], tmp_path: Path
) -> None:
    """With --output nothing but the file is written."""
    using(_stage)
    file = tmp_path / "alice.jsonl"
    outcome = alone.run("export", "acme", "--output", file)
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, "", "")
    assert len(file.read_bytes().splitlines()) == 1


def test_nothing_held_is_an_empty_export(alone: CommandLine) -> None:
    """A scope that was never used, or is misspelt, is no error, and is not silent either."""
    outcome = alone.run("export", "nobody")
    assert (outcome.code, outcome.stdout) == (0, "")
    assert outcome.error == "nothing is held under v1/nobody"


def test_a_standing_erase_forbids_the_export(
    alone: CommandLine, using: Callable[..., None]
) -> None:
    """What is to be erased is not handed out any more."""
    using(_stage)
    using(_ask_to_forget)
    outcome = alone.run("export", "acme/alice")
    assert (outcome.code, outcome.stdout) == (1, "")
    assert "erase" in outcome.error
