"""The process that owns the servers of one home: their parent, their doctor, and their end.

It starts a server when some process holds its claim, restarts it when it dies, and stops both
when nobody has held a claim for the linger time. It decides that with both claims locked and
removes `services.json` before it lets go of them: a client that claims afterwards finds no
servers to believe in and launches the next supervisor, which waits until this one is gone.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
import uuid
from types import FrameType

from afterturn.embedded.displaced import end_displaced
from afterturn.embedded.home import SERVER_NAMES, Home, ServerName
from afterturn.embedded.locks import FileLock
from afterturn.embedded.postgres import PostgresServer
from afterturn.embedded.server import Server
from afterturn.embedded.state import State, forget_state, write_state
from afterturn.embedded.tended import TendedServer
from afterturn.embedded.valkey import ValkeyServer
from afterturn.processes import stop_all

BUSY = 3  # the exit code when another supervisor owns the home
_IDLE_SECONDS = 0.1
_STARTING_SECONDS = 0.02
_LOCK_SECONDS = 1.0  # clients probe the lock, each for an instant


class Supervisor:
    """Runs in a process of its own until it is idle, told to stop, or its home is gone."""

    def __init__(
        self, home: Home, own_lock: FileLock, *, linger_seconds: float, durable: bool
    ) -> None:
        self._home = home
        self._own_lock = own_lock
        self._linger_seconds = linger_seconds
        self._durable = durable
        self._id = uuid.uuid4().hex
        self._postgres = PostgresServer(home, durable=durable)
        self._tended: dict[ServerName, TendedServer] = {}
        self._stopping = False
        self._idle_since: float | None = None
        self._published: State | None = None

    def run(self) -> None:
        """Serve until the end; the servers are stopped whatever happens."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        forget_state(self._home)  # of a supervisor that was killed
        try:
            if end_displaced(self._home):
                _say("killed what still ran for an earlier home at this path")
            valkey = ValkeyServer(self._home, durable=self._durable)
            servers: list[Server] = [valkey, self._postgres]  # the quick one first
            self._tended = {s.name: TendedServer(self._home, s, _say) for s in servers}
            self._loop()
        except Exception:
            _say(traceback.format_exc())
            raise
        finally:
            if self._own_lock.is_current():
                forget_state(self._home)
            stop_all([t.child for t in self._tended.values() if t.child is not None])
            self._home.tidy()
            _say("stopped")

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _loop(self) -> None:
        while not self._stopping:
            if not self._own_lock.is_current():
                _say("the home was removed")  # first of all: what is at its path is not ours
                return
            for tended in self._tended.values():
                tended.tick()
            self._publish()
            if self._close_when_idle():
                _say(f"nobody needed the servers for {self._linger_seconds:g} s")
                return
            starting = not all(tended.settled for tended in self._tended.values())
            time.sleep(_STARTING_SECONDS if starting else _IDLE_SECONDS)

    def _publish(self) -> None:
        states = {name: tended.state() for name, tended in self._tended.items()}
        state = State(
            str(self._home.path),
            self._id,
            os.getpid(),
            self._durable,
            self._postgres.identity_kind,
            {name: found for name, found in states.items() if found is not None},
        )
        if state != self._published:
            write_state(self._home, state)
            self._published = state

    def _close_when_idle(self) -> bool:
        """Whether it is time to go; then no client believes in the servers any more."""
        claims = [self._tended[name].claim for name in SERVER_NAMES]
        try:
            if not all(claim.try_acquire() for claim in claims) or self._is_kept():
                self._idle_since = None
                return False
            self._idle_since = self._idle_since or time.monotonic()
            if time.monotonic() - self._idle_since < self._linger_seconds:
                return False
            forget_state(self._home)
            return True
        finally:
            for claim in claims:
                claim.release()

    def _is_kept(self) -> bool:
        try:
            return self._home.keep_path.read_text() == self._id
        except OSError:
            return False


def serve(home_path: str, linger_seconds: str, durability: str) -> int:
    """Fork the supervisor; return in this process once it owns the home, or could not.

    Takes the launcher's arguments and gives the exit code: 0, `BUSY` when another one owns it, 1
    when it failed.
    """
    home = Home(home_path)
    receiving, sending = os.pipe()
    if os.fork() != 0:
        os.close(sending)
        verdict = os.read(receiving, 1)
        return verdict[0] if verdict else 1
    os.setsid()
    os.close(receiving)
    own_lock = home.supervisor_lock()
    owned = own_lock.acquire(time.monotonic() + _LOCK_SECONDS)
    os.write(sending, bytes([0 if owned else BUSY]))
    os.close(sending)
    if owned:
        Supervisor(
            home,
            own_lock,
            linger_seconds=float(linger_seconds),
            durable=durability == "durable",
        ).run()
    return 0


def _say(text: str) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    print(f"{stamp} UTC [{os.getpid()}] supervisor: {text}", flush=True)
