"""What `migrate` would do, as a list and as a script, and how it behaves beside those at work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from click.testing import CliRunner

from afterturn import migrations
from afterturn.cli import main
from afterturn.errors import MemoryUnavailable
from afterturn.migrations import migrate, plan, script, script_for
from afterturn.settings import Settings
from tests.schema.catalogue import catalogue
from tests.schema.databases import new_database

SETTINGS = Settings()


@pytest.fixture
async def empty_url(server_url: str) -> AsyncIterator[str]:
    """The URL of an empty database."""
    async with new_database(server_url) as url:
        yield url


async def test_the_plan_is_what_is_then_done(empty_url: str) -> None:
    """Planning changes nothing; afterwards there is nothing to plan."""
    planned = await plan(empty_url, SETTINGS)
    assert await _value(empty_url, "select to_regnamespace('afterturn')") is None
    assert planned[-1] == "functions"
    assert await migrate(empty_url, SETTINGS) == planned
    assert await plan(empty_url, SETTINGS) == []


@pytest.mark.parametrize("begin", [0, 1, 5])
async def test_the_script_does_what_migrate_does(
    server_url: str, empty_url: str, begin: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an empty database as from an older one; and each database has a key of its own."""
    await migrate(empty_url, SETTINGS)
    async with new_database(server_url) as url:
        await _migrate_up_to(url, begin, monkeypatch)
        await _execute(url, await script_for(url, SETTINGS))
        assert await catalogue(url) == await catalogue(empty_url)
        assert await plan(url, SETTINGS) == []
        keys = [await _value(each, "select hash_key from afterturn.installation")
                for each in (url, empty_url)]  # fmt: skip
        assert keys[0] != keys[1]


async def test_a_script_for_another_state_changes_nothing(database_url: str) -> None:
    """It says where it begins and where the database is."""
    before = await catalogue(database_url)
    with pytest.raises(asyncpg.RaiseError, match="begins at migration 1, the database is at"):
        await _execute(database_url, script(1))
    with pytest.raises(asyncpg.RaiseError, match="begins at migration 0, the database is at"):
        await _execute(database_url, script(0))
    assert await catalogue(database_url) == before


async def test_a_script_for_tables_that_are_not_there_is_refused(empty_url: str) -> None:
    """An upgrade script run against the wrong database stops at its first statement."""
    with pytest.raises(asyncpg.RaiseError, match="no afterturn tables"):
        await _execute(empty_url, script(2))


async def test_a_migration_gives_way_and_comes_back(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While somebody holds a table others go on using it; when it is free the migration is done."""
    reader = await asyncpg.connect(database_url)
    transaction = reader.transaction()
    await transaction.start()
    await reader.fetch("select count(*) from afterturn.turns")
    wanted = migrations.Migration(
        migrations.migrations()[-1].version + 1, "more", "alter table afterturn.turns add more int"
    )
    known = (*migrations.migrations(), wanted)
    monkeypatch.setattr(migrations, "migrations", lambda: known)
    monkeypatch.setattr(migrations, "_LOCK_TIMEOUT", "set local lock_timeout = '50ms'")
    migrating = asyncio.create_task(migrate(database_url, SETTINGS))
    # Others are served meanwhile, however long the reader stays.
    for _ in range(20):
        assert await _value(database_url, "select count(*) from afterturn.turns") == 0
        assert not migrating.done()
    await transaction.rollback()
    await reader.close()
    assert await migrating == [wanted.title]


async def test_a_table_that_is_held_for_long_is_an_error(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what to look for, and nothing was changed."""
    holder = await asyncpg.connect(database_url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("select pg_advisory_xact_lock(418330731890)")
    monkeypatch.setattr(migrations, "_LOCK_TIMEOUT", "set local lock_timeout = '10ms'")
    monkeypatch.setattr(migrations, "_GIVE_UP_SECONDS", 0.0)
    with pytest.raises(MemoryUnavailable, match="pg_stat_activity"):
        await migrate(database_url, SETTINGS)
    await transaction.rollback()
    await holder.close()


def test_the_command_prints_plan_and_script(
    database_url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither touches the database; what cannot be combined is a usage error."""
    env = {"AFTERTURN_DATABASE_URL": database_url, "AFTERTURN_HOME": str(home)}

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["migrate", *arguments], env=env)
        return result.exit_code, result.output

    assert run("--plan") == (0, "nothing to do: the database is at this release\n")
    assert run("--sql", "--from", "0") == (0, script(0))
    newest = migrations.migrations()[-1].version
    assert run("--sql") == (0, script(newest))
    assert run("--plan", "--sql")[0] == 2
    assert run("--from", "1")[0] == 2
    code, output = run("--sql", "--from", str(newest + 1))
    assert code == 1
    assert "newer than this release" in output


async def _migrate_up_to(url: str, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if version:
        known = migrations.migrations()[:version]
        with monkeypatch.context() as patch:
            patch.setattr(migrations, "migrations", lambda: known)
            patch.setattr(migrations, "functions_sql", lambda: "select 'of an older release'")
            await migrate(url, SETTINGS)


async def _execute(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


async def _value(url: str, sql: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()
