"""The erase against real workers: one holds the turn, a third process forgets."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterturn import Memory, MemoryScope, Settings
from afterturn.fleet import worker_command
from afterturn.jobs.names import EXTRACT_QUEUE, LIFECYCLE_QUEUE, RECORD_QUEUE, SWEEP_QUEUE
from tests.fleet.running import DEADLINE_SECONDS, Running, Valkey, launch, wait_until

pytestmark = pytest.mark.fleet

EXTRACTOR = """
import asyncio
from pathlib import Path
from afterturn import ExtractionResult, MemoryRecord

HERE = Path(__file__).parent


class Held:
    async def extract(self, request):
        (turn,) = request.turns
        (HERE / f"began-{turn.turn_id}").touch()
        while not (HERE / "go").exists():
            await asyncio.sleep(0.01)
        return ExtractionResult(records=[
            MemoryRecord(record_id=f"fact:{turn.turn_id}:{scope.depth}", scope_path=scope.path,
                text=f"{turn.query} at {scope.depth}", layer="semantic", origin="extracted")
            for scope in (request.scope, request.scope.ancestor(1))])


def make():
    return Held()
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    (path / "held_extractor.py").write_text(EXTRACTOR)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def broker(directory: Path) -> Iterator[Valkey]:
    valkey = Valkey(directory)
    valkey.start()
    yield valkey
    valkey.kill()


@pytest.fixture
def fleet_settings(directory: Path, broker: Valkey, database_url: str) -> Settings:
    return Settings(
        home=directory / "home",
        broker_url=broker.url,
        database_url=database_url,
        extractor="held_extractor:make",
        embedder="none",
        worker_concurrency=1,
        takeover_seconds=60.0,  # the workers do it
    )


@pytest.fixture
def workers(directory: Path, fleet_settings: Settings) -> Iterator[list[Running]]:
    """Two workers for every queue, each able to do one thing at a time."""
    started = []
    for name in ("one", "two"):
        ready = directory / f"ready-{name}"
        command = worker_command(
            (RECORD_QUEUE, EXTRACT_QUEUE, LIFECYCLE_QUEUE, SWEEP_QUEUE),
            name=name,
            settings=fleet_settings,
            ready_file=ready,
        )
        started.append(launch(command, directory, name=name, stub=False))
    for name in ("one", "two"):
        wait_until((directory / f"ready-{name}").exists, f"worker {name} is ready")
    yield started
    for running in started:  # both at once
        running.process.terminate()
    for running in started:
        running.stop()


async def test_what_a_worker_holds_does_not_come_back(
    workers: list[Running], directory: Path, fleet_settings: Settings
) -> None:
    """Neither when its model answers at last, nor with the next turn of the same scope."""
    scope = MemoryScope.of("acme", "alice")
    # This process's extractor is never asked: workers compose their own.
    async with Memory(fleet_settings.model_copy(update={"extractor": "none"})) as memory:
        async with memory.turn(scope) as turn:
            await turn.finish("zanzibar", "noted")
        began = (directory / f"began-{turn.turn_id}").exists
        await asyncio.to_thread(wait_until, began, "the model is at work")
        forgetting = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("afterturn")), "forget", "acme/alice", "--json",
            env={
                **os.environ,
                "AFTERTURN_DATABASE_URL": str(fleet_settings.database_url),
                "AFTERTURN_BROKER_URL": str(fleet_settings.broker_url),
                "AFTERTURN_HOME": str(directory / "home"),
            },
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        told, _ = await forgetting.communicate()
        assert json.loads(told)["outcome"] == "done"
        async with memory.turn(scope) as next_turn:
            ticket = await next_turn.finish("madagascar", "noted")
        (directory / "go").touch()
        outcome = await ticket.wait(DEADLINE_SECONDS)
        assert (outcome.status, outcome.recorded, outcome.extracted) == ("done", 4, 2)
        await memory.drain(scope.root, DEADLINE_SECONDS)
        held = [repr(item) async for item in memory.export(scope.root)]
    assert not any("zanzibar" in item for item in held)
    assert sum("madagascar" in item for item in held) == 5  # the turn, its question twice, 2 facts
    wait_until(
        lambda: any(worker.said("stale turn") for worker in workers), "the held work is refused"
    )
