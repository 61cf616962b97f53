"""Waiting for what others do: polling with a backoff, since listening passes no transaction pooler.

A database that goes away meanwhile is no reason to give up before the time is over: the work is in
its ledger and goes on when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from afterturn.errors import MemoryUnavailable

T = TypeVar("T")

_PAUSE_FIRST: Final = 0.003
_PAUSE_MAX: Final = 0.25
_PAUSE_GROWTH: Final = 1.4


async def wait_until(
    look: Callable[[float], Awaitable[T | None]],
    seconds: float,
    *,
    what: str,
    too_late: Callable[[], MemoryUnavailable],
) -> T:
    """What `look` finds; it is told the seconds waited so far, and asked once more at the end.

    At the timeout raises what `too_late` makes or, when the database did not answer then,
    `MemoryUnavailable` that names `what`.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    pause = _PAUSE_FIRST
    while True:
        outage: MemoryUnavailable | None = None
        waited = loop.time() - started
        try:
            found = await look(waited)
        except MemoryUnavailable as error:
            outage = error
        else:
            if found is not None:
                return found
        if waited >= seconds:
            break
        await asyncio.sleep(min(pause, max(0.0, seconds - (loop.time() - started))))
        pause = min(pause * _PAUSE_GROWTH, _PAUSE_MAX)
    if outage is None:
        raise too_late()
    raise MemoryUnavailable(
        "What was waited for is not known: the database does not answer",
        detail=f"{what}, waited {seconds:g} s, last {outage.detail or outage.message}",
        hint="What was acknowledged is safe. Wait again when it is back; see `afterturn doctor`.",
    )
