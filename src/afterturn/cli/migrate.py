"""`afterturn migrate`."""

from __future__ import annotations

import asyncio

import click

from afterturn.cli.arguments import as_json, examples
from afterturn.cli.output import print_json


@click.command(epilog=examples("AFTERTURN_DATABASE_URL=postgresql://db/memory afterturn migrate"))
@as_json
def migrate(as_json: bool) -> None:
    """Bring the database to this release; safe to repeat.

    A database given by AFTERTURN_DATABASE_URL is only ever migrated by this command. An embedded
    one migrates itself, so that there is nothing left to do here.
    """
    from afterturn.migrations import migrate as apply_migrations
    from afterturn.settings import Settings

    settings = Settings.load()
    url = settings.database_url
    if url is None:
        from afterturn import embedded

        url = str(embedded.ensure(settings.home, valkey=False).database_url)
    applied = asyncio.run(apply_migrations(url, settings))
    if as_json:
        print_json({"applied": applied})
        return
    for name in applied:
        click.echo(f"applied {name}")
    if not applied:
        click.echo("nothing to do: the database is at this release")
