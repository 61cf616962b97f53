"""The probe of `afterturn doctor`."""

from __future__ import annotations

from typing import Any

from afterturn.jobs.names import PROBE_TASK
from tasks import bridge


@bridge.task(PROBE_TASK)
def probe(*args: Any, **kwargs: Any) -> str:
    """Ring `[id]`: answer this probe in the database, and do nothing else."""
    return bridge.probe(args, kwargs)
