"""Valkey (or Redis) as the supervisor runs it: on a private unix socket, append-only file."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Final

from afterturn.embedded.binaries import find_valkey
from afterturn.embedded.home import Home
from afterturn.embedded.leftovers import Eviction
from afterturn.embedded.probes import valkey_answers
from afterturn.embedded.server import server_environment
from afterturn.embedded.urls import celery_url
from afterturn.processes import Child, Launch, RestartPolicy

_UNREADABLE_AFTER = 3  # refusals to start, in a row


class ValkeyServer:
    """One Valkey in a home. `prepare` before anything else."""

    name: Final = "valkey"

    def __init__(self, home: Home, *, durable: bool) -> None:
        self._home = home
        self._durable = durable
        self._data = home.path / "valkey"
        self._child: Child | None = None
        self._refusals = 0
        self._set_aside = False
        self._sockets: Path | None = None

    @property
    def socket(self) -> Path:
        """Where it answers."""
        if self._sockets is None:
            self._sockets = self._home.socket_directory(self._home.path / "run")
        return self._sockets / "valkey.sock"

    @property
    def url(self) -> str:
        """For Celery."""
        return celery_url(self.socket)

    def prepare(self) -> Child:
        """The child that serves the data. Raises `ConfigurationError`."""
        self._data.mkdir(exist_ok=True, mode=0o700)
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self._data),
            "appendonly": "yes",
            "appendfsync": "everysec" if self._durable else "no",
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        command: list[str | Path] = [find_valkey()]
        for name, value in options.items():
            command += [f"--{name}", value]
        self._child = Child(
            self.name,
            command,
            launch=Launch(env=server_environment(), cwd=self._data),
            output=self._home.log_path,
            grace_seconds=20.0,
            restart=RestartPolicy(cap_seconds=2.0),
            lock_path=self._home.server_lock_path(self.name),
            before_start=self._set_aside_unreadable,
        )
        return self._child

    def answers(self) -> bool:
        """Whether it has loaded its data and serves commands."""
        if not valkey_answers(self.socket):
            return False
        self._refusals = 0
        return True

    def eviction(self) -> Eviction:
        """For processes of an earlier run."""
        return valkey_eviction(self._data)

    def _set_aside_unreadable(self) -> None:
        """After some refusals to start, begin without the old messages: a sweep rings again.

        Once in the life of a supervisor: if that does not help, the messages were not the cause.
        """
        if self._child is not None and (self._child.returncode or 0) > 0:
            self._refusals += 1
        log = self._data / "appendonlydir"
        if self._refusals >= _UNREADABLE_AFTER and not self._set_aside and log.exists():
            self._set_aside = True
            log.rename(self._data / f"unreadable-{time.time_ns()}")


def valkey_eviction(data: Path) -> Eviction:
    """For processes that work in this data directory."""
    return Eviction(data, signal.SIGTERM, signal.SIGTERM)
