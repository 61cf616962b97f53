"""Commands on an embedded database of their own: nothing is set but the home."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterturn import embedded

from .command import CommandLine


@pytest.fixture
def own_home() -> Iterator[Path]:
    """A short folder in which nothing runs, neither before nor after."""
    folder = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    yield folder
    embedded.stop(folder)
    shutil.rmtree(folder, ignore_errors=True)


def test_an_erase_needs_the_database_alone(own_home: Path, elsewhere: Path) -> None:
    """In a fresh home `forget` starts PostgreSQL and no broker, and completes at once."""
    commands = CommandLine({"AFTERTURN_HOME": str(own_home), "AFTERTURN_EMBEDDER": "none"})
    outcome = commands.installed("forget", "acme", "--json", cwd=elsewhere)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.json["outcome"] == "done"
    assert not (own_home / "valkey").exists()

    shown = commands.installed("status", "--json", cwd=elsewhere)
    assert shown.code == 0
    assert shown.json["broker"]["reachable"] is False
    assert shown.json["embedded"]["valkey"] == "does not run"
    assert not (own_home / "valkey").exists()


def test_a_database_that_had_to_be_started_to_be_asked_is_not_well(
    own_home: Path, elsewhere: Path
) -> None:
    """Whether it was killed or nobody wanted it: `status` says so, and asks it all the same."""
    commands = CommandLine({"AFTERTURN_HOME": str(own_home), "AFTERTURN_EMBEDDER": "none"})
    first = commands.installed("status", "--check", "--json", cwd=elsewhere)
    assert first.code == 1
    assert "the embedded PostgreSQL did not run" in first.json["wrong"]
    assert first.json["migration"] >= 1
    embedded.ensure(own_home)
    second = commands.installed("status", "--check", "--json", cwd=elsewhere)
    assert (second.code, second.json["wrong"]) == (0, [])


def test_an_embedded_database_migrates_itself(own_home: Path) -> None:
    """`migrate` brings a fresh home up, and has nothing to do after another command did."""
    commands = CommandLine({"AFTERTURN_HOME": str(own_home)})
    assert "applied 0001" in commands.run("migrate").stdout
    assert commands.run("migrate", "--json").json == {"applied": []}
    embedded.release(own_home)
    embedded.release(own_home)
