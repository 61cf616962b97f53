"""The pool: bounded waits, errors of ours without the driver's details, nothing left behind."""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from afterturn.database import Database, connect, error_code
from afterturn.errors import (
    AfterturnError,
    ErasedScope,
    ErasePending,
    MemoryContractError,
    MemoryUnavailable,
    NotMigrated,
    StaleTurn,
)
from afterturn.settings import Settings

SECRET = "alice-takes-insulin"
QUICK = Settings(connect_timeout_seconds=0.3, command_timeout_seconds=0.3)


@pytest.fixture
async def quick(database_url: str) -> AsyncIterator[Database]:
    """A pool of one connection with short timeouts."""
    pool = Database(database_url, QUICK, pool_size=1)
    yield pool
    await pool.close()


def told(error: BaseException) -> str:
    """All that a log would show of it."""
    return "".join(traceback.format_exception(error)) + repr(error) + str(error)


async def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    """Neither a missing socket nor a closed port gives an error of the driver."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        for place in (f"host={tmp_path}", f"host=127.0.0.1&port={port}"):
            url = f"postgresql://alice:{SECRET}@/nothing?{place}"
            database = Database(url, QUICK, pool_size=1)
            with pytest.raises(MemoryUnavailable, match="cannot be reached") as raised:
                await database.value("select 1")
            assert SECRET not in told(raised.value)
            with pytest.raises(MemoryUnavailable):
                await connect(url, QUICK)
            await database.close()


async def test_a_server_that_never_answers_is_unavailable_after_the_timeout() -> None:
    """A black hole takes the connection and says nothing."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as hole:
        port = hole.sockets[0].getsockname()[1]
        url = f"postgresql://alice@127.0.0.1:{port}/nothing?sslmode=disable"
        database = Database(url, QUICK, pool_size=1)
        with pytest.raises(MemoryUnavailable):
            await database.value("select 1")
        with pytest.raises(MemoryUnavailable):
            await connect(url, QUICK)
        await database.close()


async def test_who_waits_too_long_for_a_connection_is_told(quick: Database) -> None:
    """All in use: unavailable after the timeout, and fine once one is free."""
    async with quick.connection():
        with pytest.raises(MemoryUnavailable):
            await quick.value("select 1")
    assert await quick.value("select 1") == 1


async def test_a_statement_that_takes_too_long_ends(quick: Database) -> None:
    """At the command timeout, and the pool is usable afterwards."""
    with pytest.raises(MemoryUnavailable):
        await quick.value("select pg_sleep(60)")
    assert await quick.value("select 1") == 1


async def test_a_connection_that_the_server_ends_is_replaced(
    quick: Database, database_url: str
) -> None:
    """The statement under way is unavailable, the next one has another connection."""
    pid = await quick.value("select pg_backend_pid()")
    admin = await asyncpg.connect(database_url)

    async def use_while_it_ends() -> None:
        async with quick.connection() as connection:
            await admin.fetchval("select pg_terminate_backend($1, 5000)", pid)
            await connection.fetchval("select 1")

    with pytest.raises(MemoryUnavailable) as raised:
        await use_while_it_ends()
    assert "administrator command" not in told(raised.value)
    assert await quick.value("select pg_backend_pid()") != pid
    await admin.close()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("AT001", ErasePending),
        ("AT002", StaleTurn),
        ("AT003", ErasedScope),
        ("AT004", MemoryContractError),
    ],
)
async def test_what_our_functions_raise_has_its_own_error(
    database: Database, code: str, kind: type[AfterturnError]
) -> None:
    """With the message and the hint they gave."""
    with pytest.raises(kind) as raised:
        await database.value(
            f"do $$ begin raise 'It happened' using errcode = '{code}', hint = 'Do that.'; end $$"
        )
    assert type(raised.value) is kind
    assert str(raised.value) == "It happened. Do that."


@pytest.mark.parametrize(
    "statement",
    [
        "select * from afterturn.no_such_table",
        "select * from no_such_schema.t",
        "select afterturn.no_such_function()",
        "select no_such_column from afterturn.jobs",
    ],
)
async def test_what_is_missing_points_to_the_command(database: Database, statement: str) -> None:
    """A table, a schema, a function, a column of a later release."""
    with pytest.raises(NotMigrated, match="afterturn migrate"):
        await database.value(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "insert into kept values ($1)",
        "select $1::text::int",
        "select $1::text::jsonb",
        "do $$ begin raise 'about %', (select max(t) from kept); end $$",
    ],
)
async def test_values_of_a_statement_do_not_get_into_errors(
    database: Database, statement: str
) -> None:
    """PostgreSQL's own message and detail would repeat them; only the SQLSTATE is shown."""
    async with database.connection() as connection:
        await connection.execute("create table kept (t text primary key)")
        await connection.execute("insert into kept values ($1)", SECRET)
    with pytest.raises(MemoryUnavailable, match="SQLSTATE") as raised:
        await database.value(statement, *([SECRET] if "$1" in statement else []))
    assert SECRET not in told(raised.value)
    assert error_code(raised.value).startswith("MemoryUnavailable SQLSTATE ")


async def test_a_value_that_the_driver_cannot_send_is_not_shown(database: Database) -> None:
    """A text where a number belongs."""
    with pytest.raises(AfterturnError) as raised:
        await database.value("select $1::bigint", SECRET)
    assert SECRET not in told(raised.value)


async def test_errors_of_the_caller_pass_as_they_are(database: Database) -> None:
    """What is no failure of the database is not made one."""
    for error in (ValueError("mine"), StaleTurn("ours"), KeyError("k")):
        with pytest.raises(type(error)) as raised:
            async with database.connection():
                raise error
        assert raised.value is error
    assert error_code(StaleTurn("ours", detail="v1/acme")) == "StaleTurn"


async def test_a_transaction_that_is_cancelled_leaves_nothing(quick: Database) -> None:
    """Neither its locks nor its writes; the connection is free again."""
    await quick.value("create table kept (t text)")
    begun = asyncio.Event()

    async def write() -> None:
        async with quick.connection() as connection, connection.transaction():
            await connection.execute("insert into kept values ('x')")
            await connection.execute("select pg_advisory_xact_lock(7)")
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert await quick.value("select count(*) from kept") == 0
    assert await quick.value("select count(*) from pg_locks where locktype = 'advisory'") == 0


async def test_opening_and_closing_are_legal_at_any_time(database_url: str) -> None:
    """Many at once open one pool, and closing twice is fine."""
    database = Database(database_url, QUICK, pool_size=4)
    await asyncio.gather(*(database.open() for _ in range(5)))
    assert await asyncio.gather(*(database.value("select 1") for _ in range(8))) == [1] * 8
    pid = await database.value("select pg_backend_pid()")
    await database.close()
    await database.close()
    connection = await connect(database_url, QUICK)
    left = "select count(*) from pg_stat_activity where pid = $1"
    async with asyncio.timeout(10):
        while await connection.fetchval(left, pid):
            await asyncio.sleep(0.01)
    await connection.close()


async def test_rows_come_with_json_as_objects(database: Database) -> None:
    """`jsonb` goes in and comes out as Python's own values, through every call."""
    value = {"a": [1, None, "ü"], "b": {}}
    assert await database.value("select $1::jsonb", value) == value
    (row,) = await database.rows("select $1::jsonb as v", value)
    assert row["v"] == value
    assert (await database.row("select $1::jsonb as v", value))["v"] == value
    assert await database.row_or_none("select 1 where false") is None


async def test_connections_kept_at_hand_serve_all_who_wait(database_url: str) -> None:
    """More callers than connections, again and again: none waits in vain, none gets another's."""
    pool = Database(database_url, Settings(connect_timeout_seconds=5.0), pool_size=2)

    async def use(number: int) -> None:
        for _ in range(20):
            async with pool.connection() as connection, connection.transaction():
                await connection.execute("select set_config('test.me', $1, true)", str(number))
                assert await connection.fetchval("select current_setting('test.me')") == str(number)

    await asyncio.gather(*(use(number) for number in range(12)))
    await pool.close()
    await pool.close()


async def test_a_cancelled_statement_does_not_come_back_to_the_next(quick: Database) -> None:
    """A connection whose statement was cancelled goes through the pool, which waits for its end."""
    async with asyncio.timeout(5):
        running = asyncio.create_task(quick.value("select pg_sleep(0.2), 1"))
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await quick.value("select 2") == 2
