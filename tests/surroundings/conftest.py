"""Workers with the real runner on servers of a test's choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from afterturn.fleet import worker_command
from afterturn.settings import Settings
from tests.fleet.conftest import directory
from tests.fleet.running import Running, launch, wait_until

__all__ = ["directory"]

StartWorker = Callable[[Settings], Running]


@pytest.fixture
def start_worker(directory: Path) -> Iterator[StartWorker]:
    """Starts a worker for all queues that consumes; it has ended afterwards."""
    started: list[Running] = []

    def start(settings: Settings) -> Running:
        ready = directory / f"ready-{len(started)}"
        command = worker_command(name="tested", settings=settings, ready_file=ready)
        started.append(launch(command, directory, name=f"worker-{len(started)}", stub=False))
        wait_until(ready.exists, "the worker is ready")
        return started[-1]

    yield start
    for running in started:
        running.kill()
