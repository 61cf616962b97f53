"""Schedules: erases to come and retention rules, as rows of the database.

A row is all there is: whichever sweep sees first that one is due turns it into a job, once, in the
transaction that marks the row. Beat only ticks; what came due while nothing ran is done at the
next tick. Times are UTC in the database, and civil times ("02:30 in Berlin") are computed by
PostgreSQL, which knows what a night does that skips an hour or repeats one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, time, timedelta
from typing import Any, Final, Literal

import asyncpg

from afterturn.database import Database
from afterturn.errors import MemoryContractError
from afterturn.intake import Time, checked_time
from afterturn.model import Model
from afterturn.records import MemoryLayer
from afterturn.scope import MemoryScope, scope_from_stored_path

OLDER_THAN_MIN: Final = timedelta(minutes=1)
OLDER_THAN_MAX: Final = timedelta(days=100 * 365)

_SCHEDULE_FORGET = "select * from afterturn.schedule_forget($1, $2, $3::jsonb)"
_ADD_RULE = "select * from afterturn.add_rule($1, $2, $3, $4, $5)"
_CIVIL = "select afterturn.civil_time($1, $2)"
_CANCEL = "select * from afterturn.cancel_schedule($1)"
_LIST = """
select * from afterturn.schedules where outcome is null or $1 order by due_at, id
"""
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

ScheduleKind = Literal["forget", "expire"]
ScheduleState = Literal["waiting", "done", "cancelled", "erased"]


class Schedule(Model):
    """One erase to come (`forget`) or one retention rule (`expire`).

    `scope_path` is None for a rule that is for everything, and for a schedule whose scope was
    erased. `due_at` is when the erase is due, or when the rule is looked at next. `state` is
    `waiting` until an erase has become the job `job_id` (`done`), was `cancelled`, or went with
    its erased scope (`erased`).
    """

    schedule_id: int
    kind: ScheduleKind
    state: ScheduleState
    scope_path: str | None
    due_at: Time
    layer: MemoryLayer | None = None
    older_than: timedelta | None = None
    daily_at: time | None = None
    zone: str | None = None
    is_default: bool = False
    derived: str = ""
    requested_by: str = ""
    reason: str = ""
    ran_at: Time | None = None
    job_id: int | None = None


class Schedules:
    """Adds, lists and cancels schedules of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_forget(
        self, scope: MemoryScope, at: datetime, request: Mapping[str, Any]
    ) -> Schedule:
        """Erase the scope at a moment; `request` as `forget_request` makes it.

        Raises `MemoryContractError` for a time without zone or in the past.
        """
        due_at = checked_time(at, what="The time of an erase")
        row = await self._database.row(_SCHEDULE_FORGET, scope.stored_path, due_at, dict(request))
        return _schedule(row)

    async def add_rule(
        self,
        layer: MemoryLayer,
        older_than: timedelta,
        scope: MemoryScope | None = None,
        *,
        daily_at: time | None = None,
        zone: str | None = None,
    ) -> Schedule:
        """Let records of a layer expire at an age, under a scope or everywhere.

        Looked at hourly, more often for ages under a day, or once a day at a civil time. Raises
        `MemoryContractError` for an age that would erase everything, and for an unknown zone.
        """
        if not OLDER_THAN_MIN <= older_than <= OLDER_THAN_MAX:
            raise MemoryContractError(
                "The rule would erase everything as soon as it is written"
                if older_than < OLDER_THAN_MIN
                else "The rule would never erase anything",
                detail=f"older than {older_than}, allowed are {OLDER_THAN_MIN} to "
                f"{OLDER_THAN_MAX.days} days",
                hint="`afterturn forget` erases a whole scope at once.",
            )
        if (daily_at is None) != (zone is None):
            raise MemoryContractError(
                "A time of day needs a time zone, and a zone a time of day",
                detail=f"got {daily_at or 'no time'} and {ascii(zone) if zone else 'no zone'}",
            )
        row = await self._database.row(
            _ADD_RULE,
            None if scope is None else scope.stored_path,
            layer.value,
            older_than.total_seconds(),
            daily_at,
            zone,
        )
        return _schedule(row)

    async def civil_time(self, at: datetime, zone: str) -> datetime:
        """The moment that a zone's clock shows as `at` (naive), as PostgreSQL knows the zone.

        A time that a spring night skips is taken after the gap; of one that an autumn night
        repeats, the second is taken. Raises `MemoryContractError` for an unknown zone.
        """
        moment: datetime = await self._database.value(_CIVIL, at, zone)
        return moment

    async def list(self, *, ended: bool = False) -> tuple[Schedule, ...]:
        """What waits, soonest first; with `ended` also what was done, cancelled or erased."""
        return tuple(_schedule(row) for row in await self._database.rows(_LIST, ended))

    async def cancel(self, schedule_id: int) -> Schedule:
        """Cancel an erase to come, or end a rule; cancelling twice is legal.

        Raises `MemoryContractError` when there is no such schedule, when the erase has already
        become a job, and for the default rule.
        """
        row = await self._database.row(_CANCEL, schedule_id)
        if row["id"] is None:
            raise MemoryContractError(
                "There is no such schedule",
                detail=f"schedule {schedule_id}",
                hint="`afterturn schedule list` shows those there are.",
            )
        if row["is_default"]:
            raise MemoryContractError(
                "The default rule cannot be cancelled",
                detail=f"schedule {schedule_id}",
                hint="AFTERTURN_WORKING_SECONDS says at what age `working` records expire.",
            )
        if row["outcome"] == "done":
            raise MemoryContractError(
                "The erase was due and has become a job",
                detail=f"schedule {schedule_id}, job {row['job_id']}",
                hint="An erase that was requested cannot be undone.",
            )
        return _schedule(row)


def parse_age(text: str) -> timedelta:
    """An age as people write it: `90m`, `12h`, `30d`, `2w`. Raises `MemoryContractError`."""
    match = re.fullmatch(r"(\d{1,6})([mhdw])", text.strip())
    if match is None:
        raise MemoryContractError(
            "Not an age",
            detail=f"got {ascii(text)[:40]}",
            hint="Write a number and m, h, d or w, for example 30d.",
        )
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def _schedule(row: asyncpg.Record) -> Schedule:
    request: dict[str, Any] = row["request"]
    seconds = row["older_seconds"]
    return Schedule(
        schedule_id=row["id"],
        kind=row["kind"],
        state=row["outcome"] or "waiting",
        scope_path=scope_from_stored_path(row["path"]).path if row["path"] else None,
        due_at=row["due_at"],
        layer=row["layer"],
        older_than=None if seconds is None else timedelta(seconds=seconds),
        daily_at=row["daily_at"],
        zone=row["zone"],
        is_default=row["is_default"],
        derived=request.get("derived", ""),
        requested_by=request.get("requested_by", ""),
        reason=request.get("reason", ""),
        ran_at=row["ran_at"],
        job_id=row["job_id"],
    )
