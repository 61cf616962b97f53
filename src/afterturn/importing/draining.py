"""Waiting until what was handed over is processed, by workers or, failing them, by this process.

A worker's extractor may differ from the one that this process would use (its settings, its key
to a model), so the work is the workers' for as long as there are any. The ledger shows whether
there are: a worker at work holds leases. Only when for a while nothing was done under the scope
and nobody held a lease anywhere does this process do the rest itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from afterturn.database import Database
from afterturn.memory import Memory
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from afterturn.status import outstanding

_POLL_SECONDS: Final = 0.1

_LEASED = """
select exists (select from afterturn.jobs
    where finished_at is null and lease_token is not null and ready_at > afterturn.clock())
"""


def patience_seconds(settings: Settings) -> float:
    """How long workers may be idle before they are missed: a lost ring is repeated within that."""
    return 3 * settings.sweep_seconds + 1


@dataclass(frozen=True)
class Drain:
    """How to wait for a scope.

    `on_left` is told the number of unfinished jobs; `on_takeover` is called once, when this
    process goes to work.
    """

    memory: Memory
    database: Database
    patience_seconds: float
    on_left: Callable[[int], None] = lambda _left: None
    on_takeover: Callable[[], None] = lambda: None

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
        """Watch; False once nothing has moved for as long as workers may be idle."""
        loop = asyncio.get_running_loop()
        before, moved_at = -1, loop.time()
        while left := await outstanding(self.database, scope):
            self.on_left(left)
            if left != before or await self.database.value(_LEASED):
                before, moved_at = left, loop.time()
            elif loop.time() - moved_at >= self.patience_seconds:
                return False
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
