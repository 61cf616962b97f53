"""How a failure looks to a script."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .command import CommandLine, Outcome

NOBODY = "postgresql://someone:secret@127.0.0.1:1/memory"
NEEDS_THE_DATABASE = [
    ("status",),
    ("migrate",),
    ("flush", "acme"),
    ("forget", "acme"),
    ("export", "acme"),
]


@pytest.mark.parametrize("arguments", NEEDS_THE_DATABASE)
def test_an_unreachable_database_is_one_line_and_code_one(
    arguments: tuple[str, ...], alone: CommandLine
) -> None:
    """No traceback, no driver detail, no password: one line that says what to do."""
    outcome = alone.run(*arguments, database_url=NOBODY)
    assert outcome.code == 1
    assert outcome.stdout == ""
    assert outcome.error.startswith("error: The database cannot be reached")
    assert "secret" not in outcome.stderr


def test_a_misspelt_setting_is_named(alone: CommandLine) -> None:
    """A variable that is no setting stops a command instead of being ignored."""
    outcome = alone.run("status", embeder="none")
    assert outcome.code == 1
    assert outcome.error == "error: AFTERTURN_EMBEDER is not a setting. Did you mean " + (
        "AFTERTURN_EMBEDDER?"
    )


def test_a_failure_of_the_installed_command_has_no_traceback(
    alone: CommandLine, elsewhere: Path
) -> None:
    """What the shell sees is what the tests in one process see."""
    outcome = alone.installed("flush", "acme", cwd=elsewhere, AFTERTURN_DATABASE_URL=NOBODY)
    assert outcome.code == 1
    assert outcome.error.startswith("error: ")


def test_without_servers_and_binaries_every_command_says_what_to_set(tmp_path: Path) -> None:
    """A home in which no server can run leads to the settings that help."""
    nowhere = CommandLine({"AFTERTURN_HOME": str(tmp_path), "AFTERTURN_POSTGRES_BIN": os.devnull})
    outcome = nowhere.run("flush", "acme")
    assert outcome.code == 1
    assert "AFTERTURN_DATABASE_URL" in outcome.error


def test_ctrl_c_before_it_has_begun_is_no_news(tmp_path: Path) -> None:
    """It ends at once, without a word and least of all a stack."""
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    outcome = CommandLine().installed("up", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert outcome == Outcome(130, "", "")
