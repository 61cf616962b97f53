"""Callers whose broker is dead, frozen or black-holed, and callers that leave at once."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterturn import Memory, MemoryQuery
from afterturn.settings import Settings
from tests.fleet.running import DEADLINE_SECONDS, Valkey, any_port, black_hole

from .turns import ALICE

# A process that hands over and leaves, with whatever its broker is like.
LEAVING = """
import asyncio, sys
from afterturn import Memory, MemoryScope
from afterturn.settings import Settings

async def leave():
    settings = Settings(database_url=sys.argv[1], broker_url=sys.argv[2], embedder="none")
    async with Memory(settings) as memory:
        for number in range(20):
            async with memory.turn(MemoryScope.of("acme", "alice")) as turn:
                await turn.finish(f"I like quinces {number}", "Noted")

asyncio.run(leave())
"""


@contextlib.contextmanager
def _broker(kind: str, directory: Path) -> Iterator[str]:
    if kind == "dead":
        yield f"redis://127.0.0.1:{any_port()}/0"
    elif kind == "black hole":
        with black_hole() as port:
            yield f"redis://127.0.0.1:{port}/0"
    else:
        valkey = Valkey(directory)
        valkey.start()
        if kind == "frozen":
            valkey.freeze()
        try:
            yield valkey.url
        finally:
            valkey.kill()


@pytest.mark.parametrize("kind", ["alive", "dead", "frozen", "black hole"])
async def test_closing_right_after_finish_loses_nothing(
    kind: str, directory: Path, database_url: str, settings: Settings
) -> None:
    """A process ends cleanly and quietly right after its last hand-over; every turn is on disk,
    and is recorded by whoever comes."""
    with _broker(kind, directory) as url:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", LEAVING, database_url, url],
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            cwd=directory,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    async with Memory(settings) as memory:
        await memory.drain(ALICE, in_process=True)
        assert len(await memory.transcript(ALICE)) == 20


@pytest.mark.parametrize("kind", ["dead", "frozen", "black hole"])
async def test_everything_goes_on_without_a_broker(
    kind: str, directory: Path, settings: Settings
) -> None:
    """Turns, reads, a flush and an erase complete in the calling process."""
    with _broker(kind, directory) as url:
        async with Memory(settings.model_copy(update={"broker_url": url})) as memory:
            async with memory.turn(ALICE) as turn:
                await turn.finish("My dog is called Rex.", "Noted.")
            assert (await memory.flush(ALICE)).outcome == "done"
            query = MemoryQuery(scope=ALICE, text="what is my dog called?")
            assert (await memory.retrieve(query)).memories
            assert (await memory.forget(ALICE)).counts["turns"] == 1
            assert not (await memory.retrieve(query)).memories
