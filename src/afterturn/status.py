"""What the ledger holds: for operators, and for those who wait until nothing is outstanding."""

from __future__ import annotations

from typing import Any

import asyncpg
from pydantic import Field

from afterturn.database import Database
from afterturn.model import Model
from afterturn.scope import MemoryScope

# Unfinished jobs by the two partial indexes that hold them: the ledger keeps a week of ended ones.
_KINDS = """
select kind,
    count(*) filter (where lease_token is null) as waiting,
    count(*) filter (where lease_token is not null and ready_at > afterturn.clock()) as running,
    count(*) filter (where lease_token is not null and ready_at <= afterturn.clock()) as lapsed,
    count(*) filter (where attempts > 1 and kind in ('flush', 'forget', 'expire')) as stuck,
    coalesce(extract(epoch from afterturn.clock() - min(created_at)), 0)::float8 as oldest_seconds
from (
    select kind, lease_token, ready_at, attempts, created_at from afterturn.jobs
    where kind in ('record', 'extract', 'embed', 'flush', 'forget', 'expire')
        and finished_at is null and blocked_by is null
    union all
    select kind, lease_token, ready_at, attempts, created_at from afterturn.jobs
    where blocked_by is not null and finished_at is null) unfinished
group by kind
"""
_TOTALS = """
select
    (select count(*) from afterturn.jobs
        where finished_at is not null and not releasing and outcome = 'dead') as dead,
    (select count(*) from afterturn.erase_intents) as intents,
    (select count(*) from afterturn.memories where pending) as pending,
    (select count(*) from afterturn.schedules
        where outcome is null and kind = 'forget') as scheduled,
    (select count(*) from afterturn.schedules
        where outcome is null and kind in ('forget', 'expire')
            and due_at <= afterturn.clock()) as due,
    (select max(version) from afterturn.migrations) as migration,
    current_setting('server_version') as postgresql
"""
_USAGE = """
select coalesce(sum(calls), 0)::bigint as calls,
    coalesce(sum(prompt_tokens), 0)::bigint as prompt_tokens,
    coalesce(sum(completion_tokens), 0)::bigint as completion_tokens,
    has_column_privilege('afterturn.token_usage', 'path', 'select') as may_name_roots
from afterturn.token_usage
"""
# The roots that cost most; those that were erased have no name and are one.
_USAGE_BY_ROOT = """
select case when path = '' then '(erased)' else rtrim(path, '/') end as root, calls,
    prompt_tokens, completion_tokens
from afterturn.token_usage order by prompt_tokens + completion_tokens desc, path limit 50
"""
# Two counts, each of a kind that has a partial index of its own.
_OUTSTANDING = """
select (select count(*) from afterturn.jobs
        where kind in ('record', 'extract', 'embed') and finished_at is null
            and path >= $1 and path < afterturn.under_end($1))
    + (select count(*) from afterturn.jobs
        where kind in ('flush', 'forget', 'expire') and finished_at is null
            and path >= $1 and path < afterturn.under_end($1))
"""
_OUTSTANDING_ABOVE = """
select count(*) from afterturn.jobs
where finished_at is null and kind in ('flush', 'forget', 'expire')
    and path = any(trim_array(afterturn.covering($1), 1))
"""
_OPEN_JOBS = """
select id, kind from afterturn.jobs
where finished_at is null and ready_at <= afterturn.clock()
    and path >= $1 and path < afterturn.under_end($1)
order by id limit 500
"""


class KindStatus(Model):
    """Unfinished jobs of a kind. `lapsed`: the lease ran out, a worker was lost or is late."""

    waiting: int = 0
    running: int = 0
    lapsed: int = 0
    stuck: int = 0
    oldest_seconds: float = 0.0


class ModelUsage(Model):
    """What the extraction model was asked so far: calls, and tokens each way."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Trouble(Model):
    """Something an operator has to look at, and the command to begin with."""

    says: str
    mend: str


class MemoryStatus(Model):
    """The ledger at one moment. `pending` counts records that wait for a flush.

    `scheduled` are erases to come, `due` schedules and rules whose time has come and that the next
    sweep turns into jobs. `model_by_root` has up to 50 roots, the dearest first.
    """

    jobs: dict[str, KindStatus] = Field(default_factory=dict)
    dead: int = 0
    standing_intents: int = 0
    pending: int = 0
    scheduled: int = 0
    due: int = 0
    model: ModelUsage = ModelUsage()
    model_by_root: dict[str, ModelUsage] = Field(default_factory=dict)
    migration: int = 0
    postgresql: str = ""

    @property
    def outstanding(self) -> int:
        """Unfinished jobs of every kind."""
        return sum(kind.waiting + kind.running + kind.lapsed for kind in self.jobs.values())

    def troubles(self, oldest_seconds: float) -> list[Trouble]:
        """What is wrong; an unfinished job older than `oldest_seconds` is. Empty: all is well."""
        found = []
        if self.dead:
            found.append(
                Trouble(
                    says=f"{self.dead} jobs are dead",
                    mend="afterturn jobs list --state dead, then afterturn jobs retry --dead",
                )
            )
        for kind, jobs in sorted(self.jobs.items()):
            found += _troubles_of(kind, jobs, oldest_seconds)
        return found


def _troubles_of(kind: str, jobs: KindStatus, oldest_seconds: float) -> list[Trouble]:
    found = []
    if jobs.stuck:
        found.append(
            Trouble(
                says=f"{jobs.stuck} {kind} jobs are stuck",
                mend=f"afterturn jobs list --state stuck --kind {kind}: it shows the reason",
            )
        )
    if jobs.lapsed:
        found.append(
            Trouble(
                says=f"{jobs.lapsed} {kind} jobs were left by a lost worker",
                mend="afterturn doctor: whether workers and beat are at work; the sweep rings them",
            )
        )
    if jobs.oldest_seconds > oldest_seconds:
        found.append(
            Trouble(
                says=f"the oldest {kind} job has waited {jobs.oldest_seconds:.0f} s",
                mend=f"afterturn jobs list --kind {kind}, and afterturn doctor",
            )
        )
    return found


async def read_status(database: Database) -> MemoryStatus:
    """Counts of everything; cheap enough for a prompt, not for a hot path."""
    kinds = await database.rows(_KINDS)
    totals = await database.row(_TOTALS)
    usage = await database.row(_USAGE)
    # An auditor's role sees no path.
    roots = await database.rows(_USAGE_BY_ROOT) if usage["may_name_roots"] else []
    return MemoryStatus(
        jobs={
            row["kind"]: KindStatus(
                waiting=row["waiting"],
                running=row["running"],
                lapsed=row["lapsed"],
                stuck=row["stuck"],
                oldest_seconds=row["oldest_seconds"],
            )
            for row in kinds
        },
        dead=totals["dead"],
        standing_intents=totals["intents"],
        pending=totals["pending"],
        scheduled=totals["scheduled"],
        due=totals["due"],
        model=_usage(usage),
        model_by_root={row["root"]: _usage(row) for row in roots},
        migration=totals["migration"],
        postgresql=totals["postgresql"],
    )


def _usage(row: asyncpg.Record) -> ModelUsage:
    return ModelUsage(**{field: row[field] for field in ModelUsage.model_fields})


async def outstanding(database: Database, scope: MemoryScope) -> int:
    """Unfinished jobs under a scope, and lifecycle jobs above it."""
    under = await database.value(_OUTSTANDING, scope.stored_path)
    above = await database.value(_OUTSTANDING_ABOVE, scope.stored_path)
    return int(under) + int(above)


async def open_jobs(database: Database, scope: MemoryScope) -> dict[Any, list[int]]:
    """Jobs under a scope that may be claimed now, by kind."""
    rows = await database.rows(_OPEN_JOBS, scope.stored_path)
    jobs: dict[Any, list[int]] = {}
    for row in rows:
        jobs.setdefault(row["kind"], []).append(row["id"])
    return jobs
