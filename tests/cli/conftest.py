"""A command line with a database of its own; no embedder, and a broker that may be dead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from afterturn.memory import Memory
from afterturn.settings import Settings

from .command import CommandLine

DEAD_BROKER = "redis://127.0.0.1:1/0"
T = TypeVar("T")


@pytest.fixture
def commands(settings: Settings) -> CommandLine:
    """The command line on this test's database, with a broker that answers and no workers."""
    return CommandLine(
        {
            "AFTERTURN_HOME": str(settings.home),
            "AFTERTURN_DATABASE_URL": str(settings.database_url),
            "AFTERTURN_BROKER_URL": str(settings.broker_url),
            "AFTERTURN_EMBEDDER": "none",
            "AFTERTURN_TAKEOVER_SECONDS": "0",
            "AFTERTURN_SWEEP_SECONDS": "0.05",
        }
    )


@pytest.fixture
def alone(commands: CommandLine) -> CommandLine:
    """The same with a broker that is dead."""
    return CommandLine({**commands.settings, "AFTERTURN_BROKER_URL": DEAD_BROKER})


@pytest.fixture
def using(settings: Settings) -> Callable[[Callable[[Memory], Awaitable[T]]], T]:
    """Runs something with an open memory on the same database, whose broker is dead, too."""

    def run(work: Callable[[Memory], Awaitable[T]]) -> T:
        async def opened() -> T:
            lonely = settings.model_copy(update={"broker_url": DEAD_BROKER})
            async with Memory(lonely) as memory:
                return await work(memory)

        return asyncio.run(opened())

    return run


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A directory with files that would be imported by mistake if it were on the path."""
    for name in ("afterturn", "click", "asyncio"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    return tmp_path
