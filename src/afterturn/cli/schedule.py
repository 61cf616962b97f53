"""`afterturn schedule`: erases to come and retention rules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from afterturn.cli.arguments import as_json, examples, optional_scope
from afterturn.cli.opening import database_settings
from afterturn.cli.output import console, print_json, print_pairs

if TYPE_CHECKING:
    from afterturn.schedules import Schedule, Schedules
    from afterturn.scope import MemoryScope

T = TypeVar("T")
LAYERS = ("working", "episodic", "semantic", "procedural", "prospective")


@click.group(
    epilog=examples(
        "afterturn schedule add --scope acme/alice --at '2027-01-31 02:30' --zone Europe/Berlin",
        "afterturn schedule add --layer episodic --older-than 30d --scope acme",
        "afterturn schedule list",
        "afterturn schedule cancel 7",
    )
)
def schedule() -> None:
    """Erase later: one scope at a moment, or records of a layer at an age.

    Beat's tick has a worker look at what is due. However many beats and workers run, it is done
    once; what came due while none ran is done when one runs again.
    """


@schedule.command(
    epilog=examples(
        "afterturn schedule add --scope acme/alice --at 2027-01-31T02:30+01:00 --reason T-7",
        "afterturn schedule add --layer episodic --older-than 30d --scope acme",
        "afterturn schedule add --layer working --older-than 12h --daily-at 02:30 --zone UTC",
    )
)
@optional_scope("What is erased at --at; for a rule, everything unless given.")
@click.option("--at", metavar="TIME", help="When to erase SCOPE, once.")
@click.option("--layer", type=click.Choice(LAYERS), help="A rule: the layer that expires.")
@click.option("--older-than", metavar="AGE", help="A rule: the age, as 90m, 12h, 30d or 2w.")
@click.option(
    "--daily-at",
    metavar="HH:MM",
    help="A rule: look once a day at this time.  [default: hourly, or more often for short ages]",
)
@click.option(
    "--zone",
    metavar="NAME",
    help="The time zone of --at and --daily-at, for example Europe/Berlin.",
)
@click.option(
    "--derived",
    type=click.Choice(["erase", "keep"]),
    default="erase",
    show_default=True,
    help="With --at: what to do with facts elsewhere that were learned from SCOPE alone.",
)
@click.option("--requested-by", default="", help="With --at: who asked, for the erase log.")
@click.option("--reason", default="", help="With --at: why, a ticket's number.")
@as_json
def add(
    scope: MemoryScope | None,
    at: str | None,
    layer: str | None,
    older_than: str | None,
    daily_at: str | None,
    zone: str | None,
    derived: Literal["erase", "keep"],
    requested_by: str,
    reason: str,
    as_json: bool,
) -> None:
    """Add an erase to come (--scope, --at) or a retention rule (--layer, --older-than).

    A rule counts from the recording, and is for everything unless --scope is given. It takes
    records of its layer; what was said stays in the transcript until it is forgotten. Of several
    rules for a layer the shortest age counts. Records of the layer `working` expire after
    AFTERTURN_WORKING_SECONDS without any rule.

    A time skipped by the zone's clock is taken after the gap; of one that comes twice, the second.
    """
    if (at is None) == (layer is None and older_than is None):
        raise click.UsageError("Give either --at, or --layer and --older-than.")
    if at is not None:
        if scope is None:
            raise click.UsageError("--at needs --scope: which scope is to be erased?")
        if daily_at is not None:
            raise click.UsageError("--daily-at is for rules; --at already says when.")
        moment = _moment(at, zone)
        made = _run(lambda schedules: _add_forget(
            schedules, scope, moment, zone, derived, requested_by, reason
        ))  # fmt: skip
    else:
        if layer is None or older_than is None:
            raise click.UsageError(
                "A rule needs both --layer and --older-than, else it would erase everything."
            )
        made = _run(_rule(layer, older_than, scope, daily_at, zone))
    if as_json:
        print_json(made.model_dump(mode="json"))
    else:
        print_pairs(_rows(made))


@schedule.command("list", epilog=examples("afterturn schedule list --all --json"))
@click.option("--all", "ended", is_flag=True, help="Also what was done, cancelled or erased.")
@as_json
def list_(ended: bool, as_json: bool) -> None:
    """Show what waits, soonest first."""
    found = _run(lambda schedules: schedules.list(ended=ended))
    if as_json:
        print_json({"schedules": [each.model_dump(mode="json") for each in found]})
        return
    from rich.table import Table

    table = Table()
    table.add_column("id", justify="right")
    for name in ("what", "scope", "when (UTC)", "state"):
        table.add_column(name, overflow="fold")
    for each in found:
        table.add_row(
            str(each.schedule_id), _what(each), _where(each), _utc(each.due_at), _state(each)
        )
    console().print(table)


@schedule.command(epilog=examples("afterturn schedule cancel 7"))
@click.argument("schedule_id", metavar="ID", type=click.IntRange(1, 2**63 - 1))
@as_json
def cancel(schedule_id: int, as_json: bool) -> None:
    """Cancel an erase to come, or end a rule. What was due is a job and cannot be undone."""
    ended = _run(lambda schedules: schedules.cancel(schedule_id))
    if as_json:
        print_json(ended.model_dump(mode="json"))
    else:
        click.echo(f"schedule {ended.schedule_id} is {ended.state}")


async def _add_forget(
    schedules: Schedules,
    scope: MemoryScope,
    moment: datetime,
    zone: str | None,
    derived: Literal["erase", "keep"],
    requested_by: str,
    reason: str,
) -> Schedule:
    from afterturn.lifecycle import forget_request

    if zone is not None:
        moment = await schedules.civil_time(moment, zone)
    request = forget_request(derived=derived, requested_by=requested_by, reason=reason)
    return await schedules.add_forget(scope, moment, request)


def _rule(
    layer: str,
    older_than: str,
    scope: MemoryScope | None,
    daily_at: str | None,
    zone: str | None,
) -> Callable[[Schedules], Awaitable[Schedule]]:
    from afterturn.records import MemoryLayer
    from afterturn.schedules import parse_age

    age = parse_age(older_than)
    at = None if daily_at is None else _time_of_day(daily_at)
    return lambda schedules: schedules.add_rule(
        MemoryLayer(layer), age, scope, daily_at=at, zone=zone
    )


def _moment(text: str, zone: str | None) -> datetime:
    """An aware time or, with a zone, a naive one."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            "not a time; write it as 2027-01-31T02:30+01:00, or without the offset and with --zone",
            param_hint="--at",
        ) from None
    if (moment.tzinfo is None) == (zone is None):
        raise click.BadParameter(
            "the time has no time zone: name --zone, or write an offset"
            if zone is None
            else "the time has an offset of its own: leave out --zone",
            param_hint="--at",
        )
    return moment


def _time_of_day(text: str) -> time:
    try:
        at = time.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is not None:
        raise click.BadParameter("not a time of day, for example 02:30", param_hint="--daily-at")
    return at


def _run(work: Callable[[Schedules], Awaitable[T]]) -> T:
    from afterturn.settings import Settings

    settings = database_settings(Settings.load())

    async def opened() -> T:
        from afterturn.database import Database
        from afterturn.migrations import require_current
        from afterturn.schedules import Schedules

        database = Database(str(settings.database_url), settings, pool_size=1)
        try:
            async with database.connection() as conn:
                await require_current(conn)
            return await work(Schedules(database))
        finally:
            await database.close()

    return asyncio.run(opened())


def _rows(made: Schedule) -> dict[str, Any]:
    return {
        "schedule": made.schedule_id,
        "what": _what(made),
        "scope": _where(made),
        "first looked at" if made.kind == "expire" else "due": f"{_utc(made.due_at)} UTC",
    }


def _what(each: Schedule) -> str:
    if each.kind == "forget":
        return "erase, keeping what was learned elsewhere" if each.derived == "keep" else "erase"
    assert each.layer is not None  # noqa: S101 - a rule has both
    assert each.older_than is not None  # noqa: S101
    by_clock = f", daily at {each.daily_at:%H:%M} in {each.zone}" if each.daily_at else ""
    default = " (default)" if each.is_default else ""
    return f"{each.layer.value} older than {_age(each.older_than)}{by_clock}{default}"


def _age(age: timedelta) -> str:
    """As it is written on a command line."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if age.total_seconds() % length == 0:
            return f"{age.total_seconds() / length:.0f}{unit}"
    return f"{age.total_seconds():g} s"


def _where(each: Schedule) -> str:
    if each.scope_path is not None:
        return each.scope_path
    return "everything" if each.kind == "expire" and each.state != "erased" else "erased"


def _state(each: Schedule) -> str:
    return f"done, job {each.job_id}" if each.job_id is not None else each.state


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"
