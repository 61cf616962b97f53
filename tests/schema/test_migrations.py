"""A database is brought to this release once, as a whole or not at all."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from afterturn import migrations
from afterturn.database import Connection, Database, connect
from afterturn.errors import ConfigurationError, MemoryUnavailable, NotMigrated
from afterturn.migrations import functions_sql, migrate, require_current, schema_directory
from afterturn.settings import Settings
from tests.schema.catalogue import catalogue
from tests.schema.databases import new_database

SETTINGS = Settings()


async def test_migrations_lead_to_what_the_schema_file_says(
    server_url: str, empty_url: str
) -> None:
    """Tables from `schema.sql` plus the functions: the same catalogue as after all migrations."""
    await migrate(empty_url, SETTINGS)
    async with new_database(server_url) as read_url:
        connection = await connect(read_url, SETTINGS)
        await connection.execute((schema_directory() / "schema.sql").read_text("utf-8"))
        await connection.execute(functions_sql())
        await connection.close()
        described, migrated = await catalogue(read_url), await catalogue(empty_url)
    assert len(migrated["columns"]) > 50
    assert len(migrated["functions"]) > 30
    for kind in migrated:
        assert described[kind] == migrated[kind], kind


async def test_the_comparison_of_catalogues_sees_small_differences(
    database_url: str, server_url: str
) -> None:
    """A default, a collation, a check, an index predicate and a function body all count."""
    changes = {
        "columns": [
            "alter table afterturn.turns alter column outcome set default 'done'",
            'alter table afterturn.turns alter column session type text collate "POSIX"',
            "alter table afterturn.turns add column extra text",
        ],
        "constraints": ["alter table afterturn.turns add constraint more check (query <> '')"],
        "indexes": ["create index on afterturn.turns (staged_at) where query is not null"],
        "functions": [
            "create or replace function afterturn.under_end(path text) returns text "
            "language sql immutable parallel safe as $$ select path $$"
        ],
    }
    before = await catalogue(database_url)
    connection = await asyncpg.connect(database_url)
    try:
        for kind, statements in changes.items():
            for statement in statements:
                await connection.execute(statement)
                after = await catalogue(database_url)
                assert after[kind] != before[kind], statement
                before = after
    finally:
        await connection.close()


async def test_migrating_again_does_nothing(empty_url: str) -> None:
    """The second time nothing is left to do, and the database is what it was."""
    done = await migrate(empty_url, SETTINGS)
    assert done == [*(f"{m.version:04d} {m.name}" for m in migrations.migrations()), "functions"]
    before = await _installation(empty_url)
    assert await migrate(empty_url, SETTINGS) == []
    assert await _installation(empty_url) == before


async def test_two_who_migrate_at_once_do_it_once(empty_url: str) -> None:
    """The later one waits and finds everything done; neither fails."""
    done = await asyncio.gather(*(migrate(empty_url, SETTINGS) for _ in range(4)))
    assert sorted(len(each) for each in done) == [0, 0, 0, len(migrations.migrations()) + 1]
    connection = await asyncpg.connect(empty_url)
    assert await connection.fetchval("select count(*) from afterturn.installation") == 1
    await connection.close()


async def test_each_installation_has_a_key_of_its_own(database_url: str, empty_url: str) -> None:
    """So the keyed hashes of one database say nothing about those of another."""
    await migrate(empty_url, SETTINGS)
    keys = {(await _installation(url))["hash_key"] for url in (database_url, empty_url)}
    assert len(keys) == 2


async def test_functions_that_differ_are_replaced(database_url: str) -> None:
    """Another release's functions give way to this one's, as a whole."""
    before = await catalogue(database_url)
    connection = await asyncpg.connect(database_url)
    await connection.execute("""
        create or replace function afterturn.under_end(path text) returns text
        language sql immutable parallel safe as $$ select 'of another release' $$
    """)
    await connection.execute("update afterturn.installation set functions_digest = 'other'")
    await connection.close()
    assert await migrate(database_url, SETTINGS) == ["functions"]
    assert await catalogue(database_url) == before


async def test_a_migration_that_fails_leaves_the_database_as_it_was(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither half of the migrations nor new functions stay, and the error is ours."""
    with _next_release(tmp_path, monkeypatch) as folder:
        (folder / "migrations/9001_good.sql").write_text("create table afterturn.good (a int);")
        (folder / "migrations/9002_bad.sql").write_text("create table afterturn.good (a int);")
        before = await catalogue(database_url)
        with pytest.raises(MemoryUnavailable) as raised:
            await migrate(database_url, SETTINGS)
        assert "good" not in str(raised.value)
        assert await catalogue(database_url) == before
        (folder / "migrations/9002_bad.sql").write_text("create table afterturn.better (a int);")
        assert await migrate(database_url, SETTINGS) == ["9001 good", "9002 bad"]


async def test_a_database_that_is_newer_is_refused(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older release neither works on it nor migrates it back."""
    with _next_release(tmp_path, monkeypatch) as folder:
        (folder / "migrations/9001_next.sql").write_text("create table afterturn.next (a int);")
        await migrate(database_url, SETTINGS)
    before = await catalogue(database_url)
    with pytest.raises(ConfigurationError, match="9001"):
        await migrate(database_url, SETTINGS)
    with pytest.raises(ConfigurationError, match="newer than this release"):
        await _require_current(database_url)
    assert await catalogue(database_url) == before


async def test_the_release_before_goes_on_with_a_database_that_serves_it(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of it may start again beside the next release, but not migrate back; one that is
    older than what the database serves is refused, and so is one where only a table is newer."""
    ours = migrations.migrations()[-1].version
    with _next_release(tmp_path, monkeypatch) as folder:
        (folder / "migrations/9001_next.sql").write_text("create table afterturn.next (a int);")
        _serve(folder, ours, 9001)
        await migrate(database_url, SETTINGS)
    await _require_current(database_url)
    async with _connection(database_url) as connection:
        assert await migrations.functions_are_current(connection)
    with pytest.raises(ConfigurationError, match="newer than this release"):
        await migrate(database_url, SETTINGS)

    for oldest, newest in ((9001, 9001), (ours, 9000)):
        with _next_release(tmp_path / str(newest - oldest), monkeypatch) as folder:
            (folder / "migrations/9001_next.sql").write_text("")
            _serve(folder, oldest, newest)
            await migrate(database_url, SETTINGS)
        with pytest.raises(ConfigurationError, match="newer than this release"):
            await _require_current(database_url)


async def test_what_the_functions_serve_is_raised_with_the_migrations(database_url: str) -> None:
    """`schema/functions/95_served.sql` names the newest migration, and no older release than is."""
    async with _connection(database_url) as connection:
        served = await connection.fetchrow("select * from afterturn.served()")
    assert served is not None
    oldest, newest = served
    assert newest == migrations.migrations()[-1].version
    assert 1 <= oldest <= newest


async def test_a_database_that_is_older_is_refused(
    database_url: str, empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the command, for a database of an older release as for an empty one."""
    await _require_current(database_url)
    with pytest.raises(NotMigrated, match="afterturn migrate"):
        await _require_current(empty_url)
    with _next_release(tmp_path, monkeypatch) as folder:
        (folder / "migrations/9001_next.sql").write_text("create table afterturn.next (a int);")
        with pytest.raises(NotMigrated, match=r"needs 9001.*afterturn migrate"):
            await _require_current(database_url)


async def test_a_database_that_refuses_gives_an_error_without_driver_details(
    empty_url: str,
) -> None:
    """The SQLSTATE is shown, the server's own text is not."""
    await _set_default(empty_url, "default_transaction_read_only", "on")
    with pytest.raises(MemoryUnavailable) as raised:
        await migrate(empty_url, SETTINGS)
    assert raised.value.detail == "SQLSTATE 25006"
    assert "CREATE SCHEMA" not in str(raised.value)


async def test_the_default_isolation_of_the_database_does_not_matter(empty_url: str) -> None:
    """Who had to wait sees what the other one did, even where REPEATABLE READ is the default."""
    await _set_default(empty_url, "default_transaction_isolation", "repeatable read")
    done = await asyncio.gather(*(migrate(empty_url, SETTINGS) for _ in range(3)))
    assert sorted(len(each) for each in done) == [0, 0, len(migrations.migrations()) + 1]


async def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    """Nothing answers on the socket: an error, no traceback of the driver."""
    with pytest.raises(MemoryUnavailable):
        await migrate(f"postgresql://nobody@/nothing?host={tmp_path}", SETTINGS)


def test_versions_are_numbered_without_gaps() -> None:
    """Files are taken in the order of their numbers, from 1 on."""
    versions = [migration.version for migration in migrations.migrations()]
    assert versions == list(range(1, len(versions) + 1))


async def _require_current(url: str) -> None:
    async with _connection(url) as connection:
        await require_current(connection)


@asynccontextmanager
async def _connection(url: str) -> AsyncIterator[Connection]:
    database = Database(url, SETTINGS, pool_size=1)
    try:
        async with database.connection() as connection:
            yield connection
    finally:
        await database.close()


async def _set_default(url: str, name: str, value: str) -> None:
    connection = await asyncpg.connect(url)
    database = await connection.fetchval("select current_database()")
    await connection.execute(f"""alter database "{database}" set {name} = '{value}'""")
    await connection.close()


async def _installation(url: str) -> dict[str, Any]:
    connection = await asyncpg.connect(url)
    try:
        row = await connection.fetchrow("""
            select i.*, (select array_agg(m order by m.version) from afterturn.migrations m) as log
            from afterturn.installation i
        """)
        assert row is not None
        return dict(row)
    finally:
        await connection.close()


def _serve(schema: Path, oldest: int, newest: int) -> None:
    file = schema / "functions/95_served.sql"
    said = re.sub(r"select \d+, \d+", f"select {oldest}, {newest}", file.read_text("utf-8"))
    file.write_text(said)


@contextmanager
def _next_release(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the SQL that may get more migrations, in force inside the block."""
    schema = folder / "schema"
    shutil.copytree(schema_directory(), schema)
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "schema_directory", lambda: schema)
        yield schema
