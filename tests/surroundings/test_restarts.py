"""PostgreSQL restarted under callers and workers, and the broker's URLs in every spelling."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterturn import Memory
from afterturn.embedded.binaries import find_postgres
from afterturn.errors import MemoryUnavailable
from afterturn.migrations import migrate
from afterturn.settings import Settings
from tests.fleet.running import Valkey, any_port

from .conftest import StartWorker
from .servers import PASSWORD, QUOTED, Postgres
from .turns import ALICE, BOB, found, travel

pytestmark = pytest.mark.fleet


@pytest.fixture
def postgres(directory: Path) -> Iterator[Postgres]:
    """A server that can be stopped and started."""
    server = Postgres(directory / "pg", find_postgres().directory)
    server.create()
    server.start()
    yield server
    server.stop()


def test_workers_and_callers_survive_a_restart_of_postgresql(
    postgres: Postgres, directory: Path, start_worker: StartWorker
) -> None:
    """While it is down callers get `MemoryUnavailable`; afterwards the same memory and the same
    worker go on, and what was acknowledged before is done."""
    valkey = Valkey(directory)
    valkey.start()
    settings = Settings(
        home=directory / "home",
        database_url=postgres.socket_url,
        broker_url=valkey.url,
        embedder="none",
        worker_concurrency=1,
        connect_timeout_seconds=1.0,
        lease_seconds=2.0,
    )

    async def use() -> None:
        await migrate(postgres.socket_url, settings)
        async with Memory(settings) as memory:
            async with memory.turn(ALICE) as turn:
                before = await turn.finish("My dog is called Rex.", "Noted.")
            worker = start_worker(settings)
            await before.wait(timeout=40)
            half = await memory.begin_turn(BOB)
            await asyncio.to_thread(postgres.stop)
            with pytest.raises(MemoryUnavailable):
                await half.finish("My dog is called Rex, too.", "Noted.")
            with pytest.raises(MemoryUnavailable):
                await found(memory, ALICE)
            await asyncio.to_thread(postgres.start)
            ticket = await half.finish("My dog is called Rex, too.", "Noted.")
            assert (await ticket.wait(timeout=40)).status == "done"
            assert await found(memory, ALICE)
            assert await found(memory, BOB)
            assert worker.process.poll() is None

    try:
        asyncio.run(use())
    finally:
        valkey.kill()


async def test_who_waits_rides_out_a_restart_of_postgresql(
    postgres: Postgres, directory: Path
) -> None:
    """For a turn, for an erase, for nothing outstanding: the wait goes on until the database is
    back, or its own time is over; then it says what it could not find out, and why."""
    settings = Settings(
        home=directory / "home",
        database_url=postgres.socket_url,
        broker_url="redis://127.0.0.1:1/0",
        embedder="none",
        takeover_seconds=0.0,
    )
    await migrate(postgres.socket_url, settings)
    async with Memory(settings) as memory:
        async with memory.turn(ALICE) as turn:
            ticket = await turn.finish("My dog is called Rex.", "Noted.")
        erase = await memory.enqueue_forget(BOB)
        await asyncio.to_thread(postgres.stop)
        for wait, what in (
            (ticket.wait(0.2), f"turn {ticket.turn_id}"),
            (erase.wait(0.2), f"job {erase.job_id}"),
            (memory.drain(ALICE, 0.2), "the drain"),
        ):
            with pytest.raises(MemoryUnavailable, match="the database does not answer") as raised:
                await wait
            assert what in str(raised.value)
        waits = asyncio.gather(
            ticket.wait(40), erase.wait(40), memory.drain(ALICE, 40, in_process=True)
        )
        await asyncio.wait({waits}, timeout=0.2)
        assert not waits.done()
        await asyncio.to_thread(postgres.start)
        outcome, receipt, _ = await waits
        assert (outcome.status, receipt.outcome) == ("done", "done")


@pytest.mark.parametrize("spelling", ["unix", "redis"])
def test_a_turn_travels_whatever_the_brokers_url_is_like(
    spelling: str, database_url: str, directory: Path, start_worker: StartWorker
) -> None:
    """A unix socket as redis-py spells it (Celery's spelling is that of the embedded broker), and
    TCP with a password; in a database of its own number."""
    port = any_port() if spelling == "redis" else 0
    valkey = Valkey(directory, port, password=PASSWORD if port else "")
    valkey.start()
    url = {
        "unix": f"unix://{directory}/valkey.sock?db=3",
        "redis": f"redis://:{QUOTED}@127.0.0.1:{port}/3",
    }[spelling]
    settings = Settings(
        home=directory / "home",
        database_url=database_url,
        broker_url=url,
        embedder="none",
        worker_concurrency=1,
    )
    try:
        start_worker(settings)
        asyncio.run(travel(settings))
        with valkey.client() as client:
            spaces = client.info("keyspace")
        assert set(spaces) == {"db3"}
    finally:
        valkey.kill()
