"""The ledger's state as gauges, read from PostgreSQL at each scrape."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from afterturn.database import Database
from afterturn.errors import AfterturnError
from afterturn.settings import Settings
from afterturn.status import MemoryStatus, read_status

_STATES: Final = ("waiting", "running", "lapsed", "stuck")


class LedgerCollector(Collector):
    """What `afterturn status` shows. Everybody who serves it serves the same: use max, not sum.

    Out of reach, only `afterturn_database_up` is there, and 0. A scrape takes one connection for
    a few statements and waits as long as the settings say.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """One family a figure."""
        status = asyncio.run(self._read())
        yield _gauge("database_up", "Whether the database answered.", float(status is not None))
        if status is not None:
            yield from _families(status)

    async def _read(self) -> MemoryStatus | None:
        database = Database(str(self._settings.database_url), self._settings, pool_size=1)
        try:
            return await read_status(database)
        except AfterturnError:
            return None
        finally:
            await database.close()

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: registering must not ask the database."""
        return ()


def _families(status: MemoryStatus) -> Iterable[GaugeMetricFamily]:
    jobs = GaugeMetricFamily(
        "afterturn_unfinished_jobs", "Unfinished jobs by kind and state.", labels=["kind", "state"]
    )
    oldest = GaugeMetricFamily(
        "afterturn_oldest_job_seconds", "Age of the oldest unfinished job.", labels=["kind"]
    )
    for kind, counts in status.jobs.items():
        for state in _STATES:
            jobs.add_metric([kind, state], getattr(counts, state))
        oldest.add_metric([kind], counts.oldest_seconds)
    yield jobs
    yield oldest
    yield _gauge("dead_jobs", "Jobs whose attempts were used up.", status.dead)
    yield _gauge("standing_intents", "Erases requested and not completed.", status.standing_intents)
    yield _gauge("pending_records", "Records that wait for a flush.", status.pending)
    yield _gauge("scheduled_erases", "Erases to come.", status.scheduled)
    yield _gauge("due_schedules", "Schedules and rules whose time has come.", status.due)
    tokens = GaugeMetricFamily(
        "afterturn_model_tokens", "Tokens of the extraction model so far.", labels=["direction"]
    )
    tokens.add_metric(["prompt"], status.model.prompt_tokens)
    tokens.add_metric(["completion"], status.model.completion_tokens)
    yield tokens
    yield _gauge("model_calls", "Calls of the extraction model so far.", status.model.calls)
    yield _gauge("migration", "The database's migration.", status.migration)


def _gauge(name: str, says: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"afterturn_{name}", says, value=value)
