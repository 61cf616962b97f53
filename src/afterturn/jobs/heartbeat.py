"""Leases kept alive while their work goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from afterturn.errors import MemoryUnavailable
from afterturn.jobs.ledger import Lease, Ledger


class Heartbeat:
    """Renews a changing set of leases every third of their time, from one background task."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._held: dict[int, Lease] = {}

    def hold(self, leases: Iterable[Lease]) -> None:
        """Keep these alive until they are dropped."""
        self._held.update((lease.job_id, lease) for lease in leases)

    def drop(self, leases: Iterable[Lease]) -> None:
        """Let these go: their work has ended."""
        for lease in leases:
            self._held.pop(lease.job_id, None)

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Renew in the background for as long as the block runs."""
        task = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _beat(self) -> None:
        pause = self._ledger.lease_time.total_seconds() / 3
        while True:
            await asyncio.sleep(pause)
            if not self._held:
                continue
            # Out of reach: the leases run out, somebody else repeats the work, ours is refused.
            with suppress(MemoryUnavailable):
                still = await self._ledger.renew(list(self._held.values()))
                for lost in self._held.keys() - still:
                    self._held.pop(lost)
