"""The ledger's calls: claiming, applying, failing, enqueuing. The protocol itself is in SQL.

A claim leases a job under a random token and counts the attempt before the work. What applies
checks the token, the kind and the path, in the transaction that holds the effects: the effect
happens once, whoever else wakes up.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from afterturn import metrics
from afterturn.database import Database
from afterturn.jobs.names import Kind
from afterturn.settings import Settings
from afterturn.turns import TokenUsage

# `taken_over`: the lease of another ran out. A statement sees the rows as they were before its own
# claim. Only what was attempted before can be that, so that nothing else is looked up.
_CLAIM_TURNS = """
select c.*, case when c.attempts > 1 then (
        select j.lease_token is not null and j.ready_at <= afterturn.clock()
        from afterturn.jobs j where j.id = c.job_id) else false end as taken_over
from afterturn.claim_turns($1, $2::bigint[], $3, $4, $5, $6) c
"""
_CLAIM_UNRECORDED = "select * from afterturn.claim_unrecorded($1, $2, $3, $4, $5, $6)"
_APPLY_TURNS = "select * from afterturn.apply_turns($1, $2::jsonb, $3)"
_CLAIM_EXTRACTS = """
select c.*, case when c.attempts > 1 then (
        select j.lease_token is not null and j.ready_at <= afterturn.clock()
        from afterturn.jobs j where j.id = c.job_id) else false end as taken_over
from afterturn.claim_extracts($1::bigint[], $2, $3, $4, $5, $6) c
"""
_DEFER_TURN = "select afterturn.defer_turn_job($1, $2, $3, $4, $5, $6)"
_COUNT_USAGE = "select afterturn.count_usage($1, $2::bigint[], $3::uuid[], $4, $5, $6)"
_FAIL_TURN = "select afterturn.fail_turn_job($1, $2, $3, $4, $5)"
_RENEW = "select afterturn.renew($1::bigint[], $2::uuid[], $3)"
_RELEASE = "select afterturn.release($1::bigint[], $2::uuid[])"
_CLAIM_EMBED = """
select c.*, case when c.attempts > 1 then (
        select j.lease_token is not null and j.ready_at <= afterturn.clock()
        from afterturn.jobs j where j.id = c.job_id) else false end as taken_over
from afterturn.claim_embed($1::bigint[], $2) c
"""
_APPLY_EMBED = """
select afterturn.apply_embed($1, $2, $3, $4::text[], $5::bigint[], $6::bytea[], $7, $8)
"""
_UNDER_ERASE = """
select p.path from (select distinct unnest($1::text[]) as path) p
where afterturn.erasing(afterturn.covering(p.path))
"""
_CLAIM_LIFECYCLE = """
select c.*, case when c.attempts > 1 then (
        select j.lease_token is not null and j.ready_at <= afterturn.clock()
        from afterturn.jobs j where j.id = $1) else false end as taken_over,
    extract(epoch from afterturn.clock() - c.created_at)::float8 as waited_seconds
from afterturn.claim_lifecycle($1, $2) c
"""
_FAIL_LIFECYCLE = "select * from afterturn.fail_lifecycle($1, $2, $3, $4)"
_UNBLOCK = "select * from afterturn.unblock($1, $2)"
_KIND_OF = "select id, kind from afterturn.jobs where id = any($1::bigint[])"
_UNBLOCK_BATCH = 1_000
_UNBLOCK_TRIES = 10
_ERASE_WAIT = timedelta(seconds=1)
_ALWAYS = timedelta(days=36_500)


@dataclass(frozen=True)
class Lease:
    """The right to work on a job until the lease runs out."""

    job_id: int
    token: UUID
    attempts: int


@dataclass(frozen=True)
class ClaimedTurn:
    """A leased record or extract job with the turn as it was staged.

    `staged_at` is None when an erase took the turn; applying the job then says so.
    """

    lease: Lease
    stored_path: str
    turn_id: str
    session: str | None
    query: str | None
    answer: str | None
    names: tuple[str, str] | None
    metadata: Mapping[str, Any]
    occurred_at: datetime | None
    staged_at: datetime | None

    @classmethod
    def from_row(cls, row: asyncpg.Record) -> ClaimedTurn:
        """From a row of `claim_turns`."""
        names = row["names"]
        return cls(
            lease=Lease(row["job_id"], row["lease"], row["attempts"]),
            stored_path=row["path"],
            turn_id=row["turn_id"],
            session=row["session"],
            query=row["query"],
            answer=row["answer"],
            names=(names[0], names[1]) if names else None,
            metadata=row["metadata"] or {},
            occurred_at=row["occurred_at"],
            staged_at=row["staged_at"],
        )


@dataclass(frozen=True)
class ClaimedJob:
    """A leased embed or lifecycle job."""

    lease: Lease
    kind: Kind
    stored_path: str
    request: Mapping[str, Any]
    requested: float = 0.0  # on this process's monotonic clock

    @property
    def age_seconds(self) -> float:
        """How long ago it was requested, by the database's clock and then by this process's."""
        return time.monotonic() - self.requested


@dataclass(frozen=True)
class Applied:
    """The verdict of each job of a batch, and the jobs to ring that it made."""

    verdicts: Mapping[int, str]
    next_jobs: Mapping[Kind, Sequence[int]]


class Ledger:
    """Calls on the ledger, with this process's lease, attempts and backoff."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    @property
    def lease_time(self) -> timedelta:
        """How long a lease lasts without a sign of life."""
        return timedelta(seconds=self._settings.lease_seconds)

    async def claim_turns(
        self, kind: Kind, ids: Sequence[int], *, limit: int, lost: bool = False
    ) -> list[ClaimedTurn]:
        """Lease turn jobs that wait, the named ones first; or, `lost`, named ones that may have
        been what their worker was lost to: to be worked on alone."""
        rows = await self._database.rows(
            _CLAIM_TURNS,
            kind,
            list(ids),
            limit,
            lost,
            self._settings.max_attempts,
            self.lease_time,
        )
        _count_takeovers(kind, rows)
        return [ClaimedTurn.from_row(row) for row in rows]

    async def claim_extracts(
        self, ids: Sequence[int], *, calls: int, turns: int, bytes_max: int
    ) -> list[list[ClaimedTurn]]:
        """Lease waiting extract jobs, the named ones first, as up to `calls` calls of a model.

        A call is up to `turns` turns of one scope with `bytes_max` of text together, or one turn.
        """
        rows = await self._database.rows(
            _CLAIM_EXTRACTS,
            list(ids),
            calls,
            turns,
            bytes_max,
            self._settings.max_attempts,
            self.lease_time,
        )
        _count_takeovers("extract", rows)
        claimed: dict[int, list[ClaimedTurn]] = {}
        for row in rows:
            claimed.setdefault(row["call"], []).append(ClaimedTurn.from_row(row))
        return list(claimed.values())

    async def claim_unrecorded(
        self, stored_path: str, after: int, until: int, limit: int
    ) -> list[ClaimedTurn]:
        """Lease the record jobs under a scope with ids in (after, until], whoever holds them."""
        rows = await self._database.rows(
            _CLAIM_UNRECORDED,
            stored_path,
            after,
            until,
            limit,
            self._settings.max_attempts,
            self.lease_time,
        )
        return [ClaimedTurn.from_row(row) for row in rows]

    async def apply_turns(
        self, kind: Kind, work: Sequence[Mapping[str, Any]], *, embed: bool
    ) -> Applied:
        """Write a batch's records and end its jobs in one transaction."""
        rows = await self._database.rows(_APPLY_TURNS, kind, list(work), embed)
        next_jobs: dict[Kind, list[int]] = {}
        for row in rows:
            if row["next_job"] is not None:
                next_jobs.setdefault(row["next_kind"], []).append(row["next_job"])
        return Applied(
            {row["job_id"]: row["verdict"] for row in rows if row["job_id"] is not None}, next_jobs
        )

    async def fail_turn(self, lease: Lease, reason: str) -> str:
        """Put a turn or embed job back with a later time, or give it up; `retry`, `dead`, `lost`.

        `reason` is a short code, never text of a memory or of a driver.
        """
        return str(
            await self._database.value(
                _FAIL_TURN,
                lease.job_id,
                lease.token,
                reason,
                self._settings.max_attempts,
                self.backoff(lease.attempts),
            )
        )

    async def give_up_turn(self, lease: Lease, reason: str) -> str:
        """Give a turn job up at once: another attempt would not help. `dead` or `lost`."""
        return str(
            await self._database.value(
                _FAIL_TURN, lease.job_id, lease.token, reason, 0, timedelta()
            )
        )

    async def defer_turn(self, lease: Lease, reason: str, wait_seconds: float) -> str:
        """Put an extract job back, its attempt not counted as long as it may wait for the model.

        `waits`; or as `fail_turn`, once the job is older than `outage_seconds`.
        """
        return str(
            await self._database.value(
                _DEFER_TURN,
                lease.job_id,
                lease.token,
                reason,
                timedelta(seconds=wait_seconds),
                timedelta(seconds=self._settings.outage_seconds),
                self._settings.max_attempts,
            )
        )

    async def under_erase(self, stored_paths: Collection[str]) -> set[str]:
        """Those of the paths that a standing erase covers."""
        rows = await self._database.rows(_UNDER_ERASE, list(stored_paths))
        return {row["path"] for row in rows}

    async def put_off(self, leases: Sequence[Lease]) -> None:
        """Give turn or embed jobs back for a moment because an erase stands: no attempt is counted.

        The erase takes them, or takes what they hold and makes them free.
        """
        for lease in leases:
            await self._database.value(
                _DEFER_TURN,
                lease.job_id,
                lease.token,
                "",
                _ERASE_WAIT,
                _ALWAYS,
                self._settings.max_attempts,
            )

    async def count_usage(
        self, stored_path: str, leases: Sequence[Lease], usage: TokenUsage
    ) -> None:
        """Count calls and tokens by the root of the scope they were spent on."""
        await self._database.value(
            _COUNT_USAGE,
            stored_path,
            [lease.job_id for lease in leases],
            [lease.token for lease in leases],
            usage.calls,
            usage.prompt_tokens,
            usage.completion_tokens,
        )

    async def renew(self, leases: Sequence[Lease]) -> set[int]:
        """Extend leases; returns the ids that are still held."""
        leases = sorted(leases, key=lambda each: each.job_id)  # the order of all row locks
        rows = await self._database.rows(
            _RENEW, [e.job_id for e in leases], [e.token for e in leases], self.lease_time
        )
        return {row[0] for row in rows}

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give jobs back unfinished, the attempt not counted."""
        await self._database.value(_RELEASE, [e.job_id for e in leases], [e.token for e in leases])

    async def claim_embed(self, ids: Sequence[int]) -> ClaimedJob | None:
        """Lease the first free embed job among the ids."""
        row = await self._database.row_or_none(_CLAIM_EMBED, list(ids), self.lease_time)
        if row is None:
            return None
        _count_takeovers("embed", [row])
        lease = Lease(row["job_id"], row["lease"], row["attempts"])
        return ClaimedJob(lease, "embed", row["path"], {})

    async def apply_embed(
        self,
        job: ClaimedJob,
        record_ids: Sequence[str],
        revisions: Sequence[int],
        vectors: Sequence[bytes],
        *,
        last: bool,
    ) -> str:
        """Store vectors of rows that are still what was embedded; `done`, `erasing` or `lost`."""
        return str(
            await self._database.value(
                _APPLY_EMBED,
                job.lease.job_id,
                job.lease.token,
                job.stored_path,
                list(record_ids),
                list(revisions),
                list(vectors),
                last,
                self.lease_time,
            )
        )

    async def claim_lifecycle(self, job_id: int) -> tuple[str, ClaimedJob | None]:
        """Lease a lifecycle job if it may run now; the verdict is claimed, busy, requeued or
        superseded."""
        row = await self._database.row(_CLAIM_LIFECYCLE, job_id, self.lease_time)
        verdict = str(row["verdict"])
        if verdict != "claimed":
            return verdict, None
        _count_takeovers(row["kind"], [row])
        lease = Lease(job_id, row["lease"], row["attempts"])
        requested = time.monotonic() - row["waited_seconds"]
        return verdict, ClaimedJob(lease, row["kind"], row["path"], row["request"], requested)

    async def fail_lifecycle(self, lease: Lease, reason: str) -> tuple[str, int | None]:
        """Put a lifecycle job back; a flush that an erase waits for goes to the tail instead."""
        row = await self._database.row(
            _FAIL_LIFECYCLE, lease.job_id, lease.token, reason, self.backoff(lease.attempts)
        )
        return str(row["verdict"]), row["successor"]

    async def unblock(self, job_id: int) -> dict[Kind, list[int]]:
        """Look anew at the jobs that waited for an ended one; returns those that may run now.

        Those of which the job before them stays held for long are left to the sweep.
        """
        free: list[int] = []
        for _ in range(_UNBLOCK_TRIES):
            while (row := await self._database.row(_UNBLOCK, job_id, _UNBLOCK_BATCH))["seen"]:
                free.extend(row["free"])
            if row["free"] is not None:
                break
            await asyncio.sleep(random.uniform(0.01, 0.05))
        kinds = await self._database.rows(_KIND_OF, free) if free else []
        by_kind: dict[Kind, list[int]] = {}
        for row in kinds:
            by_kind.setdefault(row["kind"], []).append(row["id"])
        return by_kind

    def backoff(self, attempts: int) -> timedelta:
        """Doubling from the base, capped, with jitter so that failures do not come in step."""
        wait = self._settings.retry_base_seconds * 2.0 ** min(max(attempts - 1, 0), 32)
        capped = min(wait, self._settings.retry_cap_seconds)
        return timedelta(seconds=capped * random.uniform(0.8, 1.2))


def _count_takeovers(kind: Kind, rows: Iterable[asyncpg.Record]) -> None:
    if taken := sum(row["taken_over"] for row in rows):
        metrics.TAKEOVERS.labels(kind).inc(taken)
