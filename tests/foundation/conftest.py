"""Adopters' plain connections, and what the tests of the schema have, too."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.foundation.adopter import Connect, Connection
from tests.schema.conftest import empty_url

__all__ = ["empty_url"]


@pytest.fixture
async def connect(database_url: str) -> AsyncIterator[Connect]:
    """Opens an adopter's plain connections to a database that has a table of theirs."""
    opened: list[Connection] = []

    async def open_one() -> Connection:
        opened.append(await asyncpg.connect(database_url))
        return opened[-1]

    first = await open_one()
    await first.execute("create table notes (path text, body text)")
    yield open_one
    for connection in opened:
        await connection.close()


@pytest.fixture
async def conn(connect: Connect) -> Connection:
    return await connect()


@pytest.fixture
async def other(connect: Connect) -> Connection:
    return await connect()


@pytest.fixture
async def bare(empty_url: str) -> AsyncIterator[Connection]:
    """A connection to a database where afterturn never was."""
    connection = await asyncpg.connect(empty_url)
    await connection.execute("create table notes (path text, body text)")
    yield connection
    await connection.close()
