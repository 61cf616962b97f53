"""Short directories (sockets), a broker for each test, and proof that no process stays."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it ships no types
import pytest

from afterturn.jobs.rings import RingPublisher
from afterturn.settings import Settings

from .running import Valkey, any_port, wait_until


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory under a short path; afterwards no process works in it.

    The logs in it are printed at the end, which shows them when a test fails.
    """
    path = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    try:
        yield path
        wait_until(lambda: not _working_in(path), f"the processes in {path} ended")
    finally:
        for log in sorted(path.rglob("*.log")):
            print(f"--- {log}\n{log.read_text('utf-8', 'replace')[-4_000:]}")
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def broker(directory: Path) -> Iterator[Valkey]:
    """A broker on a unix socket."""
    yield from _started(Valkey(directory))


@pytest.fixture
def tcp_broker(directory: Path) -> Iterator[Valkey]:
    """A broker on a port of loopback."""
    yield from _started(Valkey(directory, any_port()))


@pytest.fixture
def settings(directory: Path, broker: Valkey) -> Settings:
    """Settings of this test, as if they came from the environment."""
    return Settings(
        home=directory / "home",
        broker_url=broker.url,
        database_url=f"postgresql://nobody@/nothing?host={directory}",
        extractor="none",
        embedder="none",
        worker_concurrency=1,
    )


@pytest.fixture
def publisher_for(directory: Path) -> Iterator[Callable[..., RingPublisher]]:
    """Makes publishers and closes them at the end."""
    made: list[RingPublisher] = []

    def make(url: str, **changes: Any) -> RingPublisher:
        made.append(RingPublisher(url, Settings(home=directory / "home", **changes)))
        return made[-1]

    yield make
    for publisher in made:
        publisher.close(0.0)


def _started(valkey: Valkey) -> Iterator[Valkey]:
    valkey.start()
    try:
        yield valkey
    finally:
        valkey.kill()


def _working_in(path: Path) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            places = [process.cwd(), *process.cmdline()]
        except psutil.Error:
            continue
        if any(place.startswith(str(path)) for place in places):
            found.append(process.pid)
    return found
