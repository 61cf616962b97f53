"""Workers and brokers that are killed while turns wait or are extracted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis

from afterturn import Memory, MemoryRecord, MemoryScope
from afterturn.jobs.broker import KEY_PREFIX
from afterturn.jobs.names import ALL_QUEUES, RECORD_QUEUE
from afterturn.settings import Settings
from tests.fleet.conftest import broker
from tests.fleet.running import Valkey, wait_until
from tests.office.fleet import running_fleet
from tests.office.searching import keys_with

from .turns import ALICE

__all__ = ["broker"]

pytestmark = pytest.mark.fleet

MARKER = "quincemarker"
TURNS = 100
CLIENTS_SPARE = 2  # one that happens to reconnect
SIDES = [f"t:{side}:{lay}" for side in ("user", "assistant") for lay in ("working", "episodic")]

# A model that notes that it was asked, and by which process, and answers once it may.
HELD = """
import asyncio, os
from pathlib import Path
from afterturn import ExtractionResult, MemoryRecord

HERE = Path(__file__).parent


class Held:
    async def extract(self, request):
        (turn,) = request.turns
        (HERE / f"asked-{os.getpid()}").touch()
        while not (HERE / "go").exists():
            await asyncio.sleep(0.01)
        return ExtractionResult(records=[
            MemoryRecord(record_id=f"fact-{number}", scope_path=request.scope.path,
                text=f"{turn.query} {number}", layer="semantic", origin="model")
            for number in range(3)])


def make():
    return Held()
"""


@pytest.fixture
def at_work(settings: Settings, broker: Valkey) -> Settings:
    """Settings under which the workers do it all, and soon notice what was lost."""
    return settings.model_copy(
        update={
            "broker_url": broker.url,
            "extractor": "rules",
            "worker_concurrency": 1,
            "sweep_seconds": 0.2,
            "lease_seconds": 2.0,
            "takeover_seconds": 60.0,
        }
    )


def test_a_worker_killed_in_mid_extraction_is_followed_by_another(
    at_work: Settings, directory: Path
) -> None:
    """Under another name it finishes the turn when the lease is over: one set of facts."""
    (directory / "held.py").write_text(HELD)
    held = at_work.model_copy(update={"extractor": "held:make"})

    async def use() -> None:
        with running_fleet(held, directory) as fleet:
            fleet.beat()
            lost = fleet.worker()
            async with Memory(at_work) as memory:
                async with memory.turn(ALICE, turn_id="t") as turn:
                    ticket = await turn.finish(MARKER, "Noted.")
                await asyncio.to_thread(
                    wait_until, lambda: _asked(directory) == 1, "the model is asked"
                )
                lost.kill()
                (directory / "go").touch()
                await asyncio.to_thread(fleet.worker)
                outcome = await ticket.wait(timeout=40)
                assert (outcome.status, outcome.recorded, outcome.extracted) == ("done", 4, 3)
                await memory.drain(ALICE, timeout=40)
                held_records = [
                    each.record_id
                    async for each in memory.export(ALICE)
                    if isinstance(each, MemoryRecord)
                ]
        assert _asked(directory) == 2
        assert sorted(held_records) == sorted([*SIDES, *(f"fact-{n}" for n in range(3))])

    asyncio.run(use())


def test_a_hundred_waiting_turns_survive_a_restart_of_broker_and_worker(
    at_work: Settings, broker: Valkey, directory: Path
) -> None:
    """Each is done once, although every ring was lost. Another hundred leave no key and no client
    behind; and what waits in the broker holds no word, no scope and no name of a session."""
    with running_fleet(at_work, directory) as fleet:
        fleet.worker().kill()
        asyncio.run(_hand_over(at_work, "first"))
        assert broker.messages(RECORD_QUEUE)
        with redis.Redis(unix_socket_path=str(broker.directory / "valkey.sock")) as client:
            assert [keys_with(client, word) for word in (MARKER, "alice")] == [[], []]
        broker.kill()
        broker.start()
        fleet.worker()
        fleet.beat()
        asyncio.run(_drain(at_work))
        assert asyncio.run(_held(at_work, "first")) == {"turns": TURNS, "messages": 4 * TURNS}

        keys, clients = _keys(broker), _clients(broker)
        asyncio.run(_hand_over(at_work, "second"))
        asyncio.run(_drain(at_work))
        assert asyncio.run(_held(at_work, "second")) == {"turns": TURNS, "messages": 4 * TURNS}
        assert _keys(broker) <= keys
        wait_until(lambda: _clients(broker) <= clients + CLIENTS_SPARE, "no client stays")


def _asked(directory: Path) -> int:
    """How many processes have asked the model."""
    return len(list(directory.glob("asked-*")))


def _scope(name: str) -> MemoryScope:
    return ALICE.child(name)


async def _hand_over(settings: Settings, name: str) -> None:
    async with Memory(settings) as memory:
        for number in range(TURNS):
            async with memory.turn(
                _scope(name), session=f"s-{MARKER}", turn_id=f"t{number}"
            ) as turn:
                await turn.finish(f"I like {MARKER} number {number}.", "Noted.")


async def _drain(settings: Settings) -> None:
    async with Memory(settings) as memory:
        await memory.drain(ALICE, timeout=60)


async def _held(settings: Settings, name: str) -> dict[str, int]:
    async with Memory(settings) as memory:
        held = [each async for each in memory.export(_scope(name))]
        records = [each for each in held if isinstance(each, MemoryRecord)]
        messages = [each for each in records if each.origin == "turn"]
        return {"turns": len(held) - len(records), "messages": len(messages)}


def _keys(broker: Valkey) -> set[str]:
    """Without queues: each is a key while something waits in it."""
    with broker.client() as client:
        found: Any = client.keys("*")
    return set(found) - {f"{KEY_PREFIX}{queue}" for queue in ALL_QUEUES}


def _clients(broker: Valkey) -> int:
    with broker.client() as client:
        told: Any = client.info("clients")
    return int(told["connected_clients"])
