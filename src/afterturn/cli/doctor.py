"""`afterturn doctor`: is everything as it must be, and if not, what to type."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from afterturn.cli.arguments import as_json, examples
from afterturn.cli.opening import database_settings
from afterturn.cli.output import print_json

if TYPE_CHECKING:
    from afterturn.doctor import Check
    from afterturn.settings import Settings


@click.command(epilog=examples("afterturn doctor", "afterturn doctor --part beat"))
@click.option(
    "--oldest",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="An unfinished job older than this is wrong, although everything answers.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0.1, max=60),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the workers have to answer a probe.",
)
@click.option(
    "--part",
    metavar="NAME",
    help="Only whether this machine's worker of that name, beat, or flower answers: a container's "
    "health. Needs no database.",
)
@as_json
def doctor(oldest: float, patience: float, part: str | None, as_json: bool) -> None:
    """Examine everything, name what is wrong and the command that mends it.

    The database, its migrations and this login's rights; the ledger's rules; the broker and its
    eviction; a probe through each queue and back; the beat; the clocks; the embedder against the
    stored vectors; Flower's door; and whether work stands still. With the settings of a worker it
    sees what that worker sees. Exits with 1 when something is wrong.
    """
    from afterturn.doctor import wrong
    from afterturn.settings import Settings

    settings = Settings.load()
    if part is None:
        checks = asyncio.run(_examined(settings, oldest, patience))
    else:
        checks = [_part(settings, part)]
    to_mend = wrong(checks)
    if as_json:
        print_json({"ok": not to_mend, "checks": [each.model_dump() for each in checks]})
    else:
        _print(checks)
    if to_mend:
        raise click.exceptions.Exit(1)


async def _examined(settings: Settings, oldest: float, patience: float) -> list[Check]:
    from afterturn.doctor import Doctor

    complete = await asyncio.to_thread(database_settings, settings)
    return await Doctor(complete, oldest_seconds=oldest, probe_seconds=patience).examine()


def _part(settings: Settings, name: str) -> Check:
    from afterturn.cli.opening import NO_BROKER, running_broker_url
    from afterturn.doctor import check_part

    if settings.broker_url is None:
        url = running_broker_url(settings) or NO_BROKER
        settings = settings.model_copy(update={"broker_url": url})
    return check_part(settings, name)


def _print(checks: list[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = {"ok": "ok     ", "wrong": "WRONG  ", "skipped": "skipped"}[check.verdict]
        click.echo(f"{mark}  {check.name:{width}}  {check.says}")
        if check.mend:
            click.echo(f"         {'':{width}}  mend: {check.mend}")
    count = sum(check.verdict == "wrong" for check in checks)
    click.echo("all is well" if not count else f"{count} to mend")
