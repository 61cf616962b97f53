"""One server in the supervisor's care: absent → starting → ready, and back when it dies."""

from __future__ import annotations

import time
from collections.abc import Callable

from afterturn.embedded.home import Home
from afterturn.embedded.leftovers import Eviction
from afterturn.embedded.server import Server
from afterturn.embedded.state import Failure, ServerState
from afterturn.errors import ConfigurationError
from afterturn.processes import Child

_RETRY_SECONDS = 1.0
_REFUSALS_TOLD = 5  # starts in a row that it ended itself, before clients hear of it


class TendedServer:
    """Starts its server when somebody needs it, and keeps it answering."""

    def __init__(self, home: Home, server: Server, say: Callable[[str], None]) -> None:
        self.server = server
        self.claim = home.claim(server.name)
        self.child: Child | None = None
        self._home = home
        self._say = say
        self._ready = False
        self._refusals = 0
        self._failure: Failure | None = None
        self._retry_at = 0.0
        self._eviction: Eviction | None = None

    @property
    def settled(self) -> bool:
        """Whether there is nothing to wait for: it is ready, or nobody needs it."""
        return self._ready or (self.child is None and self._failure is None)

    def tick(self) -> None:
        """Bring it one step nearer to ready."""
        if self.child is None:
            if not self._is_claimed():
                self._failure = None
            elif time.monotonic() >= self._retry_at:
                self._prepare()
            return
        event = self.child.poll()
        if event == "exited":
            self._say(f"{self.server.name} ended with {self.child.returncode}, starting it again")
            self._count_refusal(self.child)
            self._ready = False
        elif self.child.pid is None:
            self._press(self.child.blocked_seconds)
        elif self._ready:
            self._check_socket(self.child)
        elif self.server.answers():
            self._ready, self._failure, self._refusals = True, None, 0
            self._say(f"{self.server.name} answers, pid {self.child.pid}")

    def state(self) -> ServerState | None:
        """What clients are told; `None` when it was never needed."""
        if self.child is None and self._failure is None:
            return None
        if self.child is None:
            return ServerState("starting", failure=self._failure)
        return ServerState(
            "ready" if self._ready else "starting",
            self.child.pid,
            self.server.url,
            str(self.server.socket),
            self.child.restarts,
            self._failure,
        )

    def _is_claimed(self) -> bool:
        if not self.claim.try_acquire():
            return True
        self.claim.release()
        return False

    def _prepare(self) -> None:
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        try:
            child = self.server.prepare()
            child.start()
        except ConfigurationError as error:
            self._fail(error.message, error.detail, error.hint)
        except OSError as error:
            self._fail(
                f"{self.server.name} could not be started",
                f"{type(error).__name__}: {error}",
                f"The end of {self._home.log_path} may say more.",
            )
        else:
            self.child = child

    def _fail(self, message: str, detail: str, hint: str) -> None:
        self._failure = Failure(message, detail, hint, time.monotonic(), lasting=True)
        self._say(f"{message} ({detail})")

    def _count_refusal(self, child: Child) -> None:
        """An end before it answered, and not by a signal, tells that it cannot start."""
        if self._ready or (child.returncode or 0) < 0:
            return
        self._refusals += 1
        if self._refusals < _REFUSALS_TOLD:
            return
        self._failure = Failure(
            f"{self.server.name} does not start",
            f"it ended {self._refusals} times in a row, last with {child.returncode}",
            f"The end of {self._home.log_path} says why.",
            time.monotonic(),
            lasting=False,
        )

    def _press(self, blocked_seconds: float) -> None:
        """Processes of the last run hold the data: see that they go."""
        if blocked_seconds == 0.0:
            self._eviction = None
            return
        self._eviction = self._eviction or self.server.eviction()
        self._eviction.press(blocked_seconds)

    def _check_socket(self, child: Child) -> None:
        """A server whose socket was deleted serves nobody new, so it has to start again."""
        if not self.server.socket.exists():
            self._ready = False
            self._say(f"{self.server.name}: {self.server.socket} is gone, starting it again")
            child.stop()
            child.start()
