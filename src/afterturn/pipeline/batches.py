"""Turn jobs in batches: claimed one after the other, several of them at work at a time.

A model call that hangs keeps its own batch busy and nothing else: while it does, others are
claimed and done beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from afterturn.jobs.heartbeat import Heartbeat
from afterturn.jobs.ledger import ClaimedTurn, Ledger
from afterturn.jobs.names import Kind
from afterturn.jobs.tally import Tally

Batch: TypeAlias = Sequence[ClaimedTurn]
Claim: TypeAlias = Callable[[Sequence[int], int], Awaitable[tuple[list[Batch], bool]]]
"""Takes the named ids and room for how many batches; gives batches, and whether none is left."""
Step: TypeAlias = Callable[[Batch, Tally], Awaitable[None]]

RUN_SECONDS: Final = 10.0
"""After this a run claims no more: what is left has rings of its own, or gets them. While something
that it began before is still at work it cannot end, and goes on serving others."""

_LOOK_AGAIN_SECONDS: Final = 0.5


def any_turns(ledger: Ledger, kind: Kind, size: int) -> Claim:
    """Claims one batch of up to `size` turns, of whatever scopes."""

    async def claim(ids: Sequence[int], _room: int) -> tuple[list[Batch], bool]:
        turns = await ledger.claim_turns(kind, ids, limit=size)
        return [turns] if turns else [], len(turns) < size

    return claim


class TurnBatches:
    """Works on the jobs of one kind: up to `at_once` batches side by side."""

    def __init__(
        self,
        ledger: Ledger,
        kind: Kind,
        claim: Claim,
        step: Step,
        *,
        at_once: int,
        stopping: Callable[[], bool],
    ) -> None:
        self._ledger = ledger
        self._kind = kind
        self._claim = claim
        self._step = step
        self._at_once = at_once
        self._stopping = stopping

    async def run(self, ids: Sequence[int], tally: Tally) -> None:
        """Work on named suspects, then on the other named jobs and on any that wait."""
        heartbeat = Heartbeat(self._ledger)
        async with heartbeat.beating():
            # Alone in this process, each: it may have been the one that killed the last.
            while not self._stopping():
                lost = await self._ledger.claim_turns(self._kind, ids, limit=1, lost=True)
                if not lost:
                    break
                await self._work_on(lost, heartbeat, tally)
            await self._run_waiting(ids, heartbeat, tally)

    async def _run_waiting(self, ids: Sequence[int], heartbeat: Heartbeat, tally: Tally) -> None:
        until = time.monotonic() + RUN_SECONDS
        running: dict[asyncio.Task[None], float] = {}  # with the time of its start
        is_dry = False
        try:
            while not (is_dry and not running):
                has_room = len(running) < self._at_once
                is_over = time.monotonic() > until and min(running.values(), default=until) >= until
                if self._stopping() or is_over:
                    is_dry = True
                elif has_room:
                    batches, is_dry = await self._claim(ids, self._at_once - len(running))
                    for turns in batches:
                        work = self._work_on(turns, heartbeat, tally)
                        running[asyncio.create_task(work)] = time.monotonic()
                    if not is_dry:
                        continue
                if running:
                    pause = _LOOK_AGAIN_SECONDS if has_room else None
                    done, _ = await asyncio.wait(
                        running, timeout=pause, return_when=asyncio.FIRST_COMPLETED
                    )
                    for task in done:
                        del running[task]
                        task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _work_on(
        self, turns: Sequence[ClaimedTurn], heartbeat: Heartbeat, tally: Tally
    ) -> None:
        leases = [turn.lease for turn in turns]
        heartbeat.hold(leases)
        try:
            with tally.timed(self._kind):
                await self._step(turns, tally)
        except asyncio.CancelledError:
            if self._stopping():
                await self._ledger.release(leases)
            raise
        finally:
            heartbeat.drop(leases)
