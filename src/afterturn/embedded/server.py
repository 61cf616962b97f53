"""What the supervisor needs of a server, whichever it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Protocol

from afterturn.embedded.home import ServerName
from afterturn.embedded.leftovers import Eviction
from afterturn.processes import Child

_KEPT_VARIABLES: Final = ("PATH", "HOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR")


class Server(Protocol):
    """A server that can be prepared, started as a `Child`, and asked whether it answers."""

    @property
    def name(self) -> ServerName:
        """Which one it is."""

    @property
    def url(self) -> str:
        """What clients connect to."""

    @property
    def socket(self) -> Path:
        """The file of its socket."""

    def prepare(self) -> Child:
        """Make what it needs on disk, do not start it yet. Raises `ConfigurationError`."""

    def answers(self) -> bool:
        """Whether it serves now."""

    def eviction(self) -> Eviction:
        """For processes of an earlier run that still hold its data."""


def server_environment() -> dict[str, str]:
    """What a server gets of our environment: no PG* setting, no locale, and none of our keys."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}
