"""`erase-log`, `verify-erase-log`, `erased`, `replay-erasures`: for those who must prove."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from afterturn.cli.arguments import as_json, examples, scope_argument
from afterturn.cli.opening import database_settings
from afterturn.cli.output import console, print_json, print_pairs

if TYPE_CHECKING:
    from afterturn.database import Database
    from afterturn.erase_log.lookup import ErasedEntry
    from afterturn.erase_log.reading import LogFile
    from afterturn.erase_log.replaying import ReplayReport
    from afterturn.erase_log.verifying import LogReport
    from afterturn.scope import MemoryScope
    from afterturn.settings import Settings

T = TypeVar("T")
_DEFECTS_SHOWN = 20
_STATEMENT_SECONDS = 3_600.0
_WHAT = {
    "scope": "everything under it",
    "named": "what was named in it",
    "derived": "what was learned from turns erased elsewhere",
    "own": "rows of the application",
    "": "not said",
}


def _head(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if re.fullmatch("[0-9a-f]{64}", value) is None:
            raise click.BadParameter(f"{value!r} is not 64 hexadecimal digits", ctx, param)
    return values


_log_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    "erase-log",
    epilog=examples(
        "afterturn erase-log > erased.jsonl", "afterturn erase-log --output erased.jsonl"
    ),
)
@click.option(
    "--output",
    type=click.File("wb", lazy=False),
    default="-",
    help="A file; stdout unless given.",
)
def erase_log(output: IO[bytes]) -> None:
    """Write the erase log as JSON lines, for an auditor and for the day of a restore.

    The first line names the database and where each chain ends; every other one is an erase. No
    scope can be read from it, nor any text of memories. Keep it where the database's backups are
    not: a restored backup knows nothing of the erases after it.
    """

    async def write(database: Database) -> None:
        from afterturn.erase_log.reading import export_log

        async for line in export_log(database):
            output.write(line.model_dump_json().encode() + b"\n")

    _run(write)


@click.command(
    "verify-erase-log",
    epilog=examples(
        "afterturn verify-erase-log",
        "afterturn verify-erase-log erased.jsonl --json",
    ),
)
@click.argument("file", required=False, type=_log_file)
@click.option(
    "--receipt",
    "receipts",
    multiple=True,
    callback=_head,
    metavar="HASH",
    help="The `erase log` hash of a receipt that you kept; may be repeated.",
)
@as_json
def verify_erase_log(file: Path | None, receipts: tuple[str, ...], as_json: bool) -> None:
    """Check that no entry of the erase log was changed, moved or taken out.

    Without FILE the log of the database, also against the receipts of finished erases and the
    erase numbers; with FILE an exported one, by itself. Exits with 1 and names what is wrong.

    Hashes show what was done to single entries. That all of a log was written anew from some
    entry on, heads included, only a --receipt kept elsewhere shows.
    """
    report = _verified(file, receipts)
    if as_json:
        print_json({"whole": report.is_whole, **report.model_dump(mode="json")})
    else:
        print_pairs(
            {
                "database": report.database,
                "entries": report.entries,
                "chains": report.roots,
                "receipts compared": report.receipts,
            }
        )
        click.echo("the log is whole" if report.is_whole else "THE LOG IS NOT WHOLE")
    if not report.is_whole:
        for defect in report.defects[:_DEFECTS_SHOWN]:
            click.echo(f"error: {defect}", err=True)
        if len(report.defects) > _DEFECTS_SHOWN:
            click.echo(f"error: and {len(report.defects) - _DEFECTS_SHOWN} more", err=True)
        raise click.exceptions.Exit(1)


@click.command(epilog=examples("afterturn erased acme/alice", "afterturn erased acme/alice --json"))
@scope_argument
@as_json
def erased(scope: MemoryScope, as_json: bool) -> None:
    """Show when SCOPE was erased, by whom and why, from the erase log.

    The log holds keyed hashes instead of scopes: it answers who knows the scope. Erases of a scope
    above count, too; those of scopes below are found by asking for them.
    """

    async def look(database: Database) -> tuple[ErasedEntry, ...]:
        from afterturn.erase_log.lookup import erased as look_up

        return await look_up(database, scope)

    found = _run(look)
    if as_json:
        entries = [each.model_dump(mode="json") for each in found]
        print_json({"scope": scope.path, "erases": entries})
    elif not found:
        click.echo(f"the log has no erase of {scope.path}")
    for each in () if as_json else found:
        print_pairs(_erased_rows(each))
        click.echo()


@click.command("replay-erasures", epilog=examples("afterturn replay-erasures erased.jsonl"))
@click.argument("log", type=_log_file)
@as_json
def replay_erasures(log: Path, as_json: bool) -> None:
    """Erase in a database restored from a backup what LOG says was erased since.

    LOG is what `afterturn erase-log` wrote before the database was lost. Run it before workers or
    agents use the restored database. It refuses another database's log and one that is not whole,
    and goes on where it ended when it is run again.
    """
    from afterturn.erase_log.reading import LogFile
    from afterturn.settings import Settings

    report = asyncio.run(_replay(LogFile(log), _patient(database_settings(Settings.load()))))
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        _print_replay(report)


def _verified(file: Path | None, receipts: tuple[str, ...]) -> LogReport:
    from afterturn.erase_log.reading import LogFile
    from afterturn.erase_log.verifying import verify_database, verify_file

    if file is not None:
        return verify_file(LogFile(file), receipts)

    async def verify(database: Database) -> LogReport:
        return await verify_database(database, receipts)

    return _run(verify)


async def _replay(log: LogFile, settings: Settings) -> ReplayReport:
    from afterturn.erase_log.replaying import Replay
    from afterturn.parts import PostgresParts

    # No worker is at it yet: nobody is waited for.
    parts = await PostgresParts.open(settings.model_copy(update={"takeover_seconds": 0.0}))
    try:
        with _progress() as on_progress:
            replay = Replay(parts.database, parts.lifecycle, on_progress=on_progress)
            return await replay.run(log)
    finally:
        await parts.close()


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("erases repeated", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _run(work: Callable[[Database], Awaitable[T]]) -> T:
    from afterturn.settings import Settings

    settings = _patient(database_settings(Settings.load()))

    async def opened() -> T:
        from afterturn.database import Database
        from afterturn.migrations import require_current

        database = Database(str(settings.database_url), settings, pool_size=1)
        try:
            async with database.connection() as conn:
                await require_current(conn)
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(opened())


def _patient(settings: Settings) -> Settings:
    """A statement over all of a large database may take its time."""
    return settings.model_copy(update={"command_timeout_seconds": _STATEMENT_SECONDS})


def _erased_rows(each: ErasedEntry) -> dict[str, Any]:
    rows: dict[str, Any] = {
        "erased": f"{each.completed_at:%Y-%m-%d %H:%M:%S} UTC",
        "scope": each.scope_path,
        "what": _WHAT[each.what],
        "requested": f"{each.requested_at:%Y-%m-%d %H:%M:%S} UTC",
    }
    if each.requested_by:
        rows["by"] = each.requested_by
    if each.reason:
        rows["reason"] = each.reason
    if each.derived == "keep":
        rows["kept"] = "what was learned from it elsewhere"
    rows |= {f"rows of {table}": count for table, count in each.counts.items() if count}
    rows["erase log"] = each.hash
    if each.replays:
        rows["repeats"] = each.replays
    return rows


def _print_replay(report: ReplayReport) -> None:
    print_pairs(
        {
            "entries in the log": report.entries,
            "known here": report.known,
            "erased again": len(report.erased),
            "nothing had come back": report.not_held,
            "numbers moved": report.advanced,
            "erases of this database alone": report.newer,
        }
    )
    if report.erased:
        from rich.table import Table

        table = Table(title="erased again", title_justify="left")
        for name in ("where", "scope", "what", "rows"):
            table.add_column(name, overflow="fold")
        for each in report.erased:
            counts = ", ".join(f"{table} {count}" for table, count in each.counts.items())
            table.add_row(each.where, each.scope_path, _WHAT[each.what], counts or "none")
        console().print(table)
    for where, scope, by, reason in report.own:
        click.echo(
            f"to do by the application ({where}): its own rows of {scope}"
            + "".join(
                f", {label} {value}" for label, value in (("by", by), ("for", reason)) if value
            )
        )
