"""PgBouncer in transaction mode, as Debian ships it, between everything and PostgreSQL.

Few server connections serve many clients, each statement perhaps another one: whatever relied on
the session (advisory locks, settings, prepared statements) would show.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from afterturn import Memory, MemoryScope
from afterturn.settings import Settings
from tests.fleet.running import Valkey
from tests.pipeline.conftest import desk, quiet
from tests.pipeline.test_order import *  # noqa: F403 - the same suite through the pooler

from . import servers
from .conftest import StartWorker
from .servers import PGBOUNCER
from .turns import travel

__all__ = ["desk", "quiet"]

pytestmark = [
    pytest.mark.skipif(not PGBOUNCER, reason="PgBouncer is not installed (pgbouncer)"),
]

_ADVISORY = "select count(*) from pg_locks where locktype = 'advisory'"


@pytest.fixture(scope="module")
def pooler(server_url: str, home: Path) -> Iterator[int]:
    """Its port, in front of the tests' server."""
    query = parse_qs(urlsplit(server_url).query)
    if "host" not in query:
        pytest.skip("the tests' server is not on a unix socket")
    folder = home.with_name(f"{home.name}-pgbouncer")
    with servers.pgbouncer(folder, query["host"][0], int(query["port"][0])) as port:
        yield port


@pytest.fixture
def pooled_url(database_url: str, pooler: int) -> str:
    """The test's database, through the pooler."""
    name = urlsplit(database_url).path
    return f"postgresql://postgres@127.0.0.1:{pooler}{name}"


@pytest.fixture
def settings(home: Path, pooled_url: str, broker_url: str) -> Settings:
    """As everywhere, but through the pooler, which knows no prepared statements."""
    return Settings(
        home=home,
        database_url=pooled_url,
        broker_url=broker_url,
        statement_cache_size=0,
        embedder="none",
        wait_timeout_seconds=30.0,
        retry_base_seconds=0.05,
        takeover_seconds=0.0,
    )


@pytest.fixture
async def database(pooled_url: str, settings: Settings) -> AsyncIterator[Any]:
    """A pool of many clients on the pooler's few connections."""
    from afterturn.database import Database

    pool = Database(pooled_url, settings, pool_size=8)
    yield pool
    await pool.close()


@pytest.mark.fleet
def test_a_turn_travels_through_the_pooler(
    settings: Settings, directory: Path, start_worker: StartWorker, database_url: str
) -> None:
    """Callers, a worker, an erase and the sweep, with many callers at once; no lock stays."""
    valkey = Valkey(directory)
    valkey.start()
    try:
        own = settings.model_copy(
            update={"broker_url": valkey.url, "home": directory, "worker_concurrency": 1}
        )
        start_worker(own)
        asyncio.run(travel(own))
        asyncio.run(_crowd(own))
    finally:
        valkey.kill()
    assert asyncio.run(_value(database_url, _ADVISORY)) == 0


async def _crowd(settings: Settings) -> None:
    """Fifty turns of ten users at once, flushes and erases among them."""
    async with Memory(settings) as memory:

        async def use(number: int) -> None:
            scope = MemoryScope.of("crowd", f"u{number % 10}")
            async with memory.turn(scope) as turn:
                await turn.finish(f"I live at number {number}.", "Noted.")
            if number % 5 == 0:
                await memory.flush(scope)

        await asyncio.gather(*(use(number) for number in range(50)))
        await memory.drain(MemoryScope.of("crowd"), timeout=40)
        for number in range(10):
            scope = MemoryScope.of("crowd", f"u{number}")
            assert len(await memory.transcript(scope)) == 5
        await asyncio.gather(
            *(memory.forget(MemoryScope.of("crowd", f"u{number}")) for number in range(10))
        )
        assert [item async for item in memory.export(MemoryScope.of("crowd"))] == []


async def _value(url: str, sql: str) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()
