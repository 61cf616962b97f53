"""How a process comes by the servers: claim them, find or launch the supervisor, wait for them.

A claim is a shared lock that the process holds until `release` or its end. Forked children do not
inherit it: one that needs the servers for itself calls `ensure` itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from afterturn.embedded.binaries import find_postgres, find_valkey
from afterturn.embedded.claims import CLAIMS
from afterturn.embedded.home import SERVER_NAMES, Home, ServerName
from afterturn.embedded.launcher import launch_supervisor
from afterturn.embedded.place import data_major
from afterturn.embedded.probes import postgres_answers, valkey_answers
from afterturn.embedded.state import Failure, State, believable_state, forget_state
from afterturn.errors import ConfigurationError, MemoryUnavailable

_POLL_SECONDS = 0.02
_LAUNCHES_MAX = 5
_PROBES = {"postgres": postgres_answers, "valkey": valkey_answers}


@dataclass(frozen=True)
class EmbeddedServers:
    """The servers that answer; `None` stands for one that does not run."""

    home: Path
    database_url: str | None  # postgresql://, for asyncpg
    broker_url: str | None  # redis+socket://, for Celery; see `redis_client_url`
    postgres_pid: int | None
    valkey_pid: int | None
    supervisor_pid: int
    durable: bool
    identity: str  # how PostgreSQL runs: user, userns, setuid, or empty when it does not


def ensure(
    home: Path | str,
    *,
    postgres: bool = True,
    valkey: bool = True,
    linger_seconds: float = 5.0,
    durable: bool = True,
    timeout_seconds: float = 90.0,
) -> EmbeddedServers:
    """The servers of this home, started if they do not run; blocks until they answer.

    From any process and thread. They are kept for this process until it calls `release` as often
    as `ensure`, or ends. The caller that starts the supervisor decides how long it lingers after
    the last one (`math.inf`: until `stop`) and whether data is `durable`; without, it survives
    killed processes but no power failure. Raises `ConfigurationError` when they cannot run here,
    `MemoryUnavailable` after the timeout.
    """
    needed = [name for name, wanted in zip(SERVER_NAMES, (postgres, valkey), strict=True) if wanted]
    if not needed:
        raise ConfigurationError("No server was asked for", hint="Ask for postgres or valkey.")
    place = Home(home).create()
    start = _Start(place, needed, linger_seconds, durable, time.monotonic() + timeout_seconds)
    with CLAIMS.of(place) as claims, claims.adding(needed, start.deadline):
        return start.run()


def release(home: Path | str) -> None:
    """Give back one `ensure` of this process; after the last one nothing is kept for it."""
    with CLAIMS.of(Home(home)) as claims:
        claims.uses = max(0, claims.uses - 1)
        if claims.uses == 0:
            claims.drop_all()


def revive(home: Path | str, *, timeout_seconds: float) -> None:
    """Have PostgreSQL started again, and what else is held, if the supervisor was killed.

    A supervisor that lives is left to it, and in a home that was removed nothing is begun anew.
    Raises as `ensure` does.
    """
    place = Home(home)
    if not place.locks.is_dir() or place.is_supervised():
        return
    ensure(home, valkey=False, timeout_seconds=timeout_seconds)
    release(home)  # what this process held before keeps them


def status(home: Path | str) -> EmbeddedServers | None:
    """What answers now, or `None` when no supervisor lives. Starts and keeps nothing."""
    place = Home(home)
    state = believable_state(place)
    return None if state is None else _found(place, state)


def keep(home: Path | str) -> None:
    """Tell the running supervisor to stay without clients, until `stop`."""
    place = Home(home)
    state = believable_state(place)
    if state is None:
        raise MemoryUnavailable("No embedded servers run", detail=str(place.path))
    place.keep_path.write_text(state.supervisor_id)


@dataclass
class _Start:
    """One wait of `ensure`: look, launch when no supervisor lives, look again."""

    home: Home
    needed: list[ServerName]
    linger_seconds: float
    durable: bool
    deadline: float

    def run(self) -> EmbeddedServers:
        began = time.monotonic()
        launches = 0
        while (found := self._look(began)) is None:
            if not self.home.is_supervised():
                if launches == _LAUNCHES_MAX:
                    break
                launches += self._launch()
            if time.monotonic() >= self.deadline:
                break
            time.sleep(_POLL_SECONDS)
        else:
            return found
        raise MemoryUnavailable(
            "The embedded servers did not start",
            detail=f"{self.home.path}, waited {time.monotonic() - began:.0f} s, "
            f"launched {launches} times; {_phases(self.home)}",
            hint=f"The end of {self.home.log_path} says why.",
        )

    def _look(self, began: float) -> EmbeddedServers | None:
        """The servers if all that are needed answer; raises what the supervisor found out since."""
        state = believable_state(self.home)
        if state is None:
            return None
        for name in self.needed:
            server = state.servers.get(name)
            if server is not None and server.failure and server.failure.at >= began:
                raise _raised(server.failure)
            if server is None or server.phase != "ready":
                return None
        found = _found(self.home, state)
        urls = {"postgres": found.database_url, "valkey": found.broker_url}
        if any(urls[name] is None for name in self.needed):
            return None
        if self.durable and not state.durable:
            raise ConfigurationError(
                "The running servers may lose data",
                detail=f"{self.home.path} was started with durable=False",
                hint="Stop them first, or use another AFTERTURN_HOME.",
            )
        return found

    def _launch(self) -> bool:
        """Launch a supervisor unless somebody else does; False if not."""
        gate = self.home.gate()
        if not gate.try_acquire():
            return False
        try:
            if self.home.is_supervised():
                return False
            if "postgres" in self.needed:
                find_postgres(data_major(self.home))
            if "valkey" in self.needed:
                find_valkey()
            forget_state(self.home)  # left by a supervisor that was killed
            launch_supervisor(
                self.home,
                linger_seconds=self.linger_seconds,
                durable=self.durable,
                timeout_seconds=max(1.0, self.deadline - time.monotonic()),
            )
        finally:
            gate.release()
        return True


def _raised(failure: Failure) -> ConfigurationError | MemoryUnavailable:
    kind = ConfigurationError if failure.lasting else MemoryUnavailable
    return kind(failure.message, detail=failure.detail, hint=failure.hint)


def _found(home: Home, state: State) -> EmbeddedServers:
    """What of `state` is true: each server is asked."""
    alive = {
        name: server
        for name, server in state.servers.items()
        if server.phase == "ready" and _PROBES[name](server.socket)
    }
    postgres, valkey = alive.get("postgres"), alive.get("valkey")
    return EmbeddedServers(
        home=home.path,
        database_url=postgres.url if postgres else None,
        broker_url=valkey.url if valkey else None,
        postgres_pid=postgres.pid if postgres else None,
        valkey_pid=valkey.pid if valkey else None,
        supervisor_pid=state.supervisor_pid,
        durable=state.durable,
        identity=state.identity,
    )


def _phases(home: Home) -> str:
    state = believable_state(home)
    if state is None:
        return "no supervisor"
    phases = [f"{name} {server.phase}" for name, server in state.servers.items()]
    return ", ".join(phases) or "nothing started"
