"""A worker that is told to end while a model call hangs gives the turn back."""

from __future__ import annotations

import signal
from pathlib import Path

import asyncpg
import pytest

from afterturn.fleet import worker_command
from afterturn.memory import Memory
from afterturn.scope import MemoryScope
from afterturn.settings import Settings

from .running import launch, wait_until

pytestmark = pytest.mark.fleet

HANGING = """
import asyncio, os, pathlib

class Hanging:
    async def extract(self, request):
        pathlib.Path(os.environ["FLEET_TEST_DIRECTORY"], "asked").touch()
        await asyncio.Event().wait()

def build():
    return Hanging()
"""
JOB = "select attempts, lease_token from afterturn.jobs where kind = 'extract'"


@pytest.fixture
def hanging(settings: Settings, directory: Path, database_url: str) -> Settings:
    """A real database, and an extractor that never answers."""
    (directory / "hanging.py").write_text(HANGING)
    return settings.model_copy(
        update={
            "database_url": database_url,
            "extractor": "hanging:build",
            "model_timeout_seconds": 600.0,
            "lease_seconds": 600.0,
        }
    )


async def test_what_runs_is_given_back_at_the_end_of_the_grace_period(
    hanging: Settings, directory: Path
) -> None:
    """The turn can be claimed at once by another worker, the attempt is not counted, and the
    worker has ended well."""
    worker = launch(
        worker_command(name="tested", settings=hanging, ready_file=directory / "ready"),
        directory,
        extra_env={"FLEET_TEST_REAL_RUNNER": "1", "FLEET_TEST_GRACE_SECONDS": "10"},
    )
    connection = await asyncpg.connect(hanging.database_url)
    try:
        async with Memory(hanging) as memory:
            async with memory.turn(MemoryScope.of("acme", "alice")) as turn:
                await turn.finish("I like quinces", "Noted")
            wait_until((directory / "asked").exists, "the model is asked")
            held = await connection.fetchrow(JOB)
            assert held is not None
            assert (held["attempts"], held["lease_token"] is None) == (1, False)
            worker.process.send_signal(signal.SIGTERM)
            assert worker.stop() == 0
        left = await connection.fetchrow(JOB)
        assert left is not None
        assert (left["attempts"], left["lease_token"]) == (0, None)
        assert worker.said("'given back: the worker stops'")
        assert not worker.said("leases will expire")
    finally:
        worker.kill()
        await connection.close()
