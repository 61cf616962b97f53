"""What the supervisor tells its clients through `services.json`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

from afterturn.embedded.home import Home, ServerName

Phase = Literal["starting", "ready"]


@dataclass(frozen=True)
class Failure:
    """Why a server does not start; `at` is of the machine's monotonic clock.

    `lasting`: it will not go away by waiting.
    """

    message: str
    detail: str
    hint: str
    at: float
    lasting: bool


@dataclass(frozen=True)
class ServerState:
    """One server as the supervisor sees it; `socket` is where it answers."""

    phase: Phase
    pid: int | None = None
    url: str = ""
    socket: str = ""
    restarts: int = 0
    failure: Failure | None = None


@dataclass(frozen=True)
class State:
    """All of `services.json`."""

    home: str
    supervisor_id: str
    supervisor_pid: int
    durable: bool
    identity: str
    servers: dict[ServerName, ServerState] = field(default_factory=dict)


def write_state(home: Home, state: State) -> None:
    """Replace the file in one step, so that a reader never sees half of it."""
    fresh = home.state_path.with_suffix(".tmp")
    fresh.write_text(json.dumps(asdict(state)))
    fresh.replace(home.state_path)


def read_state(home: Home) -> State | None:
    """The file's content, `None` when there is none that can be read (or of another release).

    Believe it only while `home.is_supervised()`.
    """
    try:
        raw = json.loads(home.state_path.read_text())
        servers = {}
        for name, server in raw.pop("servers").items():
            failure = server.pop("failure")
            servers[name] = ServerState(**server, failure=Failure(**failure) if failure else None)
        return State(**raw, servers=servers)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def forget_state(home: Home) -> None:
    """Remove the file; a client that has not read it yet will not believe in a server."""
    home.state_path.unlink(missing_ok=True)


def believable_state(home: Home) -> State | None:
    """What a living supervisor says, `None` when none lives.

    Nor is it believed after the home was moved: at the path it names there may be another one.
    """
    state = read_state(home) if home.is_supervised() else None
    return state if state is not None and state.home == str(home.path) else None
