"""From the environment to settings with which a command can work.

`forget`, `flush`, `export` and `status` need the database alone: a caller that waits runs its job
itself. They start an embedded database that does not run, and never a broker: if none runs there
is no worker either whom it would reach.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from afterturn.settings import Settings

# Nobody listens there: rings fail at once and the waiting caller does its work itself.
NO_BROKER: Final = "unix:///nonexistent/afterturn-has-no-broker"


def database_settings(settings: Settings) -> Settings:
    """These settings with both URLs, the broker's that of a running one or `NO_BROKER`.

    Without a broker a waiting caller takes its job over at once. Blocks until an embedded database
    answers; it is migrated and kept for this process. Raises `ConfigurationError`,
    `MemoryUnavailable`.
    """
    changes: dict[str, object] = {}
    if settings.broker_url is None:
        running = running_broker_url(settings)
        changes["broker_url"] = running or NO_BROKER
        if running is None:
            changes["takeover_seconds"] = 0.0
    if settings.database_url is None:
        from afterturn import embedded
        from afterturn.migrations import migrate

        url = embedded.ensure(settings.home, valkey=False).database_url
        changes["database_url"] = url
        asyncio.run(migrate(str(url), settings))
    return settings.model_copy(update=changes)


def running_broker_url(settings: Settings) -> str | None:
    """The URL of the embedded broker if it answers; starts nothing."""
    from afterturn import embedded

    running = embedded.status(settings.home)
    return running.broker_url if running is not None else None
