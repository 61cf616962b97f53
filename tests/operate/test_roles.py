"""Roles with the least rights: each does its own work and nothing else."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from afterturn import Memory, MemoryQuery, MemoryScope
from afterturn.database import Database
from afterturn.migrations import migrate, migrations
from afterturn.settings import Settings
from afterturn.status import read_status

ALICE = MemoryScope.of("acme", "alice")
ROLES = ("afterturn_app", "afterturn_worker", "afterturn_auditor")
DEAD_BROKER = "redis://127.0.0.1:1/0"
MARKER = "quinces"


@pytest.fixture
async def owned_url(database_url: str) -> AsyncIterator[str]:
    """A database with the roles and a login for each; none of them is left behind."""
    assert await migrate(database_url, Settings(), roles=True) == ["roles"]
    owner = await asyncpg.connect(database_url)
    try:
        for role in ROLES:
            await owner.execute(f"create role {_login(role)} login; grant {role} to {_login(role)}")
        yield database_url
    finally:
        for role in ROLES:
            await owner.execute(f"drop owned by {role}; drop role {_login(role)}, {role}")
        await owner.close()


async def test_an_application_does_all_that_the_library_does(
    owned_url: str, settings: Settings
) -> None:
    """Turns, reading, writing, flush, forget, schedules, in its own process; with nobody's help."""
    async with Memory(_as(settings, owned_url, "afterturn_app")) as memory:
        async with memory.turn(ALICE, turn_id="t1") as turn:
            await turn.retrieve("anything?")
            await turn.finish(f"I like {MARKER}", "Noted")
        await memory.remember(ALICE, "prefers tea")
        await memory.drain(ALICE, timeout=30, in_process=True)
        found = await memory.retrieve(MemoryQuery(scope=ALICE, text=MARKER))
        assert any(MARKER in each.record.text for each in found.memories)
        assert [turn async for turn in memory.export(ALICE)]
        await memory.status()
        receipt = await memory.forget(ALICE, requested_by="alice")
        assert receipt.counts["turns"] == 1


async def test_a_worker_settles_the_embedder_and_an_application_does_not(
    owned_url: str,
) -> None:
    """The one difference between the two."""
    claim = "select * from afterturn.claim_embedder('some model', 3)"
    assert await _refused(owned_url, "afterturn_app", claim)
    assert not await _refused(owned_url, "afterturn_worker", claim)


async def test_an_erase_takes_sessions_that_it_may_not_see_to_be_at_work(owned_url: str) -> None:
    """So it pauses between its parts rather than standing in their way."""
    ask = "select afterturn.others_worked(interval '0')"
    worker = await asyncpg.connect(_url(owned_url, "afterturn_worker"))
    application = await asyncpg.connect(_url(owned_url, "afterturn_app"))
    try:
        assert await worker.fetchval(ask)
        await application.close()
    finally:
        await worker.close()


FOR_THE_OWNER = (
    "create table afterturn.more (a int)",
    "alter table afterturn.turns add more int",
    "drop table afterturn.probes",
    "truncate afterturn.turns cascade",
    "create or replace function afterturn.under_end(path text) returns text language sql "
    "immutable parallel safe as 'select path'",
    "delete from afterturn.erase_log",
    "update afterturn.erase_log set reason = ''",
    "delete from afterturn.erase_log_heads",
    "delete from afterturn.scope_generations",
    "update afterturn.installation set hash_key = sha256('')",
    "delete from afterturn.installation",
    "insert into afterturn.migrations values (99, 'x', clock_timestamp())",
)


async def test_nobody_but_the_owner(owned_url: str) -> None:
    """Changes tables or functions, empties them, takes back a number or an entry of the log."""
    for role in ROLES:
        for statement in FOR_THE_OWNER:
            assert await _refused(owned_url, role, statement), (role, statement)


async def test_an_auditor_sees_that_something_was_erased_and_no_text(
    owned_url: str, settings: Settings
) -> None:
    """The log and the ledger's state; neither text nor a path, and nothing can be written."""
    async with Memory(_as(settings, owned_url, "afterturn_app")) as memory:
        async with memory.turn(ALICE) as turn:
            await turn.finish(f"I like {MARKER}", "Noted")
        await memory.drain(ALICE, timeout=30, in_process=True)
        await memory.remember(MemoryScope.of("acme", "bob"), "prefers tea")
        await memory.forget(ALICE, requested_by="alice", reason="ticket 17")
    url = _url(owned_url, "afterturn_auditor")
    auditor = await asyncpg.connect(url)
    try:
        entry = await auditor.fetchrow(
            "select requested_by, reason from afterturn.erase_log"
            " where scope_key = afterturn.scope_key('v1/acme/alice/')"
        )
        assert entry is not None
        assert tuple(entry) == ("alice", "ticket 17")
    finally:
        await auditor.close()
    database = Database(url, settings, pool_size=1)
    assert (await read_status(database)).migration > 0
    await database.close()
    for column in ("path", "text", "metadata"):
        statement = f"select {column} from afterturn.memories"
        assert await _refused(owned_url, "afterturn_auditor", statement)
    for table, column in (
        ("turns", "query"), ("jobs", "path"), ("jobs", "request"), ("erase_intents", "path"),
        ("schedules", "path"), ("fact_statements", "text"), ("memory_sources", "turn_path"),
        ("token_usage", "path"),
    ):  # fmt: skip
        assert await _refused(
            owned_url, "afterturn_auditor", f"select {column} from afterturn.{table}"
        )
    for statement in (
        "delete from afterturn.jobs",
        "insert into afterturn.erase_intents values ('v1/acme/', 1)",
        "select afterturn.capture('v1/acme/'); select * from afterturn.enqueue_lifecycle("
        "'forget', 'v1/acme/', '{}', '1 second')",
    ):
        assert await _refused(owned_url, "afterturn_auditor", statement)


async def test_what_a_migration_adds_gets_its_rights(
    owned_url: str,
) -> None:
    """Where the roles exist a migration repeats their rights by itself."""
    owner = await asyncpg.connect(owned_url)
    await owner.execute("drop table afterturn.probes")
    await owner.execute(next(each.sql for each in migrations() if each.name == "probes"))
    await owner.execute("update afterturn.installation set functions_digest = 'other'")
    await owner.close()
    ask = "select afterturn.ask_probes(array[gen_random_uuid()])"
    assert await _refused(owned_url, "afterturn_app", ask)
    assert await migrate(owned_url, Settings()) == ["functions", "roles"]
    assert not await _refused(owned_url, "afterturn_app", ask)


async def test_a_stranger_sees_nothing(owned_url: str) -> None:
    """A login without any of the roles cannot even look into the schema."""
    owner = await asyncpg.connect(owned_url)
    await owner.execute(f"create role {_login('nobody')} login")
    try:
        assert await _refused(owned_url, "nobody", "select * from afterturn.migrations")
        assert await _refused(owned_url, "nobody", "select afterturn.capture('v1/acme/')")
    finally:
        await owner.execute(f"drop role {_login('nobody')}")
        await owner.close()


async def _refused(url: str, role: str, statement: str) -> bool:
    connection = await asyncpg.connect(_url(url, role))
    try:
        await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError:
        return True
    finally:
        await connection.close()
    return False


def _as(settings: Settings, url: str, role: str) -> Settings:
    return settings.model_copy(update={"database_url": _url(url, role), "broker_url": DEAD_BROKER})


def _login(role: str) -> str:
    return f"at_{role}_{os.getpid()}"


def _url(url: str, role: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{_login(role)}@{host}"))
