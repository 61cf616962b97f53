"""SIGTERM: what runs may finish within a grace period, then it is given back, then the worker ends.

Celery's warm shutdown waits for ever. Its soft shutdown sleeps its whole time, even when the last
task ended at once. So the main process says through a shared byte that no more work is to be
claimed; after most of the grace period it interrupts the tasks that still run, which give their
jobs back with the attempt not counted; and at its end it kills what is left.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Final

import billiard
from celery import signals

logger = logging.getLogger(__name__)

GRACE_SECONDS: Final = 20.0
_PART_TO_FINISH: Final = 0.7
_begun: list[threading.Timer] = []
# Shared with the processes forked later. Spawned ones have their own, which nobody sets: they
# finish what they claimed, or their leases expire.
_flag: Final = mmap.mmap(-1, 1)


def is_stopping() -> bool:
    """Whether this worker has been told to end; also true in the processes of its pool."""
    return _flag[0] != 0


def install() -> None:
    """Connect to the signals of the worker's main process."""
    signals.worker_shutting_down.connect(_on_shutting_down, weak=False)
    signals.worker_ready.connect(_on_ready, weak=False)


def _on_ready(**_: Any) -> None:
    """A closed terminal stops the worker. Celery would start it again, without its path."""
    signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))


def _on_shutting_down(**_: Any) -> None:
    if not _begun:
        _flag[0] = 1
        _after(GRACE_SECONDS * _PART_TO_FINISH, _interrupt)
        _after(GRACE_SECONDS, _end)


def _after(seconds: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    _begun.append(timer)
    timer.start()


def _interrupt() -> None:
    """As if each task had met its soft time limit: billiard's own signal for it."""
    for child in billiard.active_children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGUSR1)


def _end() -> None:
    logger.warning("tasks still run after %.0f s: their leases will expire", GRACE_SECONDS)
    for child in billiard.active_children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
    os._exit(0)
