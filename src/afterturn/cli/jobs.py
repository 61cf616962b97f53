"""`afterturn jobs`: which jobs stand and why, and running them again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from afterturn.cli.arguments import as_json, examples, optional_scope
from afterturn.cli.opening import database_settings
from afterturn.cli.output import console, print_json, print_pairs

if TYPE_CHECKING:
    from datetime import datetime

    from afterturn.database import Database
    from afterturn.jobs.inspection import JobInfo, JobState
    from afterturn.jobs.names import Kind
    from afterturn.scope import MemoryScope

T = TypeVar("T")

# As in `afterturn.jobs`, whose import would slow every command's start.
_KINDS = ("record", "extract", "embed", "flush", "forget", "expire")
_STATES = (
    "waiting",
    "running",
    "lapsed",
    "blocked",
    "stuck",
    "dead",
    "done",
    "superseded",
    "requeued",
)
_kinds = click.option(
    "--kind", "kinds", type=click.Choice(_KINDS), multiple=True, help="Only this kind; repeatable."
)
_job_id = click.IntRange(min=1)


@click.group(
    epilog=examples(
        "afterturn jobs list --state dead",
        "afterturn jobs show 4711",
        "afterturn jobs retry --dead",
    )
)
def jobs() -> None:
    """Look at the ledger of jobs, and run again what was given up."""


@jobs.command("list", epilog=examples("afterturn jobs list --state dead --json"))
@click.option(
    "--state",
    "states",
    type=click.Choice(_STATES),
    multiple=True,
    help="Only this state; repeatable. Unless given, all but what ended well.",
)
@_kinds
@optional_scope("Only jobs of this scope and below.")
@click.option("--turn", "turn_id", help="Only jobs of the turn with this id.")
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only ids beyond this one.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most."
)
@as_json
def list_(
    states: tuple[JobState, ...],
    kinds: tuple[Kind, ...],
    scope: MemoryScope | None,
    turn_id: str | None,
    after: int,
    limit: int,
    as_json: bool,
) -> None:
    """List jobs in the order of their ids.

    waiting: for a worker or for its time. running: a worker holds it. lapsed: its worker was lost,
    the sweep will ring for it. blocked: it waits for another job of an overlapping scope. stuck: a
    flush or an erase that keeps failing. dead: given up after its attempts.
    """

    async def find(database: Database) -> list[JobInfo]:
        from afterturn.jobs.inspection import OPEN_STATES, find_jobs

        return await find_jobs(
            database,
            states=states or OPEN_STATES,
            kinds=kinds or None,
            scope=scope,
            turn_id=turn_id,
            after=after,
            limit=limit + 1,
        )

    found = _asked(find)
    shown, is_more = found[:limit], len(found) > limit
    if as_json:
        print_json({"jobs": [job.model_dump(mode="json") for job in shown], "more": is_more})
        return
    _print_table(shown)
    if is_more:
        click.echo(f"more beyond: --after {shown[-1].job_id}")


@jobs.command("show", epilog=examples("afterturn jobs show 4711"))
@click.argument("job_id", type=_job_id)
@as_json
def show(job_id: int, as_json: bool) -> None:
    """Show one job, and what became of its turn."""

    async def ask(database: Database) -> JobInfo:
        from afterturn.jobs.inspection import show_job

        return await show_job(database, job_id)

    job = _asked(ask)
    if as_json:
        print_json(job.model_dump(mode="json"))
        return
    rows: dict[str, object] = {
        "job": f"{job.job_id}, {job.kind}, {job.state}",
        "scope": job.scope_path or "erased",
        "attempts": job.attempts,
        "reason": job.reason or "none",
        "enqueued": job.created_at,
    }
    if job.ready_at is not None:
        rows["leased until" if job.state == "running" else "ready"] = job.ready_at
    if job.finished_at is not None:
        rows["ended"] = job.finished_at
    if job.blocked_by is not None:
        rows["waits for"] = f"job {job.blocked_by}"
    if job.turn_id is not None:
        rows["turn"] = job.turn_id
    if job.turn is not None:
        rows["of the turn"] = (
            f"{job.turn.outcome}, recorded {_count(job.turn.recorded)}, "
            f"extracted {_count(job.turn.extracted)}"
        )
    print_pairs(rows)


@jobs.command(
    "retry", epilog=examples("afterturn jobs retry 4711 4712", "afterturn jobs retry --dead")
)
@click.argument("job_ids", type=_job_id, nargs=-1)
@click.option("--dead", is_flag=True, help="All that were given up.")
@_kinds
@optional_scope("With --dead: only jobs of this scope and below.")
@as_json
def retry(
    job_ids: tuple[int, ...],
    dead: bool,
    kinds: tuple[Kind, ...],
    scope: MemoryScope | None,
    as_json: bool,
) -> None:
    """Run jobs again: dead ones as new jobs, waiting ones at once.

    A new job has all its attempts before it. The sweep rings for it; without a worker it waits.
    """
    if bool(job_ids) == dead:
        raise click.UsageError("Name jobs, or use --dead.")
    if not dead and (kinds or scope is not None):
        raise click.UsageError("--kind and --scope go with --dead.")

    async def tell(database: Database) -> Sequence[dict[str, object]]:
        from afterturn.jobs.inspection import retry_dead, retry_job

        if dead:
            done = await retry_dead(database, kinds=kinds or None, scope=scope)
        else:
            done = [await retry_job(database, job_id) for job_id in job_ids]
        return [each.model_dump(mode="json") for each in done]

    done = _asked(tell)
    if as_json:
        print_json({"jobs": list(done)})
        return
    for each in done:
        how = "may run now" if each["verdict"] == "hastened" else f"runs as job {each['job_id']}"
        click.echo(f"{each['kind']} {each['asked']} {how}")
    if not done:
        click.echo("no job is dead")


def _asked(question: Callable[[Database], Awaitable[T]]) -> T:
    from afterturn.database import Database
    from afterturn.migrations import require_current
    from afterturn.settings import Settings

    settings = database_settings(Settings.load())

    async def ask() -> T:
        database = Database(str(settings.database_url), settings, pool_size=1)
        try:
            async with database.connection() as conn:
                await require_current(conn)
            return await question(database)
        finally:
            await database.close()

    return asyncio.run(ask())


def _print_table(found: Sequence[JobInfo]) -> None:
    from rich.table import Table

    if not found:
        click.echo("no such jobs")
        return
    table = Table()
    for name in ("id", "kind", "state", "scope", "turn", "attempts", "reason", "since"):
        table.add_column(name, overflow="fold", justify="right" if name == "attempts" else "left")
    for job in found:
        table.add_row(
            str(job.job_id),
            job.kind,
            job.state if job.blocked_by is None else f"{job.state} by {job.blocked_by}",
            job.scope_path or "erased",
            job.turn_id or "",
            str(job.attempts),
            job.reason,
            _shown(job.created_at),
        )
    console().print(table)


def _shown(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S")


def _count(count: int | None) -> str:
    return "not yet" if count is None else str(count)
