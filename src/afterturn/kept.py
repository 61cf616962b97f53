"""One part of the fleet, started again whenever it ends: for where no process manager does so."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import Final

from afterturn.fleet import EXIT_MISCONFIGURED, FleetCommand
from afterturn.processes import Child, Launch, stop_all

_GRACE_SECONDS: Final = 25.0  # a worker's own grace period and a bit
_POLL_SECONDS: Final = 0.1
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run_kept(command: FleetCommand, name: str) -> int:
    """Keep the command running until SIGTERM, SIGINT or SIGHUP; a second one kills it.

    Returns 0 then, or the command's own code when starting it again will not help. Must run in the
    main thread of a process without other threads.
    """
    child = Child(name, command.argv, launch=Launch(env=command.env), grace_seconds=_GRACE_SECONDS)
    stops: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        stops.append(number)
        if len(stops) > 1:
            child.kill()

    for number in _STOP_SIGNALS:
        signal.signal(number, on_signal)
    child.start()
    try:
        while not stops:
            event = child.poll()
            if event == "exited":
                if child.returncode == EXIT_MISCONFIGURED:
                    return EXIT_MISCONFIGURED
                print(f"{name} ended with code {child.returncode}", file=sys.stderr, flush=True)
            time.sleep(_POLL_SECONDS)
    finally:
        stop_all([child])
    return 0
