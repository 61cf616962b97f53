"""Supervisors whose home was removed, or moved away, and whose path another home may have now.

They notice it themselves within a moment, unless they are suspended or busy. Their servers know
the home by its path alone: in ending, they would delete the sockets of the new servers there, and
PostgreSQL would write its control file into the new data. So whoever starts servers ends these
first, by kill, so that no code of theirs runs any more. That loses nothing that was committed.
"""

from __future__ import annotations

import contextlib
import time
from itertools import pairwise
from typing import Final

import psutil  # type: ignore[import-untyped]  # it ships no types

from afterturn.embedded.home import Home
from afterturn.embedded.leftovers import shares_our_files

_PROGRAM: Final = "afterturn/embedded/boot.py"
_KILL_SECONDS = 10.0
_POLL_SECONDS = 0.01


def end_displaced(home: Home) -> bool:
    """Kill every supervisor of this path, with its servers, and wait; whether there were any.

    To be called by the supervisor of the home, or when it is known that there is none.
    """
    killed = [process for found in _supervisors(home) for process in _kill(found, home)]
    deadline = time.monotonic() + _KILL_SECONDS
    while any(map(_lives, killed)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return bool(killed)


def _supervisors(home: Home) -> list[psutil.Process]:
    own_pid = psutil.Process().pid
    return [
        process
        for process in psutil.process_iter()
        if process.pid != own_pid and _is_of(home, process) and shares_our_files(process)
    ]


def _kill(supervisor: psutil.Process, home: Home) -> list[psutil.Process]:
    """Kill it with what it runs; nothing if it runs no server, as one that is only just begun."""
    with contextlib.suppress(psutil.Error):
        if all(_is_of(home, child) for child in supervisor.children()):
            return []
        supervisor.suspend()  # so that it starts nothing meanwhile
        family = [*supervisor.children(recursive=True), supervisor]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return family
    return []  # it is gone, or another user's


def _is_of(home: Home, process: psutil.Process) -> bool:
    try:
        arguments = process.cmdline()
    except psutil.Error:
        return False
    return any(
        program.endswith(_PROGRAM) and path == str(home.path)
        for program, path in pairwise(arguments)
    )


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
