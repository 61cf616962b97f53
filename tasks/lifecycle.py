"""Ordered work on a scope: publish, erase, let expire."""

from __future__ import annotations

from typing import Any

from afterturn.jobs.names import TASKS
from tasks import bridge


@bridge.task(TASKS["flush"])
def flush(*args: Any, **kwargs: Any) -> str:
    """Ring `[ids]`: publish what waits in the scopes of these jobs."""
    return bridge.ring("flush", args, kwargs)


@bridge.task(TASKS["forget"])
def forget(*args: Any, **kwargs: Any) -> str:
    """Ring `[ids]`: erase the scopes of these jobs."""
    return bridge.ring("forget", args, kwargs)


@bridge.task(TASKS["expire"])
def expire(*args: Any, **kwargs: Any) -> str:
    """Ring `[ids]`: remove the records that these jobs found expired."""
    return bridge.ring("expire", args, kwargs)
