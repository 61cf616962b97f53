"""`afterturn import`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from afterturn.cli.arguments import as_json, examples, scope_option
from afterturn.cli.output import print_json, print_pairs

if TYPE_CHECKING:
    from afterturn.cli.progress import ImportProgress
    from afterturn.importing.conversation import Reading
    from afterturn.importing.formats import Format
    from afterturn.importing.importer import Tally
    from afterturn.scope import MemoryScope
    from afterturn.settings import Settings


@click.command(
    "import",
    epilog=examples(
        "afterturn import locomo10.json --scope acme/alice",
        "afterturn import chat.json --scope acme/alice --json > summary.json",
    ),
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@scope_option
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["auto", "locomo"]),
    default="auto",
    show_default=True,
    help="The file's format; auto finds out.",
)
@as_json
def import_(file: Path, scope: MemoryScope, format_name: Format, as_json: bool) -> None:
    """Import conversations from FILE and wait until they are processed.

    Each conversation becomes a scope below SCOPE, named by its id, and each message a turn
    CONVERSATION:MESSAGE, the first speaker on the user's side. Importing again changes nothing
    and goes on where an earlier import ended.

    In LoCoMo files times have no zone: they are read as UTC. Messages of a session are dated a
    second apart, in order. A conversation with a defect is left out, its place in the file is
    reported, and the exit code is 1; the others are imported.

    The work is done by the running workers. When none has taken any for ten seconds (three times
    AFTERTURN_SWEEP_SECONDS and one), this process does the rest itself, with the extractor of its
    own settings.
    """
    from afterturn.fleet import with_servers
    from afterturn.importing.formats import read_file
    from afterturn.settings import Settings

    reading = read_file(file, format_name)
    summary: dict[str, Any] = {"file": str(file), "scope": scope.path}
    if reading.conversations:
        summary |= _imported(reading, scope, with_servers(Settings.load()))
    summary["defects"] = [asdict(defect) for defect in reading.defects]
    if as_json:
        print_json(summary)
    elif reading.conversations:
        _print(summary)
    problems = [str(defect) for defect in reading.defects] + _problems(summary)
    for problem in problems:
        click.echo(f"error: {file}: {problem}", err=True)
    if problems:
        raise click.exceptions.Exit(1)


def _imported(reading: Reading, scope: MemoryScope, settings: Settings) -> dict[str, Any]:
    total = sum(len(conversation.messages) for conversation in reading.conversations)
    began = time.monotonic()
    with _progress(total) as progress:
        tally, helped = asyncio.run(_run(reading, scope, settings, progress))
    seconds = time.monotonic() - began
    return {
        **asdict(tally),
        "processed_by": "this process" if helped else "workers",
        "seconds": round(seconds, 2),
        "messages_per_second": round(tally.messages / seconds, 1),
    }


async def _run(
    reading: Reading, scope: MemoryScope, settings: Settings, progress: ImportProgress
) -> tuple[Tally, bool]:
    from afterturn.database import Database
    from afterturn.importing.draining import Drain, patience_seconds
    from afterturn.importing.importer import Importer
    from afterturn.memory import Memory

    database = Database(str(settings.database_url), settings, pool_size=2)
    try:
        async with Memory(settings) as memory:
            importer = Importer(memory, database, scope, on_message=progress.message)
            await importer.hand_over(reading.conversations)
            drain = Drain(
                memory,
                database,
                patience_seconds(settings),
                on_left=progress.left,
                on_takeover=lambda: click.echo(
                    "no worker takes the work: it is done here", err=True
                ),
            )
            helped = await drain.run(scope)
            await importer.account(reading.conversations)
            return importer.tally, helped
    finally:
        await database.close()


@contextmanager
def _progress(total: int) -> Iterator[ImportProgress]:
    from afterturn.cli.progress import ImportProgress

    with ImportProgress(total, shown=sys.stderr.isatty()) as progress:
        yield progress


def _problems(summary: dict[str, Any]) -> list[str]:
    """What went wrong with messages of good conversations."""
    found = [
        f"{each['turn_id']} was refused: {each['reason']}" for each in summary.get("refused", ())
    ]
    if summary.get("dead"):
        found.append(f"{summary['dead']} messages could not be recorded; see `afterturn status`")
    return found


def _print(summary: dict[str, Any]) -> None:
    print_pairs(
        {
            "conversations": summary["conversations"],
            "messages": summary["messages"],
            "taken": summary["taken"],
            "already known": summary["known"],
            "blank": summary["blank"],
            "refused": len(summary["refused"]),
            "recorded": summary["recorded"],
            "facts learned": summary["facts"],
            "without facts (extraction given up)": summary["degraded"],
            "processed by": summary["processed_by"],
            "time": f"{summary['seconds']} s, {summary['messages_per_second']} messages/s",
        }
    )
