"""Ending everything of a home, whoever uses it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from afterturn.embedded.claims import CLAIMS
from afterturn.embedded.displaced import end_displaced
from afterturn.embedded.home import SERVER_NAMES, Home
from afterturn.embedded.locks import is_locked
from afterturn.embedded.place import data_directories
from afterturn.embedded.postgres import postgres_eviction
from afterturn.embedded.state import forget_state, read_state
from afterturn.embedded.valkey import valkey_eviction
from afterturn.errors import MemoryUnavailable

_POLL_SECONDS = 0.02


def stop(home: Path | str, *, timeout_seconds: float = 90.0) -> bool:
    """Stop the servers whoever uses them, and wait until they have ended; False if none ran.

    Nobody can start them again meanwhile. Raises `MemoryUnavailable` after the timeout.
    """
    place = Home(home)
    if not place.locks.is_dir():
        return end_displaced(place)
    deadline = time.monotonic() + timeout_seconds
    with CLAIMS.of(place) as claims:
        claims.uses = 0
        claims.drop_all()
        gate = place.gate()
        try:
            if gate.acquire(deadline):
                ran = _end_all(place, deadline)
                return end_displaced(place) or ran
        finally:
            gate.release()
    raise _still_running(place)


def _end_all(home: Home, deadline: float) -> bool:
    """End supervisor and servers with the gate held; whether there were any."""
    began = time.monotonic()
    evictions = [valkey_eviction(home.path / "valkey")]
    evictions += [postgres_eviction(data) for data in data_directories(home)]
    ran = signalled = False
    while True:
        supervised = home.is_supervised()
        if not supervised and not any(is_locked(home.server_lock_path(n)) for n in SERVER_NAMES):
            forget_state(home)
            return ran
        ran = True
        if supervised:
            signalled = signalled or _end_supervisor(home)
            began = time.monotonic()
        else:
            for eviction in evictions:
                eviction.press(time.monotonic() - began)
        if time.monotonic() >= deadline:
            raise _still_running(home)
        time.sleep(_POLL_SECONDS)


def _end_supervisor(home: Home) -> bool:
    """Signal it, as soon as it has said who it is; the lock proves that it lives."""
    state = read_state(home)
    if state is None:
        return False
    try:
        os.kill(state.supervisor_pid, signal.SIGTERM)
        os.kill(state.supervisor_pid, signal.SIGCONT)
    except ProcessLookupError:
        pass  # it ended just now
    return True


def _still_running(home: Home) -> MemoryUnavailable:
    state = read_state(home)
    return MemoryUnavailable(
        "The embedded servers did not stop in time",
        detail=f"{home.path}, supervisor {state.supervisor_pid if state else 'unknown'}",
        hint=f"The end of {home.log_path} says what it waits for; stop again to wait longer.",
    )
