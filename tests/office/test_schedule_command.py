"""`afterturn schedule`."""

from __future__ import annotations

import pytest

from tests.cli.command import CommandLine
from tests.cli.conftest import alone, commands

__all__ = ["alone", "commands"]

SOON = "2199-03-31"


def test_an_erase_is_added_listed_and_cancelled(alone: CommandLine) -> None:
    """By the clock of a zone: the moment is computed by PostgreSQL and shown in UTC."""
    added = alone.run(
        *("schedule", "add", "--scope", "acme/alice", "--at", f"{SOON} 12:00"),
        *("--zone", "Europe/Berlin", "--requested-by", "dpo", "--reason", "T-1", "--json"),
    )
    assert (added.code, added.json["state"]) == (0, "waiting")
    assert added.json["due_at"] == f"{SOON}T10:00:00Z"
    assert (added.json["requested_by"], added.json["derived"]) == ("dpo", "erase")
    number = added.json["schedule_id"]
    shown = alone.run("schedule", "list")
    assert "v1/acme/alice" in shown.stdout
    assert alone.run("schedule", "cancel", number).stdout == f"schedule {number} is cancelled\n"
    waiting = alone.run("schedule", "list", "--json").json["schedules"]
    assert [each["is_default"] for each in waiting] == [True]
    every = alone.run("schedule", "list", "--all", "--json").json["schedules"]
    assert [each["state"] for each in every] == ["waiting", "cancelled"]
    assert alone.run("schedule", "list", "--all").code == 0


def test_rules(alone: CommandLine) -> None:
    """For a scope or everything, at any time or by a clock."""
    narrow = alone.run(
        *("schedule", "add", "--layer", "episodic", "--older-than", "30d", "--scope", "acme"),
        "--json",
    )
    wide = alone.run(
        *("schedule", "add", "--layer", "working", "--older-than", "12h"),
        *("--daily-at", "02:30", "--zone", "Europe/Berlin"),
    )
    assert (narrow.json["layer"], narrow.json["older_than"]) == ("episodic", "P30D")
    assert narrow.json["scope_path"] == "v1/acme"
    assert "everything" in wide.stdout
    assert "working older than 12h, daily at 02:30 in Europe/Berlin" in wide.stdout
    listed = alone.run("schedule", "list").stdout
    for words in ("episodic older than 30d", "(default)", "everything", "v1/acme"):
        assert words in " ".join(listed.replace("\u2502", " ").split())
    (default,) = [
        each
        for each in alone.run("schedule", "list", "--json").json["schedules"]
        if each["is_default"]
    ]
    refused = alone.run("schedule", "cancel", default["schedule_id"])
    assert (refused.code, refused.stdout) == (1, "")
    assert "AFTERTURN_WORKING_SECONDS" in refused.error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("add", "either --at"),
        ("add --at 2199-01-01T00:00Z", "needs --scope"),
        ("add --scope acme --at 2199-01-01T00:00", "no time zone"),
        ("add --scope acme --at 2199-01-01T00:00Z --zone UTC", "offset of its own"),
        ("add --scope acme --at tomorrow", "not a time"),
        ("add --scope acme --at 2199-01-01T00:00Z --layer working", "either --at"),
        ("add --scope acme --at 2199-01-01T00:00Z --daily-at 02:30", "for rules"),
        ("add --layer working", "erase everything"),
        ("add --older-than 1d", "erase everything"),
        ("add --layer all --older-than 1d", "'all' is not one of"),
        ("add --layer working --older-than 1d --daily-at 25:00 --zone UTC", "time of day"),
        ("add --layer working --older-than 1d --scope acme//x", "segment"),
        ("cancel x", "'x'"),
        ("cancel 0", "0"),
    ],
)
def test_what_cannot_be_understood(arguments: str, says: str) -> None:
    """Exit code 2, and the reason; nothing is asked of the database."""
    outcome = CommandLine().run("schedule", *arguments.split())
    assert (outcome.code, outcome.stdout) == (2, "")
    assert says in outcome.stderr


def test_what_is_refused(alone: CommandLine) -> None:
    """Exit code 1, one line that says why, and nothing has changed."""
    refused = {
        "add --scope acme --at 2020-01-01T00:00Z": "in the past",
        "add --scope acme --at 2199-01-01T00:00 --zone Mars/Olympus": "no such time zone",
        "add --layer working --older-than 0m": "erase everything",
        "add --layer working --older-than 30": "Not an age",
        "add --layer working --older-than 99999w": "never",
        "add --layer working --older-than 1d --daily-at 02:30": "time zone",
        "cancel 12345": "no such schedule",
    }
    for arguments, says in refused.items():
        outcome = alone.run("schedule", *arguments.split())
        assert (outcome.code, outcome.stdout) == (1, "")
        assert says in outcome.error
    assert len(alone.run("schedule", "list", "--all", "--json").json["schedules"]) == 1
