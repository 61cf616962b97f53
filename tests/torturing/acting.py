"""What every process of the run that uses memory shares: its notes, its stop, its errors."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from afterturn import Memory, MemoryScope
from afterturn.errors import MemoryUnavailable
from tests.torturing.history import History
from tests.torturing.words import Segments

Part = Callable[["Actor", Memory, random.Random], Awaitable[None]]


class Actor:
    """One life of one process."""

    def __init__(self, folder: Path, role: str, index: int, life: int, seed: int) -> None:
        self.who = f"{role}-{index}-{life}"
        self.seed = seed
        self.folder = folder
        self.history = History(folder, self.who)
        self.stopping = asyncio.Event()

    def note(self, event: str, **fields: object) -> int:
        """See `History.note`."""
        return self.history.note(event, **fields)

    async def pause(self, seconds: float) -> None:
        """Sleep, but not beyond the stop."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        except TimeoutError:
            return

    def crashed(self, error: Exception, op: str = "") -> None:
        """Note an error that nobody promised, with the places it came through."""
        places = [
            f"{Path(frame.filename).name}:{frame.lineno}"
            for frame in traceback.extract_tb(error.__traceback__)[-14:]
        ]
        text = f"{type(error).__name__}: {error}"
        self.note("crash", op=op, error=text[:500], at=places)


def scope_of(segments: Segments) -> MemoryScope:
    """The library's scope."""
    return MemoryScope.of(*segments)


async def act(actor: Actor, parts: list[Part]) -> None:
    """Run the parts side by side, each again and again, until SIGTERM or the parent's end."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, actor.stopping.set)
    watching = asyncio.create_task(_watch_parent(actor))
    memory = await _opened(actor)
    if memory is not None:
        await asyncio.gather(
            *(
                _again(actor, memory, part, random.Random(f"{actor.seed}-{actor.who}-{n}"))
                for n, part in enumerate(parts)
            )
        )
        await memory.close()
    watching.cancel()
    actor.note("left")


async def _opened(actor: Actor) -> Memory | None:
    """An open memory, as soon as the servers let us."""
    while not actor.stopping.is_set():
        try:
            memory = await Memory().open()
        except MemoryUnavailable as error:
            actor.note("not_open", error=str(error))
            await actor.pause(0.3)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            actor.crashed(error)
            await actor.pause(1.0)
        else:
            actor.note("open", pid=os.getpid())
            return memory
    return None


async def _again(actor: Actor, memory: Memory, part: Part, rng: random.Random) -> None:
    while not actor.stopping.is_set():
        try:
            await part(actor, memory, rng)
        except MemoryUnavailable as error:
            actor.note("out_of_reach", error=str(error))
            await actor.pause(0.2)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            actor.crashed(error)
            await actor.pause(0.5)


async def _watch_parent(actor: Actor) -> None:
    """Nobody reads our notes once the run is gone."""
    parent = os.getppid()
    while os.getppid() == parent:
        await asyncio.sleep(0.5)
    actor.stopping.set()
    await asyncio.sleep(5)
    os._exit(1)


def now_seconds() -> float:
    """For deadlines."""
    return time.monotonic()
