"""The names both sides of the queue agree on: kinds, Celery tasks, queues.

The producer sends by name, so a calling process never imports the tasks.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

Kind = Literal["record", "extract", "embed", "flush", "forget", "expire"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

RELEASE: Final = 1
"""Raised when a ring's arguments change; workers ignore rings of another release."""

TASKS: Final[dict[Kind, str]] = {
    "record": "afterturn.record_turns",
    "extract": "afterturn.extract_turns",
    "embed": "afterturn.embed_records",
    "flush": "afterturn.flush",
    "forget": "afterturn.forget",
    "expire": "afterturn.expire",
}
SWEEP_TASK: Final = "afterturn.sweep"
PROBE_TASK: Final = "afterturn.probe"

RECORD_QUEUE: Final = "afterturn.record"
EXTRACT_QUEUE: Final = "afterturn.extract"
LIFECYCLE_QUEUE: Final = "afterturn.lifecycle"
SWEEP_QUEUE: Final = "afterturn.sweep"

# Slow extraction has a queue, and so workers, of its own: it never delays an erase.
QUEUES: Final[dict[Kind, str]] = {
    "record": RECORD_QUEUE,
    "extract": EXTRACT_QUEUE,
    "embed": EXTRACT_QUEUE,
    "flush": LIFECYCLE_QUEUE,
    "forget": LIFECYCLE_QUEUE,
    "expire": LIFECYCLE_QUEUE,
}
ALL_QUEUES: Final = (RECORD_QUEUE, EXTRACT_QUEUE, LIFECYCLE_QUEUE, SWEEP_QUEUE)
