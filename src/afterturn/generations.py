"""The erase fence, for afterturn itself and for adopters' own tables in the same database.

A turn captures a token (the erase numbers that cover its scope) before it reads anything. A
completed erase moves the number of its scope. A transaction that writes for the turn first takes
SHARED locks on the covering paths, then, in a statement of its own, requires that the token is
still exact: so either the write commits before the erase (which then deletes it) or it is
refused. Lock and check must be two statements: in one, the check would look with a snapshot from
before the wait.

Every joined transaction must be READ COMMITTED and should end soon after: an erase of the scope
waits for it. `db` is an asyncpg pool or connection; `conn` a connection inside a transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import asyncpg
from pydantic import TypeAdapter, ValidationError

from afterturn.database import MIGRATE_HINT, Connection, translating
from afterturn.errors import ErasePending, MemoryContractError, NotMigrated
from afterturn.intake import clean_text
from afterturn.scope import MemoryScope, covering_paths, scope_from_path
from afterturn.writes import Token

__all__ = [
    "Token",
    "advance",
    "capture",
    "covering_paths",
    "lock",
    "observe",
    "require",
    "require_accounted",
    "require_installed",
    "require_on",
]

_TOKEN: Final = TypeAdapter(Token)

Db: TypeAlias = "asyncpg.Pool[Any] | Connection"

_CAPTURE = "select afterturn.capture($1)"
_SCHEMA = "select to_regnamespace('afterturn') is not null"
_TABLES = """
select to_regclass('afterturn.scope_generations') is not null
    and to_regclass('afterturn.erase_intents') is not null
    and to_regclass('afterturn.installation') is not null
"""
_READ_COMMITTED = "select afterturn.require_read_committed()"
_LOCK_SHARED = "select afterturn.lock_shared($1::text[])"
_LOCK_EXCLUSIVE = "select afterturn.lock_exclusive($1::text[])"
# Whether this very transaction holds a scope's exclusive mutation lock.
_HOLDS_EXCLUSIVE = """
select exists (
    select from pg_locks l
    where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.granted
        and l.mode = 'ExclusiveLock' and l.objsubid = 1
        and (l.classid::bigint << 32) | l.objid::bigint = afterturn.lock_key(0, $1))
"""
_REQUIRE_EXACT = "select afterturn.require_exact($1, $2::bigint[])"
_REQUIRE_ACCOUNTED = "select afterturn.require_accounted($1, $2::bigint[], $3)"
_MOVE = "select afterturn.move_erase($1)"
_LOG = """
select afterturn.append_erase_log($1, $2, null, $3, $4, afterturn.clock(), afterturn.clock(), '{}')
"""


def vector_of(path: str, token: Token) -> list[int]:
    """The token's numbers aligned with the covering paths, 0 where nothing was erased.

    Raises `MemoryContractError` when the token belongs to another scope.
    """
    covering = covering_paths(path)
    numbers = _numbers(token)
    if not numbers.keys() <= set(covering):
        raise MemoryContractError(
            "The token was captured for another scope",
            hint="Capture it for the scope that is written, before anything is read.",
        )
    return [numbers.get(each, 0) for each in covering]


def _numbers(token: Token) -> dict[str, int]:
    try:
        return dict(_TOKEN.validate_python(token))
    except ValidationError:
        raise MemoryContractError(
            "That is no token",
            detail=f"got {type(token).__name__}",
            hint="Pass what `capture` returned, or `turn.token`.",
        ) from None


def token_from(path: str, vector: Iterable[int]) -> Token:
    """The inverse of `vector_of`."""
    pairs = zip(covering_paths(path), vector, strict=True)
    return tuple((each, number) for each, number in pairs if number > 0)


async def capture(db: Db, path: str) -> Token:
    """The token of a turn at `path`; take it before the turn reads anything.

    Raises `ErasePending` while an erase that covers the path stands, `NotMigrated` where
    afterturn is not installed.
    """
    stored = scope_from_path(path).stored_path
    with translating():
        vector = await db.fetchval(_CAPTURE, stored)
    if vector is None:
        raise ErasePending(
            "An erase that covers this scope has not completed", hint="Try again when it is done."
        )
    return token_from(path, vector)


async def observe(db: Db, path: str, *, tolerant: bool) -> Token:
    """`capture`, but a tolerant caller gets the empty token where afterturn never was."""
    if tolerant and not await _ever_installed(db):
        scope_from_path(path)
        return ()
    return await capture(db, path)


async def lock(conn: Connection, paths: Iterable[str], *, exclusive: bool = False) -> None:
    """Take the mutation locks for a transaction of your own; they last until it ends.

    SHARED on all covering paths, in ascending order; with `exclusive`, EXCLUSIVE on the paths
    themselves. Name every path of the transaction in one call, and check in a later statement.
    Raises `MemoryContractError` outside a transaction, or in one that is not READ COMMITTED.
    """
    stored = [scope_from_path(path).stored_path for path in paths]
    _require_transaction(conn)
    with translating():
        await conn.execute(_READ_COMMITTED)
        await conn.execute(_LOCK_EXCLUSIVE if exclusive else _LOCK_SHARED, stored)


async def require(db: Db, path: str, token: Token, *, tolerant: bool = False) -> None:
    """Pass only if the token is still exact, with no erase running beside the decision.

    Raises `ErasePending` first if an intent covers the path, then `StaleTurn`. On a connection
    inside a transaction the locks stay until that ends, so what it writes afterwards is covered.
    """
    vector = vector_of(path, token)
    if tolerant and not token and not await _ever_installed(db):
        return
    async with _transaction(db) as conn:
        await lock(conn, [path])
        await _require_exact(conn, path, vector)


async def require_on(conn: Connection, path: str, token: Token) -> None:
    """`require` on a connection that already holds the locks of `path`."""
    vector = vector_of(path, token)
    _require_transaction(conn)
    await _require_exact(conn, path, vector)


async def require_accounted(
    db: Db, path: str, accounted: Token, *, tolerant: bool = False, admitted: bool = False
) -> None:
    """For a write to `path`: each erase number that covers it must stand in `accounted`.

    Raises `ErasePending` while an erase stands, else `StaleTurn` when the caller is an admitted
    turn and `ErasedScope` when it is not.
    """
    numbers = _numbers(accounted)
    vector = [numbers.get(each, 0) for each in covering_paths(path)]
    if tolerant and not await _ever_installed(db):
        return
    async with _transaction(db) as conn:
        await lock(conn, [path])
        with translating():
            await conn.execute(
                _REQUIRE_ACCOUNTED, scope_from_path(path).stored_path, vector, admitted
            )


async def require_installed(conn: Db) -> None:
    """Raise `NotMigrated` when afterturn's tables are missing.

    They are always named with their schema, so another schema on the search path cannot hide them.
    """
    with translating():
        installed = await conn.fetchval(_TABLES)
    if not installed:
        raise NotMigrated(
            "The database has no afterturn tables", detail="schema afterturn", hint=MIGRATE_HINT
        )


async def advance(
    conn: Connection, scope: MemoryScope, *, requested_by: str = "", reason: str = ""
) -> int:
    """Move the scope's erase number and log it, in your transaction; returns the new number.

    Take the exclusive lock first (`lock(conn, [scope.path], exclusive=True)`) and delete your
    rows in the same transaction. Turns that began before are stale from its commit on. Raises
    `MemoryContractError` when the lock is not held.
    """
    await require_installed(conn)
    _require_transaction(conn)
    with translating():
        await conn.execute(_READ_COMMITTED)
        held = await conn.fetchval(_HOLDS_EXCLUSIVE, scope.stored_path)
    if not held:
        raise MemoryContractError(
            "The exclusive lock of the scope is not held",
            hint="Take it in this transaction: lock(conn, [scope.path], exclusive=True).",
        )
    with translating():
        number = int(await conn.fetchval(_MOVE, scope.stored_path))
        notes = (clean_text(requested_by), clean_text(reason))
        await conn.execute(_LOG, scope.stored_path, number, *notes)
    return number


async def _require_exact(conn: Connection, path: str, vector: list[int]) -> None:
    with translating():
        await conn.execute(_REQUIRE_EXACT, scope_from_path(path).stored_path, vector)


def _require_transaction(conn: Connection) -> None:
    if not conn.is_in_transaction():
        raise MemoryContractError(
            "The connection is not inside a transaction",
            hint="The locks last until a transaction ends: begin one, write, and commit.",
        )


async def _ever_installed(db: Db) -> bool:
    with translating():
        return bool(await db.fetchval(_SCHEMA))


@asynccontextmanager
async def _transaction(db: Db) -> AsyncIterator[Connection]:
    if isinstance(db, asyncpg.Pool):
        with translating():
            async with db.acquire() as conn, conn.transaction(isolation="read_committed"):
                yield conn
    elif db.is_in_transaction():
        yield db
    else:
        with translating():
            async with db.transaction(isolation="read_committed"):
                yield db
