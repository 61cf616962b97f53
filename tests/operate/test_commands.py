"""Every command, nested ones too: help with an example, and exit codes fit for a script."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner, Result

from afterturn.cli import main

MISSPELT = {"AFTERTURN_DATABASEURL": "postgresql://alice:hunter2@h/db"}


def _leaves(group: click.Group, *words: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from _leaves(command, *words, name)
        else:
            yield " ".join((*words, name)), command


COMMANDS = dict(_leaves(main))


def _run(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(main, arguments, env=env)


def _examples(name: str) -> list[list[str]]:
    """The arguments of the command lines at the end of its help."""
    found = []
    for line in (COMMANDS[name].epilog or "").splitlines():
        _, here, after = line.partition(f"afterturn {name}")
        if here:
            found.append([*name.split(), *shlex.split(after.partition(">")[0])])
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_that_is_understood(name: str) -> None:
    """`--help` exits with 0 and ends with a command line to copy."""
    help_text = _run(*name.split(), "--help")
    assert help_text.exit_code == 0
    assert f"afterturn {name}" in help_text.stdout.partition("Example")[2]
    command = COMMANDS[name]
    for arguments in _examples(name):
        command.make_parser(click.Context(command)).parse_args(arguments[len(name.split()) :])


@pytest.mark.parametrize("name", COMMANDS)
def test_what_cannot_be_understood_exits_with_two(name: str) -> None:
    """And nothing stands on stdout, where a script would read an answer."""
    outcome = _run(*name.split(), "--no-such-option")
    assert outcome.exit_code == 2
    assert outcome.stdout == ""
    assert "No such option" in outcome.stderr


# Two read their file first; the demo sets everything itself.
@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"import", "replay-erasures", "demo"}))
def test_a_setting_that_is_none_exits_with_one_and_names_the_nearest(name: str) -> None:
    """One line on stderr, the value not shown, before anything was done."""
    outcome = _run(*_examples(name)[0], **MISSPELT)
    assert outcome.exit_code == 1
    assert outcome.stdout == ""
    (line,) = outcome.stderr.splitlines()
    assert line == (
        "error: AFTERTURN_DATABASEURL is not a setting. Did you mean AFTERTURN_DATABASE_URL?"
    )
