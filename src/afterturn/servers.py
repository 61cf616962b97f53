"""Where the servers are: the URLs that are set, and embedded servers for those that are not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from afterturn.settings import Settings


@dataclass(frozen=True)
class Servers:
    """The URLs in force. `embedded_home` is set when one of them is embedded."""

    database_url: str
    broker_url: str
    database_is_embedded: bool
    embedded_home: Path | None


def find_servers(settings: Settings) -> Servers:
    """The URLs of the settings; each one that is missing is embedded and started here.

    Blocks until embedded servers answer, and keeps them for this process until `leave_servers`.
    """
    need_database = settings.database_url is None
    need_broker = settings.broker_url is None
    if settings.database_url is not None and settings.broker_url is not None:
        return Servers(settings.database_url, settings.broker_url, False, None)
    # Imported here: who brings both URLs needs no embedded servers installed.
    from afterturn import embedded

    found = embedded.ensure(settings.home, postgres=need_database, valkey=need_broker)
    database_url = settings.database_url or found.database_url
    broker_url = settings.broker_url or found.broker_url
    assert database_url is not None  # noqa: S101 - ensure gives what was asked for
    assert broker_url is not None  # noqa: S101
    return Servers(database_url, broker_url, need_database, settings.home)


def revive_servers(servers: Servers, settings: Settings) -> None:
    """Have an embedded database started again whose supervisor was killed; blocks until it is."""
    if servers.database_is_embedded and servers.embedded_home is not None:
        from afterturn import embedded

        embedded.revive(servers.embedded_home, timeout_seconds=settings.connect_timeout_seconds)


def leave_servers(servers: Servers) -> None:
    """Give embedded servers back; after their last user they stop by themselves."""
    if servers.embedded_home is not None:
        from afterturn import embedded

        embedded.release(servers.embedded_home)
