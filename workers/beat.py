"""Beat: a tick for the sweep every few seconds, kept in memory and never piled up."""

from __future__ import annotations

import logging
from typing import Any, Final

from celery.beat import Scheduler

from afterturn.jobs.names import SWEEP_QUEUE

logger = logging.getLogger(__name__)

_TICKS_WAITING_MAX: Final = 5


class SweepScheduler(Scheduler):  # type: ignore[misc]  # Celery has no types
    """Sends the tick unless several wait already: without workers the queue stays short."""

    def apply_async(self, entry: Any, producer: Any = None, **options: Any) -> Any:
        """Send one tick, or skip it."""
        if producer is not None:
            waiting = producer.channel.queue_declare(SWEEP_QUEUE).message_count
            if waiting >= _TICKS_WAITING_MAX:
                logger.warning("%d ticks wait: no worker takes %s", waiting, SWEEP_QUEUE)
                return None
        return super().apply_async(entry, producer=producer, **options)
