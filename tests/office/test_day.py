"""A day at the privacy office, from the evening before to the proof after a restore.

Everything is done with the commands that the how-to shows, on a real database with a real worker
and two beats, in the night in which Berlin's clocks go forward.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest

from afterturn.memory import Memory
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from tests.cli.command import CommandLine, Outcome
from tests.fleet.conftest import broker, directory
from tests.fleet.running import Valkey, wait_until
from tests.office.fleet import running_fleet
from tests.office.restoring import dump, restored, tool

__all__ = ["broker", "directory"]

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.skipif(
        tool("pg_dump") is None or tool("psql") is None, reason="pg_dump and psql are missing"
    ),
]

T = TypeVar("T")
ACME = MemoryScope.of("acme")
ALICE, BOB, CAROL = (ACME.child(name) for name in ("alice", "bob", "carol"))
EVENING = datetime(2031, 3, 29, 18, 0, tzinfo=UTC)
# 02:30 does not exist in Berlin in the night to 30 March 2031: it is taken as 03:30.
DUE = datetime(2031, 3, 30, 1, 30, tzinfo=UTC)
FIELDS = [
    "root_key", "scope_key", "generation", "job_id", "requested_by", "reason", "requested_at",
    "completed_at", "counts", "what", "detail", "previous_hash", "hash",
]  # fmt: skip


@pytest.fixture
def settings(settings: Settings, broker: Valkey) -> Settings:
    return settings.model_copy(
        update={
            "broker_url": broker.url,
            "extractor": "rules",
            "sweep_seconds": 0.2,
            "worker_concurrency": 1,
        }
    )


class Office:
    """The commands, and what happens around them."""

    def __init__(self, settings: Settings, url: str | None = None) -> None:
        self.url = url or str(settings.database_url)
        self.settings = settings.model_copy(update={"database_url": self.url})
        self._line = CommandLine(
            {
                "AFTERTURN_HOME": str(settings.home),
                "AFTERTURN_DATABASE_URL": self.url,
                "AFTERTURN_BROKER_URL": str(settings.broker_url),
                "AFTERTURN_EMBEDDER": "none",
            }
        )

    def run(self, *arguments: object) -> Outcome:
        return self._line.run(*arguments)

    def json(self, *arguments: object) -> Any:
        outcome = self.run(*arguments, "--json")
        assert outcome.code == 0, outcome.stderr
        return outcome.json

    def exported(self, scope: str) -> list[dict[str, Any]]:
        outcome = self.run("export", scope)
        assert outcome.code == 0, outcome.stderr
        return [json.loads(line) for line in outcome.stdout.splitlines()]

    def value(self, statement: str, *arguments: object) -> Any:
        async def ask() -> Any:
            conn = await asyncpg.connect(self.url)
            try:
                return await conn.fetchval(statement, *arguments)
            finally:
                await conn.close()

        return asyncio.run(ask())

    def set_clock(self, moment: datetime) -> None:
        """Of the database, for every connection that is opened from now on."""
        seconds = (moment - datetime.now(UTC)).total_seconds()
        self.value(f"alter database {self._name} set afterturn.clock_offset = '{seconds} seconds'")

    @property
    def _name(self) -> str:
        return str(self.value("select quote_ident(current_database())"))

    def using(self, work: Callable[[Memory], Any]) -> Any:
        async def opened() -> Any:
            async with Memory(self.settings) as memory:
                return await work(memory)

        return asyncio.run(opened())


async def _conversations(memory: Memory) -> None:
    said = {
        ALICE: [("health", "I am allergic to quinces"), ("travel", "I live in Lisbon")],
        BOB: [("work", "My name is Bob and I work at a bakery")],
        CAROL: [("work", "I like rowing")],
    }
    for scope, turns in said.items():
        for session, text in turns:
            async with memory.turn(scope, session=session, turn_id=session) as turn:
                await turn.finish(text, "Noted.")
    await memory.drain(ACME, timeout=30, in_process=True)


def _texts(rows: list[dict[str, Any]]) -> set[str]:
    return {row.get("text") or row.get("query") or "" for row in rows}


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _tampered(lines: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Copies with one thing done to them: each field of an entry, one gone, two swapped."""
    for field in FIELDS:
        copy = [dict(line) for line in lines]
        copy[2][field] = _other(copy[2][field])
        yield "line 3", copy
    yield "line 2", [lines[0], *lines[2:]]
    yield "root", lines[:-1]
    yield "line 3", [*lines[:1], lines[2], lines[1], *lines[3:]]


def _other(value: Any) -> Any:
    if isinstance(value, dict):
        return {**value, "turns": 1_000}
    if value is None or isinstance(value, int):
        return (value or 0) + 1
    if value in ("scope", "named"):
        return "named" if value == "scope" else "scope"
    if value.endswith("Z"):
        return value[:-2] + ("1Z" if value[-2] != "1" else "2Z")
    hexadecimal = len(value) in (32, 64)
    return ("0" if value[:1] != "0" else "1") + value[1:] if hexadecimal else value + "x"


def test_a_day(settings: Settings, directory: Path, server_url: str) -> None:
    """Schedule, cancel, an erase in a night without its hour, a session, the proof, a restore."""
    office = Office(settings)
    office.set_clock(EVENING)
    office.using(_conversations)

    # The evening: two erases are scheduled by Berlin's clock, one is cancelled.
    when = ("--at", "2031-03-30 02:30", "--zone", "Europe/Berlin", "--requested-by", "dpo")
    of_bob = office.json("schedule", "add", "--scope", "acme/bob", *when, "--reason", "T-1")
    of_carol = office.json("schedule", "add", "--scope", "acme/carol", *when, "--reason", "T-2")
    assert datetime.fromisoformat(of_bob["due_at"]) == DUE
    assert office.json("schedule", "cancel", of_carol["schedule_id"])["state"] == "cancelled"

    # Yesterday's backup.
    backup = directory / "backup.sql"
    dump(office.url, backup)
    everything = office.exported("acme")

    # The night: a worker, two beats, and the hour that is not there.
    office.set_clock(DUE - timedelta(seconds=3))
    with running_fleet(office.settings, directory) as fleet:
        fleet.worker()
        fleet.beat()
        fleet.beat()
        wait_until(lambda: office.value(_STATE, of_bob["schedule_id"]) == "done", "it is due")
        # While the erase stands nothing is shown at all.
        wait_until(lambda: office.run("export", "acme/bob").code == 0, "it is done")
        assert office.exported("acme/bob") == []
        office.set_clock(DUE + timedelta(days=1))
        office.value(_TERMINATE_OTHERS)  # so that the worker sees the next day
        ticks = office.value(_RULE_RAN)
        wait_until(lambda: office.value(_RULE_RAN) != ticks, "sweeps go on")
    assert office.value("select count(*) from afterturn.jobs where kind = 'forget'") == 1
    assert office.exported("acme/carol")

    # The day: a session is forgotten; what it showed before is what is gone after.
    before = office.exported("acme/alice")
    receipt = office.using(
        lambda memory: memory.forget_records(
            ALICE, session="health", requested_by="dpo", reason="T-3"
        )
    )
    after = office.exported("acme/alice")
    gone = [row for row in before if row not in after]
    assert [row for row in after if row not in before] == []
    assert receipt.counts["turns"] == sum(row["kind"] == "turn" for row in gone) == 1
    removed = receipt.counts["memories"] + receipt.counts.get("derived", 0)
    assert removed == sum(row["kind"] == "record" for row in gone)
    assert any("quinces" in text for text in _texts(gone))
    assert not any("quinces" in text for text in _texts(after))
    assert any("Lisbon" in text for text in _texts(after))

    # The proof.
    log = directory / "log.jsonl"
    assert office.run("erase-log", "--output", log).code == 0
    assert office.json("verify-erase-log")["entries"] == 2
    assert office.run("verify-erase-log", log, "--receipt", receipt.log_head).code == 0
    (entry,) = office.json("erased", "acme/bob")["erases"]
    assert (entry["requested_by"], entry["reason"], entry["what"]) == ("dpo", "T-1", "scope")
    assert entry["completed_at"] >= DUE.isoformat()
    copy = directory / "copy.jsonl"
    for named, lines in _tampered(_lines(log)):
        copy.write_text("".join(json.dumps(line) + "\n" for line in lines))
        outcome = office.run("verify-erase-log", copy)
        assert outcome.code == 1
        assert named in outcome.stderr

    # The disaster: yesterday's backup, in which everybody is back.
    async def in_the_restored(work: Callable[[Office], T]) -> T:
        async with restored(server_url, backup) as url:
            return await asyncio.to_thread(work, Office(settings, url))

    def after_the_disaster(office_2: Office) -> None:
        assert _by_id(office_2.exported("acme")) == _by_id(everything)
        refused = office_2.run("replay-erasures", copy)
        assert (refused.code, refused.stdout) == (1, "")
        assert "not whole" in refused.error
        report = office_2.json("replay-erasures", log)
        assert sorted(each["scope_path"] for each in report["erased"]) == [ALICE.path, BOB.path]
        assert _by_id(office_2.exported("acme")) == _by_id(office.exported("acme"))
        assert office_2.run("verify-erase-log", "--receipt", receipt.log_head).code == 0
        # Bob's schedule went with him; Carol's was cancelled before the backup.
        waiting = office_2.json("schedule", "list")["schedules"]
        assert [each["is_default"] for each in waiting] == [True]
        (again,) = office_2.json("erased", "acme/bob")["erases"]
        assert again["replays"] == entry["hash"]
        assert office_2.json("replay-erasures", log)["erased"] == []
        assert "erased again" in office_2.run("replay-erasures", log).stdout

    asyncio.run(in_the_restored(after_the_disaster))


_STATE = "select outcome from afterturn.schedules where id = $1"
_RULE_RAN = "select ran_at from afterturn.schedules where is_default"
_TERMINATE_OTHERS = """
select count(pg_terminate_backend(pid)) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid()
"""


def _by_id(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """What is there, but for what expires by itself after a day, in each database in its time."""
    return sorted(
        (row["scope_path"], row["kind"], row.get("record_id") or row["turn_id"])
        for row in rows
        if row.get("layer") != "working"
    )
