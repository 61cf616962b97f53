"""`afterturn jobs`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import click
import pytest

from afterturn.cli.jobs import list_
from afterturn.jobs.inspection import JOB_STATES
from afterturn.jobs.names import KINDS
from afterturn.memory import Memory
from afterturn.scope import MemoryScope

from .command import CommandLine

ALICE = MemoryScope.of("acme", "alice")
BOB = MemoryScope.of("acme", "bob")
MARKER = "quinces"
BURY = (
    "select afterturn.end_turn_job(id, 'dead', 'worker lost') from afterturn.jobs where kind = $1"
)


@pytest.fixture
def query(database_url: str) -> Callable[..., list[Any]]:
    """Runs a statement on the test's database; its rows."""

    async def fetch(sql: str, *args: Any) -> list[Any]:
        connection = await asyncpg.connect(database_url)
        try:
            return [tuple(row) for row in await connection.fetch(sql, *args)]
        finally:
            await connection.close()

    return lambda sql, *args: asyncio.run(fetch(sql, *args))


async def _stage(memory: Memory) -> None:
    for scope, turn_id in ((ALICE, "t-alice"), (BOB, "t-bob")):
        async with memory.turn(scope, turn_id=turn_id) as turn:
            await turn.finish(f"I like {MARKER}", "Noted")


async def _drain(memory: Memory) -> None:
    await memory.drain(MemoryScope.of("acme"), in_process=True)


def _jobs(commands: CommandLine, *options: str) -> list[dict[str, Any]]:
    outcome = commands.run("jobs", "list", "--json", *options)
    assert outcome.code == 0
    found: list[dict[str, Any]] = outcome.json["jobs"]
    return found


def test_what_stands_is_listed_and_filtered(
    commands: CommandLine, using: Callable[..., None]
) -> None:
    """By state, kind, scope and turn id; never with text; a page at a time."""
    using(_stage)
    assert [(j["kind"], j["state"], j["turn_id"]) for j in _jobs(commands)] == [
        ("record", "waiting", "t-alice"),
        ("record", "waiting", "t-bob"),
    ]
    assert [j["turn_id"] for j in _jobs(commands, "--scope", "acme/bob")] == ["t-bob"]
    assert [j["turn_id"] for j in _jobs(commands, "--turn", "t-alice")] == ["t-alice"]
    assert _jobs(commands, "--state", "dead") == _jobs(commands, "--kind", "flush") == []
    first = commands.run("jobs", "list", "--json", "--limit", "1").json
    assert (len(first["jobs"]), first["more"]) == (1, True)
    after = str(first["jobs"][0]["job_id"])
    assert [j["turn_id"] for j in _jobs(commands, "--after", after)] == ["t-bob"]
    shown = commands.run("jobs", "list").stdout
    assert "t-alice" in shown
    assert MARKER not in shown


def test_a_dead_job_is_found_by_its_turn_and_done_when_retried(
    commands: CommandLine, using: Callable[..., None], query: Callable[..., list[Any]]
) -> None:
    """A turn that was given up is enqueued anew with all its attempts, and then comes out right."""
    using(_stage)
    query(BURY, "record")
    (job,) = _jobs(commands, "--state", "dead", "--turn", "t-alice")
    told = commands.run("jobs", "show", job["job_id"], "--json").json
    assert (told["state"], told["reason"]) == ("dead", "worker lost")
    assert told["turn"]["outcome"] == "dead"
    assert "worker lost" in commands.run("jobs", "show", job["job_id"]).stdout

    outcome = commands.run("jobs", "retry", job["job_id"], "--json")
    (retried,) = outcome.json["jobs"]
    assert retried["verdict"] == "retried"
    assert retried["job_id"] != job["job_id"]
    assert commands.run("jobs", "show", job["job_id"]).code == 1
    using(_drain)
    assert _jobs(commands, "--turn", "t-alice") == []
    assert query("select turn_id, outcome from afterturn.turns order by 1") == [
        ("t-alice", "done"),
        ("t-bob", "dead"),
    ]
    assert query("select count(*) from afterturn.memories where text like '%quinces%'")[0][0] >= 2


def test_all_dead_jobs_of_a_scope_are_retried_at_once(
    commands: CommandLine, using: Callable[..., None], query: Callable[..., list[Any]]
) -> None:
    """--dead takes those of the scope and kind, and leaves the others."""
    using(_stage)
    query(BURY, "record")
    assert commands.run("jobs", "retry", "--dead", "--kind", "embed", "--json").json["jobs"] == []
    done = commands.run("jobs", "retry", "--dead", "--scope", "acme/bob", "--json").json["jobs"]
    assert len(done) == 1
    assert [j["turn_id"] for j in _jobs(commands, "--state", "dead")] == ["t-alice"]
    assert "record" in commands.run("jobs", "retry", "--dead").stdout
    assert "no job is dead" in commands.run("jobs", "retry", "--dead").stdout


def test_a_given_up_extraction_is_retried_with_the_numbers_that_hold_now(
    commands: CommandLine, using: Callable[..., None], query: Callable[..., list[Any]]
) -> None:
    """An erase elsewhere that moved a number above the turn does not make its retry stale."""
    using(_stage)
    query("update afterturn.jobs set attempts = 0")

    async def record(memory: Memory) -> None:
        await memory.flush(ALICE)
        await memory.flush(BOB)

    using(record)
    query(BURY, "extract")
    query("select afterturn.move_erase('v1/acme/')")
    assert len(commands.run("jobs", "retry", "--dead", "--json").json["jobs"]) == 2
    using(_drain)
    assert query("select outcome, extracted is null from afterturn.turns") == [
        ("done", False),
        ("done", False),
    ]


def test_a_job_that_waits_for_its_time_may_run_at_once(
    commands: CommandLine, using: Callable[..., None], query: Callable[..., list[Any]]
) -> None:
    """A backoff is cut short; what a worker holds is left alone."""
    using(_stage)
    later = "update afterturn.jobs set ready_at = ready_at + interval '1 hour', ring_at = ring_at"
    query(f"{later} + interval '1 hour'")
    first, second = (str(job["job_id"]) for job in _jobs(commands))
    assert "may run now" in commands.run("jobs", "retry", first).stdout
    ready = "select id::text from afterturn.jobs where ready_at <= afterturn.clock()"
    assert query(ready) == [(first,)]
    query("update afterturn.jobs set lease_token = gen_random_uuid() where id::text = $1", second)
    assert _jobs(commands, "--state", "running")[0]["job_id"] == int(second)
    refused = commands.run("jobs", "retry", second)
    assert refused.code == 1
    assert "A worker holds the job" in refused.error


def test_nothing_is_retried_under_a_standing_erase(
    commands: CommandLine, using: Callable[..., None], query: Callable[..., list[Any]]
) -> None:
    """The erase takes the job with it; what waits behind the erase is shown as blocked."""
    using(_stage)
    query(BURY, "record")
    job = _jobs(commands, "--turn", "t-alice")[0]["job_id"]

    async def ask(memory: Memory) -> None:
        await memory.enqueue_forget(MemoryScope.of("acme"))
        await memory.enqueue_flush(ALICE)

    using(ask)
    assert "is being erased" in commands.run("jobs", "retry", job).error
    assert commands.run("jobs", "retry", "--dead", "--json").json["jobs"] == []
    (blocked,) = _jobs(commands, "--state", "blocked")
    assert blocked["kind"] == "flush"
    assert f"job {blocked['blocked_by']}" in " ".join(
        commands.run("jobs", "show", blocked["job_id"]).stdout.split()
    )


def test_every_kind_and_state_can_be_asked_for() -> None:
    """The choices are those of the library."""
    choices = {p.name: p.type.choices for p in list_.params if isinstance(p.type, click.Choice)}
    assert choices == {"states": JOB_STATES, "kinds": KINDS}


def test_an_unknown_job_is_named(commands: CommandLine) -> None:
    """With the way to see what there is."""
    outcome = commands.run("jobs", "show", 4711)
    assert outcome.code == 1
    assert "4711" in outcome.error
    assert "jobs list" in outcome.error


@pytest.mark.parametrize("action", ["show", "retry"])
def test_a_number_that_no_job_can_have_is_refused(commands: CommandLine, action: str) -> None:
    """As what it is, and not as a database to be tried again."""
    outcome = commands.run("jobs", action, 2**63)
    assert outcome.code == 1
    assert "whole number" in outcome.error
    assert "Try again" not in outcome.error


@pytest.mark.parametrize(
    "arguments",
    [("retry",), ("retry", "1", "--dead"), ("retry", "1", "--kind", "embed"), ("show",)],
)
def test_what_makes_no_sense_is_a_usage_error(
    commands: CommandLine, arguments: tuple[str, ...]
) -> None:
    """Name jobs, or say which."""
    assert commands.run("jobs", *arguments).code == 2
