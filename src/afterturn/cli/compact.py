"""`afterturn compact`."""

from __future__ import annotations

import asyncio
import sys

import click

from afterturn.cli.arguments import as_json, examples
from afterturn.cli.output import console, print_json


@click.command(epilog=examples("afterturn compact", "afterturn compact --wal --json"))
@click.option("--wal", is_flag=True, help="Also recycle the write-ahead log.")
@as_json
def compact(wal: bool, as_json: bool) -> None:
    """Remove from the disk what was erased from the tables.

    After a `forget` nothing can be read any more, but the bytes of deleted rows stay in the
    database's files until they are overwritten. This writes every table and index anew. Reading
    and writing wait meanwhile, table by table. Transactions that began before it are waited for.

    The write-ahead log holds what was written lately; --wal lets go of it. Replicas and backups
    keep what they have: see "answer an erasure request" in the documentation.
    """
    from afterturn.cli.opening import database_settings
    from afterturn.compact import compact as compact_tables
    from afterturn.settings import Settings

    settings = database_settings(Settings.load())

    def on_table(name: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"compacting {name}", err=True)

    report = asyncio.run(
        compact_tables(str(settings.database_url), settings, recycle_wal=wal, on_table=on_table)
    )
    if as_json:
        print_json(report.model_dump(mode="json"))
        return
    from rich.table import Table

    table = Table()
    table.add_column("table")
    for name in ("bytes before", "bytes after"):
        table.add_column(name, justify="right")
    for name, before in report.bytes_before.items():
        table.add_row(name, f"{before:,}", f"{report.bytes_after[name]:,}")
    console().print(table)
    if not report.statistics:
        click.echo("the planner's statistics are as they were: only a superuser may rewrite them")
    if not report.wal_recycled:
        click.echo("the write-ahead log is as it was: --wal recycles it")
    for why in report.wal_kept_by:
        click.echo(f"parts of the write-ahead log may be kept by: {why}")
