"""Whether a worker may work on its database, asked before it starts.

One that does not answer yet is waited for: servers start in any order. One that answers and does
not fit is refused, since a worker that says that it is ready and then fails every job helps nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from afterturn.database import connect, translating
from afterturn.embedding.stored import EmbedderIdentity, require_same, stored_embedder
from afterturn.errors import MemoryUnavailable
from afterturn.logs import formatter
from afterturn.migrations import require_current
from afterturn.settings import Settings

_AGAIN_SECONDS: Final = 1.0
_SAY_AGAIN_SECONDS: Final = 60.0

logger = logging.getLogger("afterturn.worker")


def await_database(settings: Settings, embedder: EmbedderIdentity | None) -> None:
    """Return once the database answers. Raises `NotMigrated` or `ConfigurationError` when it is not
    one for this release, or holds vectors of another embedder."""
    handler = logging.StreamHandler()  # Celery sets its own up later
    handler.setFormatter(formatter(settings.log_format))
    logger.addHandler(handler)
    said, say_again = "", 0.0
    try:
        while True:
            try:
                asyncio.run(_require(settings, embedder))
            except MemoryUnavailable as error:
                if str(error) != said or time.monotonic() >= say_again:
                    said, say_again = str(error), time.monotonic() + _SAY_AGAIN_SECONDS
                    logger.warning("waits for the database: %s", error)
                time.sleep(_AGAIN_SECONDS)
            else:
                return
    finally:
        logger.removeHandler(handler)


async def _require(settings: Settings, embedder: EmbedderIdentity | None) -> None:
    connection = await connect(str(settings.database_url), settings)
    try:
        with translating():
            await require_current(connection)
            require_same(embedder, await stored_embedder(connection))
    finally:
        await connection.close(timeout=settings.connect_timeout_seconds)
