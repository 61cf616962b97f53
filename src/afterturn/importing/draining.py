"""Waiting until what was handed over is processed, by workers or, failing them, by this process.

A worker's extractor may differ from the one that this process would use (its settings, its key
to a model), so the work is the workers' for as long as there are any. Only when nothing has moved
under the scope for a while and no worker is to be seen does this process do the rest itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from afterturn.database import Database
from afterturn.memory import Memory
from afterturn.scope import MemoryScope
from afterturn.status import outstanding

STALL_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True)
class Drain:
    """How to wait for a scope.

    `workers_seen` says whether any worker is connected to the broker; `on_left` is told the
    number of unfinished jobs, `on_takeover` is called once when this process goes to work.
    """

    memory: Memory
    database: Database
    workers_seen: Callable[[], Awaitable[bool]]
    on_left: Callable[[int], None] = lambda _left: None
    on_takeover: Callable[[], None] = lambda: None
    stall_seconds: float = STALL_SECONDS

    async def run(self, scope: MemoryScope) -> bool:
        """Return once nothing is outstanding under the scope; True when this process helped.

        Raises `MemoryUnavailable` when the database goes away.
        """
        if await self._by_workers(scope):
            return False
        self.on_takeover()
        await self._here(scope)
        return True

    async def _by_workers(self, scope: MemoryScope) -> bool:
        """Watch; False once nothing moves and nobody is there who could move it."""
        loop = asyncio.get_running_loop()
        before, moved_at = -1, loop.time()
        while left := await outstanding(self.database, scope):
            self.on_left(left)
            if left != before:
                before, moved_at = left, loop.time()
            elif loop.time() - moved_at >= self.stall_seconds:
                if not await self.workers_seen():
                    return False
                moved_at = loop.time()
            await asyncio.sleep(_POLL_SECONDS)
        self.on_left(0)
        return True

    async def _here(self, scope: MemoryScope) -> None:
        work = asyncio.create_task(self.memory.drain(scope, math.inf, in_process=True))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=_POLL_SECONDS)
                self.on_left(await outstanding(self.database, scope))
            await work
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await work
