"""One database for a whole module: cheaper than one for each test, where tests keep apart."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from afterturn.settings import Settings
from tests.conftest import TEMPLATE, database_named

_names = itertools.count(1)


@contextmanager
def shared_database(home: Path, server_url: str, broker_url: str) -> Iterator[Settings]:
    """Settings for a migrated database that is dropped at the end."""
    name = f"at_shared_{os.getpid()}_{next(_names)}"
    asyncio.run(execute(server_url, f'create database "{name}" template "{TEMPLATE}"'))
    yield Settings(
        home=home,
        database_url=database_named(server_url, name),
        broker_url=broker_url,
        embedder="none",
        wait_timeout_seconds=30.0,
        takeover_seconds=0.0,
        retry_base_seconds=0.05,
    )
    asyncio.run(execute(server_url, f'drop database "{name}" with (force)'))


async def execute(url: str, sql: str) -> None:
    """Run one statement on a connection of its own."""
    connection = await asyncpg.connect(url)
    await connection.execute(sql)
    await connection.close()
