"""`erase-log`, `verify-erase-log`, `erased`, `replay-erasures`, as people and scripts use them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import CommandLine
from tests.cli.conftest import alone, commands

__all__ = ["alone", "commands"]


def test_people_and_scripts_are_told(alone: CommandLine, tmp_path: Path) -> None:
    """The log on stdout, whether it is whole, and what it says about a scope."""
    alone.run("forget", "acme/alice", "--requested-by", "dpo", "--reason", "T-1")
    receipt = alone.run("forget", "acme", "--derived", "keep", "--json").json
    header, first, second = map(json.loads, alone.run("erase-log").stdout.splitlines())
    assert header["heads"] == {first["root_key"]: second["hash"]}
    assert (first["reason"], second["hash"]) == ("T-1", receipt["log_head"])

    told = alone.run("verify-erase-log", "--receipt", receipt["log_head"], "--json").json
    assert (told["whole"], told["entries"], told["receipts"]) == (True, 2, 3)
    assert "the log is whole" in alone.run("verify-erase-log").stdout
    unknown = alone.run("verify-erase-log", "--receipt", "0" * 64)
    assert (unknown.code, unknown.stderr) == (
        1,
        "error: receipt 000000000000: its entry 000000000000 is missing\n",
    )
    assert "NOT WHOLE" in unknown.stdout

    found = alone.run("erased", "acme/alice", "--json").json["erases"]
    assert [(e["scope_path"], e["derived"]) for e in found] == [
        ("v1/acme/alice", "erase"),
        ("v1/acme", "keep"),
    ]
    shown = alone.run("erased", "acme/alice").stdout
    for words in ("dpo", "T-1", "everything under it", "what was learned from it elsewhere"):
        assert words in shown
    nothing = alone.run("erased", "acme/bob/chat")
    assert (nothing.code, "v1/acme" in nothing.stdout) == (0, True)
    assert alone.run("erased", "other").stdout == "the log has no erase of v1/other\n"

    file = tmp_path / "log.jsonl"
    assert alone.run("erase-log", "--output", file).stdout == ""
    report = alone.run("replay-erasures", file)
    assert report.code == 0
    assert "known here" in report.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify-erase-log", "no-such-file"),
        ("verify-erase-log", "--receipt", "abc"),
        ("verify-erase-log", "--receipt", "G" * 64),
        ("replay-erasures",),
        ("replay-erasures", "no-such-file"),
        ("erased",),
        ("erased", "acme//x"),
    ],
)
def test_what_cannot_be_understood(arguments: tuple[str, ...]) -> None:
    """Exit code 2, before anything is asked of the database."""
    outcome = CommandLine().run(*arguments)
    assert (outcome.code, outcome.stdout) == (2, "")


def test_a_file_that_is_no_log(alone: CommandLine, tmp_path: Path) -> None:
    """Named by its name, without its content."""
    file = tmp_path / "diary.txt"
    file.write_text("dear diary\n")
    for command in ("verify-erase-log", "replay-erasures"):
        outcome = alone.run(command, file)
        assert (outcome.code, outcome.stdout) == (1, "")
        assert "diary.txt" in outcome.error
        assert "dear" not in outcome.error
