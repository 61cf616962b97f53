"""The ledger as an operator sees it: which jobs there are, why they stand, running them again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal, get_args

from afterturn.database import Database
from afterturn.errors import ErasePending, MemoryContractError
from afterturn.intake import checked_number
from afterturn.jobs.names import Kind
from afterturn.model import Model
from afterturn.scope import MemoryScope

JobState = Literal[
    "waiting", "running", "lapsed", "blocked", "stuck", "dead", "done", "superseded", "requeued"
]
JOB_STATES: Final[tuple[JobState, ...]] = get_args(JobState)
OPEN_STATES: Final[tuple[JobState, ...]] = (
    "waiting",
    "running",
    "lapsed",
    "blocked",
    "stuck",
    "dead",
)
"""Those somebody may still have to look at: all but what ended well."""

_JOBS = """
select s.id as job_id, s.kind, s.state, rtrim(s.path, '/') as scope_path, s.turn_id, s.attempts,
    s.reason, s.created_at, case when s.finished_at is null then s.ready_at end as ready_at,
    s.finished_at, s.blocked_by, s.path
from (
    select j.*, case
        when j.finished_at is not null then j.outcome
        when j.lease_token is not null and j.ready_at > afterturn.clock() then 'running'
        when j.lease_token is not null then 'lapsed'
        when j.blocked_by is not null then 'blocked'
        when j.attempts > 1 and j.kind in ('flush', 'forget', 'expire') then 'stuck'
        else 'waiting' end as state
    from afterturn.jobs j) s
"""
_FIND = (
    _JOBS
    + """
where s.id > $1 and s.state = any($2::text[]) and ($3::text[] is null or s.kind = any($3))
    and ($4::text is null or s.path >= $4 and s.path < afterturn.under_end($4))
    and ($5::text is null or s.turn_id = $5)
order by s.id limit $6
"""
)
_SHOW = _JOBS + "where s.id = $1"
_TURN = """
select outcome, reason, staged_at, recorded, extracted from afterturn.turns
where path = $1 and turn_id = $2
"""
_RETRY = "select * from afterturn.retry_job($1)"
_PAGE: Final = 500


class TurnFate(Model):
    """What became of the turn of a job. Counts are None until that step has ended."""

    outcome: str
    reason: str
    staged_at: datetime
    recorded: int | None = None
    extracted: int | None = None


class JobInfo(Model):
    """One row of the ledger. `ready_at` is when it may be claimed, or when its lease runs out.

    `scope_path` is None once the scope was erased.
    """

    job_id: int
    kind: Kind
    state: JobState
    scope_path: str | None
    turn_id: str | None
    attempts: int
    reason: str
    created_at: datetime
    ready_at: datetime | None = None
    finished_at: datetime | None = None
    blocked_by: int | None = None
    turn: TurnFate | None = None


class Retried(Model):
    """A job that was told to run again. `job_id` is the new one when it had been given up."""

    asked: int
    job_id: int
    kind: Kind
    verdict: Literal["retried", "hastened"]


async def find_jobs(
    database: Database,
    *,
    states: Sequence[JobState] = OPEN_STATES,
    kinds: Sequence[Kind] | None = None,
    scope: MemoryScope | None = None,
    turn_id: str | None = None,
    after: int = 0,
    limit: int = 100,
) -> list[JobInfo]:
    """Jobs in the order of their ids, at most `limit`, beyond the id `after`."""
    rows = await database.rows(
        _FIND,
        after,
        list(states),
        None if kinds is None else list(kinds),
        None if scope is None else scope.stored_path,
        turn_id,
        limit,
    )
    return [JobInfo(**{k: v for k, v in row.items() if k != "path"}) for row in rows]


async def show_job(database: Database, job_id: int) -> JobInfo:
    """One job, with what became of its turn. Raises `MemoryContractError` for an unknown id."""
    row = await database.row_or_none(_SHOW, checked_number(job_id, what="job_id"))
    if row is None:
        raise _unknown(job_id)
    turn = None
    if row["turn_id"] is not None:
        turn = await database.row_or_none(_TURN, row["path"], row["turn_id"])
    fields = {k: v for k, v in row.items() if k != "path"}
    return JobInfo(**fields, turn=None if turn is None else TurnFate(**dict(turn)))


async def retry_job(database: Database, job_id: int) -> Retried:
    """Run a job again: one that was given up as a new job, one that waits for its time at once.

    Raises `ErasePending` while an erase of its scope stands and `MemoryContractError` when there
    is nothing to run: no such job, one that a worker holds, one that ended well.
    """
    row = await database.row(_RETRY, checked_number(job_id, what="job_id"))
    match row["verdict"]:
        case "retried" | "hastened":
            return Retried(
                asked=job_id, job_id=row["job_id"], kind=row["job_kind"], verdict=row["verdict"]
            )
        case "erasing":
            raise ErasePending(
                "The scope is being erased",
                detail=f"job {job_id}",
                hint="The erase takes the job with it; nothing is left to do.",
            )
        case "running":
            raise MemoryContractError(
                "A worker holds the job", detail=f"job {job_id}", hint="Wait for its lease to end."
            )
        case "ended":
            raise MemoryContractError("The job has ended well", detail=f"job {job_id}")
        case _:
            raise _unknown(job_id)


async def retry_dead(
    database: Database, *, kinds: Sequence[Kind] | None = None, scope: MemoryScope | None = None
) -> list[Retried]:
    """Run again all jobs that were given up; those whose scope is being erased are left out."""
    retried: list[Retried] = []
    after = 0
    while page := await find_jobs(
        database, states=("dead",), kinds=kinds, scope=scope, after=after, limit=_PAGE
    ):
        after = page[-1].job_id
        for job in page:
            try:
                retried.append(await retry_job(database, job.job_id))
            except (ErasePending, MemoryContractError):
                continue  # erased or retried by somebody else since it was listed
    return retried


def _unknown(job_id: int) -> MemoryContractError:
    return MemoryContractError(
        "There is no such job",
        detail=f"job {job_id}",
        hint="A turn's jobs go when they are done; `afterturn jobs list` shows what is left.",
    )
