"""`afterturn status`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from afterturn.memory import Memory
from afterturn.scope import MemoryScope

from .command import CommandLine

SCOPE = MemoryScope.of("acme", "alice")
MARKER = "quinces"
DEAD = """
update afterturn.jobs set outcome = 'dead', finished_at = afterturn.clock(), reason = 'lost'
where kind = 'record'
"""
STUCK = "update afterturn.jobs set attempts = 3 where kind = 'forget'"
LAPSED = "update afterturn.jobs set lease_token = gen_random_uuid() where kind = 'record'"
STORED = "update afterturn.installation set embedder_model = 'some-model', embedder_dim = 3"
OLD = "update afterturn.jobs set created_at = created_at - interval '10 minutes'"


@pytest.fixture
async def sql(database_url: str) -> Callable[[str], Any]:
    """Runs a statement on the test's database."""

    async def execute(statement: str) -> None:
        connection = await asyncpg.connect(database_url)
        await connection.execute(statement)
        await connection.close()

    return execute


async def _stage(memory: Memory) -> None:
    async with memory.turn(SCOPE) as turn:
        await turn.finish(f"I like {MARKER}", "Noted")


async def _ask_to_forget(memory: Memory) -> None:
    await memory.enqueue_forget(SCOPE)


def _run(sql: Callable[[str], Any], statement: str) -> None:
    asyncio.run(sql(statement))


def test_with_a_dead_broker_it_answers_and_the_check_fails(alone: CommandLine) -> None:
    """A dead broker is shown; only --check makes it a failure."""
    plain = alone.run("status")
    assert plain.code == 0
    assert "does not answer" in plain.stdout
    checked = alone.run("status", "--check", "--json")
    assert checked.code == 1
    assert checked.json["ok"] is False
    assert checked.json["wrong"] == ["the broker does not answer"]
    assert checked.json["broker"] == {"reachable": False, "version": "", "rings": {}}


def test_when_all_is_well_the_check_passes(commands: CommandLine) -> None:
    """Nothing waits, the broker answers: code 0, with the versions of everything."""
    outcome = commands.run("status", "--check", "--json")
    assert outcome.code == 0
    document = outcome.json
    assert (document["ok"], document["wrong"]) == (True, [])
    assert document["broker"]["reachable"] is True
    assert set(document["broker"]["rings"]) == {"record", "extract", "lifecycle", "sweep"}
    assert document["migration"] >= 1
    assert document["postgresql"]
    assert document["release"]
    assert "all is well" in commands.run("status").stdout


def test_what_waits_is_counted_by_kind_and_never_shown(
    alone: CommandLine, using: Callable[..., None]
) -> None:
    """A staged turn is a waiting record job; neither text nor scope appears."""
    using(_stage)
    document = alone.run("status", "--json").json
    assert document["jobs"]["record"]["waiting"] == 1
    assert document["outstanding"] == sum(k["waiting"] for k in document["jobs"].values())
    shown = alone.run("status").stdout + str(document)
    assert "record" in shown
    assert MARKER not in shown
    assert "alice" not in shown


@pytest.mark.parametrize(
    ("embedder", "says", "mend"),
    [
        ("wordllama", "another embedder (stored some-model with 3", "afterturn reembed"),
        ("no-such", "AFTERTURN_EMBEDDER names no embedder (got 'no-such')", "Use wordllama"),
        ("no.such:factory", "cannot be used (there is no module no.such", "PYTHONPATH"),
    ],
)
def test_another_embedder_than_that_of_the_vectors_is_wrong(
    commands: CommandLine, sql: Callable[[str], Any], embedder: str, says: str, mend: str
) -> None:
    """As a process with these settings would find, which could not start; with what to do."""
    _run(sql, STORED)
    assert commands.run("status", "--check", embedder="none").code == 0
    outcome = commands.run("status", "--check", embedder=embedder)
    assert outcome.code == 1
    (line,) = (line for line in outcome.stdout.splitlines() if line.startswith("to look at: "))
    assert says in line
    assert mend in line
    assert commands.run("status", "--json").json["vectors"] == "some-model with 3 dimensions"


def test_a_database_that_was_not_brought_to_this_release_is_not_well(
    commands: CommandLine, sql: Callable[[str], Any], server_url: str
) -> None:
    """Without tables there is no answer but what to type; with other functions it says so."""
    empty = commands.run("status", database_url=server_url)
    assert empty.code == 1
    assert "Run `afterturn migrate`" in empty.error
    _run(sql, "update afterturn.installation set functions_digest = 'another'")
    outcome = commands.run("status", "--check")
    assert outcome.code == 1
    assert "functions are of another release. afterturn migrate" in outcome.stdout


@pytest.mark.parametrize(
    ("prepare", "statement", "expected"),
    [
        (_stage, DEAD, "1 jobs are dead"),
        (_stage, LAPSED, "1 record jobs were left by a lost worker"),
        (_stage, OLD, "the oldest record job has waited"),
        (_ask_to_forget, STUCK, "1 forget jobs are stuck"),
    ],
)
def test_the_check_names_what_is_wrong(
    commands: CommandLine,
    using: Callable[..., None],
    sql: Callable[[str], Any],
    prepare: Callable[[Memory], Any],
    statement: str,
    expected: str,
) -> None:
    """Dead, lapsed, old and stuck jobs each make --check exit with 1 and say so."""
    using(prepare)
    _run(sql, statement)
    outcome = commands.run("status", "--check")
    assert outcome.code == 1
    assert expected in " ".join(outcome.stdout.split())
    assert commands.run("status").code == 0


def test_how_old_is_too_old_is_an_option(
    commands: CommandLine, using: Callable[..., None], sql: Callable[[str], Any]
) -> None:
    """--oldest moves the bound."""
    using(_stage)
    _run(sql, OLD)
    assert commands.run("status", "--check", "--oldest", "3600").code == 0
    assert commands.run("status", "--check", "--oldest", "60").code == 1


def test_a_standing_erase_is_counted(alone: CommandLine, using: Callable[..., None]) -> None:
    """An erase that was requested and has not completed is visible."""
    using(_ask_to_forget)
    assert alone.run("status", "--json").json["standing_intents"] == 1
