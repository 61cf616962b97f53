"""Bringing a database to this release: numbered migrations forward, then the functions.

Migrations change tables and never change once released; the functions in `schema/functions` are
replaced as a whole whenever they differ, so their signatures must serve the last release too.

What runs while the last release is at work must not stop it. A change of a table queues behind
whoever reads it, and everybody else queues behind the change: so it waits a moment only, gives way
and comes back.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg

from afterturn.database import MIGRATE_HINT, Connection, connect, translating
from afterturn.errors import ConfigurationError, MemoryUnavailable, NotMigrated
from afterturn.settings import Settings

_LOCK = "select pg_advisory_xact_lock(418330731890)"  # "after": one migration at a time
_LOCK_TIMEOUT = "set local lock_timeout = '2s'"
_GIVE_UP_SECONDS: Final = 60.0
_INSTALLED = "select to_regclass('afterturn.installation') is not null"
_VERSION = "select max(version) from afterturn.migrations"
_DIGEST = "select functions_digest from afterturn.installation"
# Releases since this one say which they serve; asked of a database that is newer.
_SERVED = "select oldest, newest from afterturn.served()"
_HAS_ROLES = "select exists (select from pg_roles where rolname = 'afterturn_app')"
_NOTED = "insert into afterturn.migrations values ($1, $2, clock_timestamp())"
_SET_DIGEST = "update afterturn.installation set functions_digest = $1"
# 244 random bits and the database's own generator, so that a script can say it, too.
_KEYED = """
insert into afterturn.installation (hash_key)
select sha256(decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'))
on conflict do nothing
"""
# The head of a script; what is put in are numbers and our own statements.
_SCRIPT_HEAD = """\
-- afterturn: from migration {current} to {newest}. Stops at the first error when run with
--   psql --set ON_ERROR_STOP=1 --file SCRIPT DATABASE
begin isolation level read committed;
{lock_timeout};
{lock};
do $check$ begin
    if to_regclass('afterturn.migrations') is null then
        if {current} <> 0 then raise exception 'this database has no afterturn tables'; end if;
    else
        -- Dynamic: the table need not exist when this is planned.
        declare found_version integer; begin
            execute 'select coalesce(max(version), 0) from afterturn.migrations' into found_version;
            if found_version <> {current} then
                raise exception 'this script begins at migration {current}, the database is at %',
                    found_version;
            end if;
        end;
    end if;
end $check$;
"""


@dataclass(frozen=True)
class Migration:
    """One numbered file."""

    version: int
    name: str
    sql: str

    @property
    def title(self) -> str:
        """Number and name."""
        return f"{self.version:04d} {self.name}"


def schema_directory() -> Path:
    """Where the SQL lives: inside the installed package, or beside `src` in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "_schema"
    return installed if installed.is_dir() else package.parents[1] / "schema"


def migrations() -> tuple[Migration, ...]:
    """The migrations of this release, in order."""
    found = []
    for file in sorted((schema_directory() / "migrations").glob("*.sql")):
        match = re.fullmatch(r"(\d{4})_(\w+)", file.stem)
        if match:
            found.append(Migration(int(match[1]), match[2], file.read_text("utf-8")))
    return tuple(found)


def functions_sql() -> str:
    """All functions, in the order of their files."""
    files = sorted((schema_directory() / "functions").glob("*.sql"))
    return "\n".join(file.read_text("utf-8") for file in files)


def functions_digest() -> str:
    """Tells one set of functions from another."""
    return hashlib.sha256(functions_sql().encode()).hexdigest()


def roles_sql() -> str:
    """The roles of an application, a worker and an auditor, with their rights; safe to repeat."""
    return (schema_directory() / "roles.sql").read_text("utf-8")


async def migrate(url: str, settings: Settings, *, roles: bool = False) -> list[str]:
    """Apply what is missing, all or nothing; returns what was done.

    With `roles` the database roles are made as well; where they exist they always get their
    rights on what is new. Raises `ConfigurationError` when the database is newer than this
    release, and `MemoryUnavailable` when it cannot be reached or refuses, also when somebody holds
    a table for a minute.
    """
    connection = await connect(url, settings)
    try:
        with translating():
            return await _insist(connection, roles)
    finally:
        await connection.close()


async def _insist(connection: asyncpg.Connection[Any], roles: bool) -> list[str]:
    """Try until nobody holds what is to be changed."""
    until = time.monotonic() + _GIVE_UP_SECONDS
    while True:
        try:
            # READ COMMITTED: what is missing is seen after the wait for another who migrates.
            async with connection.transaction(isolation="read_committed"):
                await connection.execute(_LOCK_TIMEOUT)
                await connection.execute(_LOCK)
                return await _apply(connection, roles)
        except asyncpg.LockNotAvailableError:
            if time.monotonic() > until:
                raise MemoryUnavailable(
                    "The migration does not get at a table that others hold",
                    hint="End the transaction that is open the longest (pg_stat_activity) and "
                    "migrate again; nothing was changed.",
                ) from None
        await asyncio.sleep(random.uniform(0.2, 1.0))


async def _apply(connection: asyncpg.Connection[Any], roles: bool) -> list[str]:
    done: list[str] = []
    current = await _current_version(connection)
    for migration in _missing(current):
        await connection.execute(migration.sql)
        await connection.execute(_NOTED, migration.version, migration.name)
        done.append(migration.title)
    await connection.execute(_KEYED)
    if await connection.fetchval(_DIGEST) != functions_digest():
        await connection.execute(functions_sql())
        await connection.execute(_SET_DIGEST, functions_digest())
        done.append("functions")
    if roles or (done and await connection.fetchval(_HAS_ROLES)):
        await connection.execute(roles_sql())
        done.append("roles")
    return done


async def plan(url: str, settings: Settings) -> list[str]:
    """What `migrate` would do, in the same words; changes nothing. Raises as it does."""
    connection = await connect(url, settings)
    try:
        with translating():
            current = await _current_version(connection)
            steps = [migration.title for migration in _missing(current)]
            digest = await connection.fetchval(_DIGEST) if current else None
            return steps if digest == functions_digest() else [*steps, "functions"]
    finally:
        await connection.close()


async def script_for(url: str, settings: Settings) -> str:
    """`script` for a database as it is now."""
    connection = await connect(url, settings)
    try:
        with translating():
            return script(await _current_version(connection))
    finally:
        await connection.close()


def script(current: int) -> str:
    """SQL that does what `migrate` does to a database at this migration, for psql."""
    missing = _missing(current)
    newest = migrations()[-1].version
    head = _SCRIPT_HEAD.format(
        current=current, newest=newest, lock=_LOCK, lock_timeout=_LOCK_TIMEOUT
    )
    steps = [
        f"-- {m.title}\n{m.sql}\n"
        f"insert into afterturn.migrations values ({m.version}, '{m.name}', clock_timestamp());\n"
        for m in missing
    ]
    foot = (
        f"{_KEYED.strip()};\n-- functions\n{functions_sql()}\n"
        f"update afterturn.installation set functions_digest = '{functions_digest()}';\ncommit;\n"
    )
    return "\n".join([head, *steps, foot])


def _missing(current: int) -> list[Migration]:
    known = migrations()
    _refuse_newer(current, known)
    return [migration for migration in known if migration.version > current]


async def functions_are_current(connection: Connection) -> bool:
    """Whether the database's functions are those of this release, or of the one that migrated it
    further."""
    if await connection.fetchval(_DIGEST) == functions_digest():
        return True
    return await _current_version(connection) > migrations()[-1].version


async def _is_served(connection: Connection, current: int) -> bool:
    """Whether a newer database says that it still serves this release."""
    try:
        served = await connection.fetchrow(_SERVED)
    except asyncpg.UndefinedFunctionError:
        return False
    ours = migrations()[-1].version
    # Tables of another release than the functions are nobody's.
    return served is not None and served["newest"] == current and served["oldest"] <= ours


async def require_current(connection: Connection) -> None:
    """Return when this release can work with the database: its own, or the next release's.

    Raises `NotMigrated` when migrations of this release are missing, `ConfigurationError` when the
    database is so much newer that it does not serve this release any more.
    """
    current = await _current_version(connection)
    known = migrations()
    if current > known[-1].version and not await _is_served(connection, current):
        _refuse_newer(current, known)
    if current < known[-1].version:
        raise NotMigrated(
            "The database lacks what this release needs",
            detail=f"it is at migration {current}, this release needs {known[-1].version}",
            hint=MIGRATE_HINT,
        )


async def _current_version(connection: Connection) -> int:
    if not await connection.fetchval(_INSTALLED):
        return 0
    return int(await connection.fetchval(_VERSION) or 0)


def _refuse_newer(current: int, known: tuple[Migration, ...]) -> None:
    if current > known[-1].version:
        raise ConfigurationError(
            "The database is newer than this release",
            detail=f"it is at migration {current}, this release knows {known[-1].version}",
            hint="Install the afterturn release that migrated it, or a later one.",
        )
