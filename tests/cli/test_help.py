"""Help, usage, and what it costs to start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from afterturn.cli import main

from .command import CommandLine

HEAVY = {"celery", "redis", "rich", "flower", "wordllama", "kombu", "tornado"}
LOADED = "import json, sys; {}; print(json.dumps(sorted(sys.modules)))"


@pytest.mark.parametrize("name", sorted(main.commands))
def test_each_command_explains_itself_with_an_example(name: str) -> None:
    """`--help` exits with 0 and shows a command line to copy."""
    outcome = CommandLine().run(name, "--help")
    assert outcome.code == 0
    _, _, examples = outcome.stdout.partition("Example")
    assert f"afterturn {name}" in examples


def test_the_examples_are_understood() -> None:
    """Every example names options and arguments that exist."""
    for name, command in main.commands.items():
        for line in (command.epilog or "").splitlines()[2:]:
            _, _, after = line.partition(f"afterturn {name}")
            words = after.partition(">")[0].split()
            command.make_parser(click.Context(command)).parse_args(words)


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-command",),
        ("forget",),
        ("forget", "acme//alice"),
        ("forget", "%ff"),
        ("forget", "acme", "--derived", "some"),
        ("flush", "a/b/c/d/e/f/g/h/i"),
        ("import", "no-such-file.json", "--scope", "acme"),
        ("import", __file__),
        ("worker", "--queues", "recrd"),
        ("worker", "--concurrency", "0"),
        ("status", "--oldest", "-1"),
    ],
)
def test_a_command_line_that_cannot_be_understood_exits_with_two(
    arguments: tuple[str, ...],
) -> None:
    """Usage errors are told apart from failures and say what is wrong."""
    outcome = CommandLine().run(*arguments)
    assert outcome.code == 2
    assert "Error:" in outcome.stderr
    assert outcome.stdout == ""


def test_a_wrong_queue_is_answered_with_the_nearest() -> None:
    """A misspelt queue is named with what was probably meant."""
    assert "Did you mean record?" in CommandLine().run("worker", "--queues", "recrd").stderr


def _modules(statement: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(statement)],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout))


def test_starting_loads_nothing_heavy() -> None:
    """The command line loads nothing beyond click that the package itself does not load."""
    more = _modules("import click, afterturn.cli") - _modules("import click, afterturn")
    ours = {name for name in more if name.startswith("afterturn.")}
    assert all(name.startswith(("afterturn.cli", "afterturn.errors")) for name in ours)
    assert not {name.partition(".")[0] for name in more} & HEAVY


def test_it_works_by_its_full_path_in_any_directory(elsewhere: Path) -> None:
    """Neither an activated environment nor the current directory matters."""
    outcome = CommandLine().installed("--version", cwd=elsewhere)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.stdout.startswith("afterturn ")
