"""Real workers, beats and Flower on a broker of their own, for a test's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from afterturn.fleet import FleetCommand, beat_command, flower_command, worker_command
from afterturn.settings import Settings
from tests.fleet.running import Running, launch, wait_until


class Fleet:
    """Parts of the fleet; all have ended when the block of `running_fleet` ends."""

    def __init__(self, settings: Settings, directory: Path, ends: ExitStack) -> None:
        self.settings = settings
        self._directory = directory
        self._ends = ends
        self._started = 0

    def worker(self) -> Running:
        """A worker that consumes."""
        ready = self._directory / f"ready-{self._started}"
        running = self._launch(worker_command(settings=self.settings, ready_file=ready))
        wait_until(ready.exists, "the worker is ready")
        return running

    def beat(self) -> Running:
        """A clock."""
        return self._launch(beat_command(settings=self.settings))

    def flower(self) -> Running:
        """Flower, once it listens."""
        running = self._launch(flower_command(self.settings))
        wait_until(lambda: running.said(f":{self.settings.flower_port}"), "Flower listens")
        return running

    def _launch(self, command: FleetCommand) -> Running:
        self._started += 1
        running = launch(command, self._directory, name=f"part-{self._started}", stub=False)
        self._ends.callback(running.kill)
        self._ends.callback(running.stop)
        return running


@contextmanager
def running_fleet(settings: Settings, directory: Path) -> Iterator[Fleet]:
    """Parts to be started by the test."""
    with ExitStack() as ends:
        yield Fleet(settings, directory, ends)
