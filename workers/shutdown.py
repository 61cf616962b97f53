"""SIGTERM: what runs may finish within a grace period, then the worker ends in any case.

Celery's warm shutdown waits for ever. Its soft shutdown sleeps its whole time, even when the last
task ended at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from typing import Any, Final

import billiard
from celery import signals

logger = logging.getLogger(__name__)

GRACE_SECONDS: Final = 20.0
_begun: list[threading.Timer] = []


def install() -> None:
    """Connect to the signals of the worker's main process."""
    signals.worker_shutting_down.connect(_on_shutting_down, weak=False)
    signals.worker_ready.connect(_on_ready, weak=False)


def _on_ready(**_: Any) -> None:
    """A closed terminal stops the worker. Celery would start it again, without its path."""
    signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))


def _on_shutting_down(**_: Any) -> None:
    if not _begun:
        timer = threading.Timer(GRACE_SECONDS, _end)
        timer.daemon = True
        _begun.append(timer)
        timer.start()


def _end() -> None:
    logger.warning("tasks still run after %.0f s: their leases will expire", GRACE_SECONDS)
    for child in billiard.active_children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
    os._exit(0)
