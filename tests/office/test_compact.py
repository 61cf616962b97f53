"""What is left of an erased word on disk, and after compacting."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path

import asyncpg
import pytest

from afterturn import compact as compact_module
from afterturn.compact import compact
from afterturn.database import Database
from afterturn.errors import ConfigurationError, MemoryUnavailable
from afterturn.migrations import migrate
from afterturn.records import Source
from afterturn.settings import Settings
from tests.cli.command import CommandLine
from tests.cli.conftest import alone, commands
from tests.office.searching import files_with
from tests.pipeline.conftest import ALICE, CHAT_1, Desk, fact
from tests.schema.databases import new_database

__all__ = ["alone", "commands"]


async def _live(desk: Desk, marker: str) -> None:
    """A turn with the word in everything that a caller chooses, recorded, extracted, sampled."""
    scope = CHAT_1.child(f"x-{marker}")
    for number in range(20):
        turn_id = f"t{number}-{marker}"
        staged = await desk.stage(scope, turn_id, query=f"{marker} " * 20, session=f"s-{marker}")
        await desk.record(staged)
    claimed = await desk.claim_extract(scope, f"t0-{marker}")
    own = Source(turn_id=claimed.turn_id, turn_path=scope.path)
    await desk.extract(claimed, fact(ALICE, f"f-{marker}", f"fact about {marker}", [own]))
    await desk.value("analyze")


async def _data(database: Database) -> Path:
    return Path(await database.value("select current_setting('data_directory')"))


@pytest.mark.skipif(
    "AFTERTURN_DATABASE_URL" in os.environ, reason="the files of a given server are out of reach"
)
async def test_an_erased_word_is_in_no_file_after_compacting(
    desk: Desk, database: Database, database_url: str, settings: Settings
) -> None:
    """It is in tables, indexes, statistics and the log of writes before; in none of them after."""
    marker = f"quetzal{uuid.uuid4().hex}"
    await _live(desk, marker)
    assert await desk.forget(ALICE) == "forgot 1"
    await database.value("checkpoint")
    data = await _data(database)
    left = await asyncio.to_thread(files_with, data, marker)
    assert {name.partition("/")[0] for name in left} == {"base", "pg_wal"}
    assert len([name for name in left if name.startswith("base/")]) > 3

    report = await compact(database_url, settings)
    assert report.statistics
    assert sum(report.bytes_after.values()) < sum(report.bytes_before.values())
    left = await asyncio.to_thread(files_with, data, marker)
    assert {name.partition("/")[0] for name in left} == {"pg_wal"}

    report = await compact(database_url, settings, recycle_wal=True)
    assert report.wal_kept_by == ()
    assert await asyncio.to_thread(files_with, data, marker) == []


async def test_what_is_held_is_as_it_was(
    desk: Desk, database: Database, database_url: str, settings: Settings
) -> None:
    """Nothing but dead rows goes, and work goes on."""
    await _live(desk, "kept")
    before = await desk.texts()
    await compact(database_url, settings)
    assert await desk.texts() == before
    assert (await desk.stage(ALICE, "next")).verdict == "staged"


async def test_an_open_transaction_that_sees_the_erased_is_waited_for(
    desk: Desk, database: Database, database_url: str, settings: Settings
) -> None:
    """Its rows could not be left out; said, instead of a success that is none."""
    await _live(desk, "seen")
    other = await asyncpg.connect(database_url)
    try:
        reading = other.transaction(isolation="repeatable_read")
        await reading.start()
        assert await other.fetchval("select count(*) from afterturn.memories") > 0
        await desk.forget(ALICE)
        with pytest.raises(MemoryUnavailable, match="still sees") as raised:
            await compact(database_url, settings, wait_seconds=0.3)
        assert str(other.get_server_pid()) in raised.value.detail
        waiting = asyncio.create_task(compact(database_url, settings, wait_seconds=30))
        await reading.rollback()
        await waiting
    finally:
        await other.close()
    dead = "select pg_relation_size('afterturn.memories') + pg_relation_size('afterturn.turns')"
    assert await database.value(dead) == 0


async def test_a_table_that_stays_locked(
    desk: Desk, database_url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named, after trying for a while without making others queue."""
    monkeypatch.setattr(compact_module, "LOCK_TRIES", 1)
    other = await asyncpg.connect(database_url)
    try:
        async with other.transaction():
            await other.execute("lock table afterturn.turns in access share mode")
            with pytest.raises(MemoryUnavailable, match="could not be locked") as raised:
                await compact(database_url, settings, wait_seconds=5)
            assert "turns" in raised.value.detail
    finally:
        await other.close()


@pytest.mark.skipif(
    "AFTERTURN_DATABASE_URL" in os.environ, reason="other roles may need a password there"
)
async def test_roles_that_may_less(server_url: str, settings: Settings) -> None:
    """A visitor may not compact: PostgreSQL would pass the tables over with a warning. The owner
    may, but for the planner's samples and the log of writes, which are the whole server's."""
    owner, visitor = (f"{name}_{uuid.uuid4().hex[:12]}" for name in ("owner", "visitor"))
    async with new_database(server_url) as url:
        conn = await asyncpg.connect(url)
        database = await conn.fetchval("select quote_ident(current_database())")
        await conn.execute(f"create role {owner} login; create role {visitor} login")
        await conn.execute(f"grant create on database {database} to {owner}")
        as_owner, as_visitor = (
            url.replace("//postgres@", f"//{role}@") for role in (owner, visitor)
        )
        try:
            await migrate(as_owner, settings)
            await conn.execute(f"grant usage on schema afterturn to {visitor}")
            with pytest.raises(ConfigurationError, match="may not compact") as raised:
                await compact(as_visitor, settings)
            assert "memories" in raised.value.detail
            with pytest.raises(ConfigurationError, match="write-ahead log"):
                await compact(as_owner, settings, recycle_wal=True)
            report = await compact(as_owner, settings)
            assert not report.statistics
            assert report.bytes_after["memories"] > 0
        finally:
            await conn.execute("drop schema if exists afterturn cascade")
            await conn.execute(f"drop owned by {owner}; drop role {owner}, {visitor}")
            await conn.close()


async def test_every_table_is_compacted(
    database: Database, database_url: str, settings: Settings
) -> None:
    """Whatever tables there are."""
    await database.value("create table afterturn.of_tomorrow (text text)")
    report = await compact(database_url, settings)
    assert "of_tomorrow" in report.bytes_after
    assert report.bytes_after.keys() >= {"turns", "memories", "jobs", "schedules", "erase_log"}


def test_the_command(alone: CommandLine) -> None:
    """For people and for scripts."""
    shown = alone.run("compact")
    assert shown.code == 0
    assert "memories" in shown.stdout
    assert "--wal recycles it" in shown.stdout
    told = alone.run("compact", "--wal", "--json").json
    assert told["wal_recycled"] is True
    assert told["bytes_after"]["memories"] > 0
