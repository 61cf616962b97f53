"""Beat: a tick for the sweep every few seconds, kept in memory and never piled up."""

from __future__ import annotations

import logging
import signal
from types import FrameType
from typing import Any, Final

from celery import signals
from celery.beat import Scheduler

from afterturn.jobs.names import SWEEP_QUEUE

logger = logging.getLogger(__name__)

_TICKS_WAITING_MAX: Final = 5


class SweepScheduler(Scheduler):  # type: ignore[misc]  # Celery has no types
    """Sends the tick unless several wait already: without workers the queue stays short."""

    _is_holding_back = False

    def apply_async(self, entry: Any, producer: Any = None, **options: Any) -> Any:
        """Send one tick, or skip it."""
        if producer is not None:
            waiting = producer.channel.queue_declare(SWEEP_QUEUE).message_count
            if waiting >= _TICKS_WAITING_MAX:
                if not self._is_holding_back:
                    logger.warning("%d ticks wait: no worker takes %s", waiting, SWEEP_QUEUE)
                self._is_holding_back = True
                return None
            self._is_holding_back = False
        return super().apply_async(entry, producer=producer, **options)


def run_beat(app: Any) -> None:
    """Tick until SIGTERM or SIGINT."""
    signals.beat_init.connect(_stop_on_signals, weak=False)
    app.Beat(loglevel="WARNING", quiet=True).run()


def _stop_on_signals(sender: Any, **_: Any) -> None:
    """Replace Celery's handler: it closes the connection under a tick that is being sent.

    The error of that tick then takes the place of the exit, and beat goes on (Celery 5.7.0).
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        sender.stop()
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
