"""`afterturn migrate`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import asyncpg
import pytest

from tests.conftest import database_named

from .command import CommandLine


@pytest.fixture
def empty_url(server_url: str) -> Iterator[str]:
    """A database in which afterturn was never installed."""
    name = f"at_empty_{os.getpid()}"

    async def execute(sql: str) -> None:
        admin = await asyncpg.connect(server_url)
        await admin.execute(sql)
        await admin.close()

    asyncio.run(execute(f'create database "{name}"'))
    yield database_named(server_url, name)
    asyncio.run(execute(f'drop database "{name}" with (force)'))


def test_an_empty_database_is_migrated_once(alone: CommandLine, empty_url: str) -> None:
    """What was applied is printed; the second time there is nothing to do; then it can be used."""
    before = alone.run("status", database_url=empty_url)
    assert before.code == 1
    assert "afterturn migrate" in before.error
    first = alone.run("migrate", database_url=empty_url)
    assert first.code == 0
    assert "applied 0001" in first.stdout
    second = alone.run("migrate", database_url=empty_url)
    assert (second.code, second.stdout) == (
        0,
        "nothing to do: the database is at this release\n",
    )
    assert alone.run("status", database_url=empty_url).code == 0


def test_a_script_reads_what_was_applied(alone: CommandLine) -> None:
    """With --json the applied migrations are a list."""
    assert alone.run("migrate", "--json").json == {"applied": []}
