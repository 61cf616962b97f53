"""A memory whose embedded servers were killed gets them back without anybody else's help."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from afterturn import Memory, Settings, embedded
from afterturn.embedded import EmbeddedServers
from afterturn.errors import MemoryUnavailable

from .running import all_gone, remove, send, wait_until


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, home: Path) -> Settings:
    """Settings of a process that has nothing but embedded servers."""
    for name in ("DATABASE_URL", "BROKER_URL"):
        monkeypatch.delenv(f"AFTERTURN_{name}", raising=False)
    return Settings(home=home)


@pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals are Linux's")
async def test_a_killed_supervisor_costs_no_more_than_one_call(alone: Settings, home: Path) -> None:
    """The call in whose midst it was killed may fail; the next one starts both servers again."""
    async with Memory(alone) as memory:
        before = await memory.status()
        first = running(home)
        send(first.supervisor_pid, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: all_gone(first), "all ended")
        again = await asyncio.gather(*(status_or_none(memory) for _ in range(8)))
        assert await memory.status() == before
        assert all(status in (None, before) for status in again)
        second = running(home)
        assert second.supervisor_pid != first.supervisor_pid
        assert (second.database_url, second.broker_url) == (first.database_url, first.broker_url)
    await asyncio.to_thread(wait_until, lambda: all_gone(second), "nobody keeps them")


async def test_a_removed_home_is_not_begun_anew_in_silence(alone: Settings, home: Path) -> None:
    """A memory whose home was removed says that it is unavailable; it makes no empty one."""
    async with Memory(alone) as memory:
        first = running(home)
        remove(home)
        await asyncio.to_thread(wait_until, lambda: all_gone(first), "all ended")
        for _ in range(2):
            with pytest.raises(MemoryUnavailable):
                await memory.status()
        await asyncio.to_thread(wait_until, lambda: not home.exists(), "no home was made")


def running(home: Path) -> EmbeddedServers:
    """Both servers of the home, which are expected to answer."""
    wait_until(lambda: bool((s := embedded.status(home)) and s.broker_url), "both answer")
    found = embedded.status(home)
    assert found is not None
    return found


async def status_or_none(memory: Memory) -> object:
    """What the ledger holds, or `None` when it cannot be reached."""
    try:
        return await memory.status()
    except MemoryUnavailable:
        return None
