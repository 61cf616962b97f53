"""What `afterturn status` looks at: the ledger, the broker, the servers, what does not fit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from afterturn.cli.broker import BrokerView, look_at_broker
from afterturn.cli.opening import database_settings, running_broker_url

if TYPE_CHECKING:
    from afterturn.embedding.stored import EmbedderIdentity
    from afterturn.settings import Settings
    from afterturn.status import MemoryStatus, Trouble

_DOES_NOT_RUN = "does not run"


@dataclass(frozen=True)
class Report:
    """All that `status` shows."""

    ledger: MemoryStatus
    broker: BrokerView
    embedded: dict[str, str]
    vectors: str
    misfits: tuple[Trouble, ...]

    def wrong(self, oldest_seconds: float) -> list[Trouble]:
        """What an operator has to look at; empty when all is well."""
        from afterturn.status import Trouble

        found = [*self.misfits, *self.ledger.troubles(oldest_seconds)]
        if self.embedded.get("postgres") == _DOES_NOT_RUN:
            mend = "afterturn status, once more: it has been started to be asked; without workers"
            says = "the embedded PostgreSQL did not run"
            found.append(Trouble(says=says, mend=f"{mend}: afterturn up"))
        if not self.broker.reachable:
            mend = "start it, or correct AFTERTURN_BROKER_URL; without a URL: afterturn up"
            found.append(Trouble(says="the broker does not answer", mend=mend))
        return found


class Looker:
    """Looks again and again; an embedded database is started and migrated once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._complete: Settings | None = None

    def look(self) -> Report:
        """Everything as it is now."""
        settings = self._settings
        embedded = _embedded(settings)
        url = settings.broker_url or running_broker_url(settings)
        broker = look_at_broker(url, settings) if url else BrokerView(reachable=False)
        if self._complete is None:
            self._complete = database_settings(settings)
        return asyncio.run(self._report(self._complete, broker, embedded))

    async def _report(
        self, settings: Settings, broker: BrokerView, embedded: dict[str, str]
    ) -> Report:
        from afterturn.database import Database
        from afterturn.embedding.stored import stored_embedder
        from afterturn.migrations import functions_are_current, require_current
        from afterturn.status import read_status

        database = Database(str(settings.database_url), settings, pool_size=1)
        try:
            async with database.connection() as conn:
                await require_current(conn)
                is_current = await functions_are_current(conn)
                stored = await stored_embedder(conn)
            ledger = await read_status(database)
        finally:
            await database.close()
        misfits = (*_functions_misfit(is_current), *self._embedder_misfit(stored))
        return Report(ledger, broker, embedded, str(stored or "none yet"), misfits)

    @cached_property
    def _embedder(self) -> EmbedderIdentity | None:
        from afterturn.embedding.compose import compose_embedder
        from afterturn.embedding.stored import EmbedderIdentity

        embedder = compose_embedder(self._settings)
        return None if embedder is None else EmbedderIdentity.of(embedder)

    def _embedder_misfit(self, stored: EmbedderIdentity | None) -> Iterator[Trouble]:
        from afterturn.embedding.stored import require_same
        from afterturn.errors import AfterturnError
        from afterturn.status import Trouble

        try:
            require_same(self._embedder, stored)
        except AfterturnError as error:
            yield Trouble(says=f"{error.message} ({error.detail})", mend=error.hint)


def _functions_misfit(is_current: bool) -> Iterator[Trouble]:
    from afterturn.status import Trouble

    if not is_current:
        says = "the database's functions are of another release"
        yield Trouble(says=says, mend="afterturn migrate")


def _embedded(settings: Settings) -> dict[str, str]:
    """The embedded servers in use, by name, as they were before this command."""
    wanted = {"postgres": settings.database_url is None, "valkey": settings.broker_url is None}
    if not any(wanted.values()):
        return {}
    from afterturn import embedded

    found = embedded.status(settings.home)
    pids = {
        "postgres": found.postgres_pid if found and found.database_url else None,
        "valkey": found.valkey_pid if found and found.broker_url else None,
    }
    servers = {
        name: f"runs as process {pids[name]}" if pids[name] else _DOES_NOT_RUN
        for name, is_wanted in wanted.items()
        if is_wanted
    }
    return {"home": str(settings.home), **servers}
