"""`afterturn migrate`."""

from __future__ import annotations

import asyncio

import click

from afterturn.cli.arguments import as_json, examples
from afterturn.cli.output import print_json


@click.command(
    epilog=examples(
        "AFTERTURN_DATABASE_URL=postgresql://db/memory afterturn migrate",
        "afterturn migrate --plan",
        "afterturn migrate --sql --from 0 > install.sql",
    )
)
@click.option("--plan", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--sql", is_flag=True, help="Print it as a script for psql, and do nothing.")
@click.option(
    "--from",
    "begin",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="With --sql: the migration the database is at; it is not asked then.",
)
@click.option(
    "--roles",
    is_flag=True,
    help="Also make the roles afterturn_app, afterturn_worker and afterturn_auditor.",
)
@as_json
def migrate(plan: bool, sql: bool, begin: int | None, roles: bool, as_json: bool) -> None:
    """Bring the database to this release; safe to repeat, and while the last release runs.

    A database given by AFTERTURN_DATABASE_URL is only ever migrated by this command. An embedded
    one migrates itself, so that there is nothing left to do here. A database of a newer release is
    refused. Exits with 1 when it cannot be reached or refuses; nothing is changed then.
    """
    from afterturn import migrations
    from afterturn.settings import Settings

    if plan and sql:
        raise click.UsageError("--plan and --sql are two ways to ask: choose one.")
    if begin is not None and not sql:
        raise click.UsageError("--from belongs to --sql.")
    settings = Settings.load()
    if sql and begin is not None:
        click.echo(migrations.script(begin), nl=False)
        return
    url = settings.database_url
    if url is None:
        from afterturn import embedded

        url = str(embedded.ensure(settings.home, valkey=False).database_url)
    if sql:
        click.echo(asyncio.run(migrations.script_for(url, settings)), nl=False)
        return
    if plan:
        _say("planned", "would apply", asyncio.run(migrations.plan(url, settings)), as_json)
        return
    applied = asyncio.run(migrations.migrate(url, settings, roles=roles))
    _say("applied", "applied", applied, as_json)


def _say(key: str, verb: str, names: list[str], as_json: bool) -> None:
    if as_json:
        print_json({key: names})
        return
    for name in names:
        click.echo(f"{verb} {name}")
    if not names:
        click.echo("nothing to do: the database is at this release")
