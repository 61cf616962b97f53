"""Turns: record what was handed over, learn from it, embed what was learned."""

from __future__ import annotations

from typing import Any

from afterturn.jobs.names import TASKS
from tasks import bridge


@bridge.task(TASKS["record"])
def record_turns(*args: Any, **kwargs: Any) -> str:
    """Ring `[ids]`: write the raw records of these staged turns."""
    return bridge.ring("record", args, kwargs)


@bridge.task(TASKS["extract"])
def extract_turns(*args: Any, **kwargs: Any) -> str:
    """Ring `[ids]`: let the extractor learn from these turns."""
    return bridge.ring("extract", args, kwargs)


@bridge.task(TASKS["embed"])
def embed_records(*args: Any, **kwargs: Any) -> str:
    """Ring `[ids]`: compute the vectors that records still lack."""
    return bridge.ring("embed", args, kwargs)
