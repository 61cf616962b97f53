"""The tick of the beat."""

from __future__ import annotations

from typing import Any

from afterturn.jobs.names import SWEEP_TASK
from tasks import bridge


@bridge.task(SWEEP_TASK)
def sweep(*args: Any, **kwargs: Any) -> str:
    """Find jobs whose ring was lost or whose worker died, and ring for them."""
    return bridge.sweep(args, kwargs)
