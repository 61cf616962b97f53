"""Bringing a database to this release: numbered migrations forward, then the functions.

Migrations change tables and never change once released; the functions in `schema/functions` are
replaced as a whole whenever they differ, so their signatures must serve the last release too.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from afterturn.database import MIGRATE_HINT, Connection, connect, translating
from afterturn.errors import ConfigurationError, NotMigrated
from afterturn.settings import Settings

_LOCK_KEY = 0x6166746572  # "after": one migration at a time
_INSTALLED = "select to_regclass('afterturn.installation') is not null"
_VERSION = "select max(version) from afterturn.migrations"
_DIGEST = "select functions_digest from afterturn.installation"


@dataclass(frozen=True)
class Migration:
    """One numbered file."""

    version: int
    name: str
    sql: str


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


async def migrate(url: str, settings: Settings) -> list[str]:
    """Apply what is missing, all or nothing; returns what was done.

    Raises `ConfigurationError` when the database is newer than this release, and
    `MemoryUnavailable` when it cannot be reached or refuses.
    """
    connection = await connect(url, settings)
    try:
        # READ COMMITTED: what is missing is seen after the wait for another who migrates.
        with translating():
            async with connection.transaction(isolation="read_committed"):
                await connection.execute("select pg_advisory_xact_lock($1::bigint)", _LOCK_KEY)
                return await _apply(connection)
    finally:
        await connection.close()


async def _apply(connection: asyncpg.Connection[Any]) -> list[str]:
    done: list[str] = []
    known = migrations()
    current = await _current_version(connection)
    _refuse_newer(current, known)
    for migration in known:
        if migration.version <= current:
            continue
        await connection.execute(migration.sql)
        await connection.execute(
            "insert into afterturn.migrations values ($1, $2, clock_timestamp())",
            migration.version,
            migration.name,
        )
        done.append(f"{migration.version:04d} {migration.name}")
    await connection.execute(
        "insert into afterturn.installation (hash_key) values ($1) on conflict do nothing",
        secrets.token_bytes(32),
    )
    if await connection.fetchval(_DIGEST) != functions_digest():
        await connection.execute(functions_sql())
        await connection.execute(
            "update afterturn.installation set functions_digest = $1", functions_digest()
        )
        done.append("functions")
    return done


async def require_current(connection: Connection) -> None:
    """Raise `NotMigrated` unless the database has every migration of this release."""
    current = await _current_version(connection)
    known = migrations()
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
