"""Connections to PostgreSQL: one pool a process, bounded waits, and errors without detail.

Only transaction-level state is ever used (advisory locks, `set_config(…, true)`), so connections
need no reset between uses and a pooler in transaction mode may stand in between.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import asyncpg

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

Connection: TypeAlias = "asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any]"

# SQLSTATEs that the SQL functions raise (schema/functions); everything else is an outage.
_RAISED: dict[str, type[AfterturnError]] = {
    "AT001": ErasePending,
    "AT002": StaleTurn,
    "AT003": ErasedScope,
    "AT004": MemoryContractError,
}
# The last is asyncpg's own state machine, tripped by a connection that broke at a bad moment.
_BROKEN = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_NOT_INSTALLED = {"3F000", "42P01", "42883", "42703"}  # schema, table, function, column missing
MIGRATE_HINT = "Run `afterturn migrate` against this database."


# Kept checked out between uses: taking one from asyncpg's pool and giving it back costs two tasks
# and two timers, half as much as a committed INSERT.
_WARM_MAX = 2


class Database:
    """An asyncpg pool that is opened late and hands out connections with bounded waits.

    `revive` may bring a server back that is not there; it is called in a thread and may block for
    `connect_timeout_seconds`.
    """

    def __init__(
        self,
        url: str,
        settings: Settings,
        *,
        pool_size: int,
        revive: Callable[[], None] | None = None,
    ) -> None:
        self._url = url
        self._settings = settings
        self._pool_size = pool_size
        self._revive = revive
        self._pool: asyncpg.Pool[Any] | None = None
        self._opening = asyncio.Lock()
        self._warm: list[asyncpg.pool.PoolConnectionProxy[Any]] = []
        self._waiting = 0

    async def open(self) -> None:
        """Open the pool; `MemoryUnavailable` when the server does not answer in time."""
        async with self._opening:
            if self._pool is not None:
                return
            with translating():
                self._pool = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=self._pool_size,
                    timeout=self._settings.connect_timeout_seconds,
                    command_timeout=self._settings.command_timeout_seconds,
                    statement_cache_size=self._settings.statement_cache_size,
                    init=_prepare,
                    reset=_no_reset,
                )

    async def close(self) -> None:
        """Close every connection; closing twice is legal."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(self._settings.connect_timeout_seconds):
                while self._warm:
                    await pool.release(self._warm.pop())
                await pool.close()
        except TimeoutError:
            pool.terminate()

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """A connection; whatever goes wrong inside comes out as one of `afterturn.errors`."""
        return _Lending(self)

    async def _open_pool(self) -> asyncpg.Pool[Any]:
        if self._pool is None:
            await self.open()
        assert self._pool is not None  # noqa: S101 - narrowed for the type checker
        return self._pool

    def _take_warm(self) -> asyncpg.pool.PoolConnectionProxy[Any] | None:
        """A connection that is kept and can be used as it is."""
        try:
            usable = self._warm and not self._warm[-1].is_closed()
        except asyncpg.InterfaceError:
            return None  # the server ended it while it was kept, and the pool has taken it back
        return self._warm.pop() if usable else None

    async def _take(self, pool: asyncpg.Pool[Any]) -> asyncpg.pool.PoolConnectionProxy[Any]:
        while self._warm:
            usable = self._take_warm()
            if usable is not None:
                return usable
            await pool.release(self._warm.pop())
        self._waiting += 1
        try:
            return await self._acquire(pool)
        finally:
            self._waiting -= 1

    async def _acquire(self, pool: asyncpg.Pool[Any]) -> asyncpg.pool.PoolConnectionProxy[Any]:
        timeout = self._settings.connect_timeout_seconds
        try:
            return await pool.acquire(timeout=timeout)
        except (ConnectionError, FileNotFoundError):  # nobody listens, or there is no socket
            if self._revive is None:
                raise
        await asyncio.to_thread(self._revive)
        return await pool.acquire(timeout=timeout)

    def _keep(
        self, pool: asyncpg.Pool[Any], connection: asyncpg.pool.PoolConnectionProxy[Any]
    ) -> bool:
        """Keep the connection for the next use; false when the pool is to have it."""
        if pool is not self._pool or self._waiting or len(self._warm) >= _WARM_MAX:
            return False
        self._warm.append(connection)
        return True

    async def rows(self, sql: str, *args: object) -> list[asyncpg.Record]:
        """All rows of one statement, in its own transaction."""
        async with self.connection() as connection:
            return await connection.fetch(sql, *args)

    async def row(self, sql: str, *args: object) -> asyncpg.Record:
        """The one row of a statement that always returns one."""
        found = await self.row_or_none(sql, *args)
        assert found is not None  # noqa: S101 - the statement's promise
        return found

    async def row_or_none(self, sql: str, *args: object) -> asyncpg.Record | None:
        """The first row of one statement, if there is one."""
        async with self.connection() as connection:
            return await connection.fetchrow(sql, *args)

    async def value(self, sql: str, *args: object) -> Any:
        """The first column of the first row of one statement."""
        async with self.connection() as connection:
            return await connection.fetchval(sql, *args)


class _Lending:
    """`async with database.connection()`. A class of its own: on the way of every turn, a generator
    as context manager and one more around its body cost as much as encoding the arguments."""

    __slots__ = ("_connection", "_database", "_pool")

    def __init__(self, database: Database) -> None:
        self._database = database

    async def __aenter__(self) -> Connection:
        database = self._database
        warm = database._take_warm()
        if warm is not None and database._pool is not None:
            self._pool, self._connection = database._pool, warm
            return warm
        with translating():
            self._pool = await database._open_pool()
            self._connection = await database._take(self._pool)
            return self._connection

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None and self._database._keep(self._pool, self._connection):
            return
        with translating():
            await self._pool.release(self._connection)  # a cancelled statement may be waited for
        translating().__exit__(kind, error, trace)


async def connect(url: str, settings: Settings) -> asyncpg.Connection[Any]:
    """One connection outside any pool, for migrations and tools."""
    with translating():
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            url,
            timeout=settings.connect_timeout_seconds,
            statement_cache_size=settings.statement_cache_size,
        )
        await _prepare(connection)
        return connection


async def _prepare(connection: Connection) -> None:
    await connection.set_type_codec(
        "jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
    )


async def _no_reset(connection: Connection) -> None:
    """Skip asyncpg's reset round trip: no session state is ever left behind."""


class translating:  # noqa: N801 - reads as a statement
    """Turns driver errors into ours; their text could hold values, so it is dropped."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, AfterturnError):
            return
        if isinstance(error, asyncpg.PostgresError):
            raise translated(error) from None
        if isinstance(error, _BROKEN):
            raise MemoryUnavailable(
                "The database cannot be reached",
                detail=type(error).__name__,
                hint="Try again; `afterturn doctor` says what to mend.",
            ) from None


def error_code(error: AfterturnError) -> str:
    """What a job keeps of a failure: the error's name and, of a refusal, its SQLSTATE."""
    name = type(error).__name__
    return f"{name} {error.detail}" if error.detail.startswith("SQLSTATE") else name


def translated(error: asyncpg.PostgresError) -> AfterturnError:
    """The afterturn error for what PostgreSQL raised."""
    code = error.sqlstate or ""
    known = _RAISED.get(code)
    if known is not None:
        # Raised by our own functions, whose messages hold no values of the caller.
        return known(str(error.args[0]) if error.args else code, hint=error.hint or "")
    if code in _NOT_INSTALLED:
        return NotMigrated(
            "The database lacks what this release needs",
            detail=f"SQLSTATE {code}",
            hint=MIGRATE_HINT,
        )
    return MemoryUnavailable(
        "The database refused or broke off",
        detail=f"SQLSTATE {code}",
        hint="Try again; the server's log tells more.",
    )
