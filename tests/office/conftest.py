"""An office: schedules, a clock that can be set, and sweeps that are made by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from afterturn.database import Database
from afterturn.jobs.names import Kind
from afterturn.jobs.tally import Tally
from afterturn.pipeline.due import DueSchedules
from afterturn.schedules import Schedules
from afterturn.settings import Settings
from tests.pipeline.conftest import Desk as _Desk
from tests.pipeline.conftest import desk

__all__ = ["Clock", "Sweeper", "desk"]


class Clock:
    """The database's clock, as every connection that is opened from now on sees it."""

    def __init__(self, url: str, database: Database) -> None:
        self._url = url
        self._database = database
        self._offset = timedelta()

    async def go_on(self, time: timedelta) -> None:
        """Let that much time pass at once."""
        self._offset += time
        conn = await asyncpg.connect(self._url)
        try:
            name = await conn.fetchval("select quote_ident(current_database())")
            seconds = f"{self._offset.total_seconds()} seconds"
            await conn.execute(f"alter database {name} set afterturn.clock_offset = '{seconds}'")
        finally:
            await conn.close()
        await self._database.close()  # its next connections are new

    async def go_to(self, moment: datetime) -> None:
        """Set it to a moment."""
        await self.go_on(moment - datetime.now(UTC) - self._offset)


class Sweeper:
    """What beat's tick makes a worker do with schedules, and the jobs of it run at once."""

    def __init__(self, desk: _Desk, settings: Settings) -> None:
        self._desk = desk
        self._due = DueSchedules(desk.database, settings)

    async def sweep(self) -> list[tuple[Kind, int]]:
        """Turn what is due into jobs; returns those to ring."""
        return await self._due.enqueue()

    async def run(self) -> list[str]:
        """Sweep, and run the jobs to their end; what each came to."""
        return [await self._desk.run(job_id) for _, job_id in await self.sweep()]


@pytest.fixture
def clock(database_url: str, database: Database) -> Clock:
    return Clock(database_url, database)


@pytest.fixture
def schedules(database: Database) -> Schedules:
    return Schedules(database)


@pytest.fixture
def sweeper(desk: _Desk, settings: Settings) -> Sweeper:
    return Sweeper(desk, settings)


async def run_claimed(desk: _Desk, job: object) -> str:
    """Run a job that is claimed already."""
    tally = Tally()
    await desk.lifecycle.run(job, tally)  # type: ignore[arg-type]
    return str(tally)
