"""`afterturn import`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from afterturn.cli.arguments import as_json, examples, scope_option
from afterturn.cli.output import print_json, print_pairs

if TYPE_CHECKING:
    from afterturn.cli.progress import ImportProgress
    from afterturn.importing.conversation import Conversation
    from afterturn.importing.formats import Format, Survey
    from afterturn.importing.importer import Tally
    from afterturn.scope import MemoryScope
    from afterturn.settings import Settings


@click.command(
    "import",
    epilog=examples(
        "afterturn import conversations.json --scope acme/alice --dry-run",
        "afterturn import conversations.json --scope acme/alice",
        "afterturn import chat.jsonl --scope acme/alice --json > summary.json",
    ),
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@scope_option
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["auto", "locomo", "chatgpt", "messages"]),
    default="auto",
    show_default=True,
    help="The file's format; auto finds out.",
)
@click.option("--dry-run", is_flag=True, help="Only say what the file holds; touch no database.")
@as_json
def import_(
    file: Path, scope: MemoryScope, format_name: Format, dry_run: bool, as_json: bool
) -> None:
    """Import conversations from FILE and wait until they are processed.

    Formats: a ChatGPT data export (conversations.json, along the branch last seen); message lists
    as the OpenAI API has them (role and content), as JSON or one object a line; LoCoMo's JSON.

    Each conversation becomes a scope below SCOPE, named by its id or, without one, by the file and
    its number in it. A question and its answer are one turn; in LoCoMo each message is one, the
    first speaker on the user's side. Importing again changes nothing and goes on where an earlier
    import ended.

    Text is taken; system and tool messages, pictures and other branches are counted by reason.
    Messages without a time keep the order of the file. Times without a zone are read as UTC. What
    is broken is reported with its place, and the exit code is 1; the rest is imported. One piece
    of the file at a time is in memory, at most 16 MiB.

    The work is done by the running workers. When none has taken any for ten seconds (three times
    AFTERTURN_SWEEP_SECONDS and one), this process does the rest itself, with the extractor of its
    own settings.
    """
    from afterturn.fleet import with_servers
    from afterturn.settings import Settings

    survey = _surveyed(file, format_name)
    summary = {"file": str(file), "scope": scope.path, **asdict(survey)}
    summary["left_out"] = {k: v for k, v in sorted(survey.left_out.items()) if v}
    if survey.conversations and not dry_run:
        files = partial(_conversations, file, format_name)
        summary |= _imported(files, survey.turns, scope, with_servers(Settings.load()))
    if as_json:
        print_json(summary)
    elif survey.conversations:
        _print(summary)
    problems = [str(defect) for defect in survey.defects] + _problems(summary)
    for problem in problems:
        click.echo(f"error: {file}: {problem}", err=True)
    if problems:
        raise click.exceptions.Exit(1)


def _surveyed(file: Path, format_name: Format) -> Survey:
    from afterturn.importing.formats import survey_file

    return survey_file(file, format_name)


def _conversations(file: Path, format_name: Format) -> Iterator[Conversation]:
    from afterturn.importing.conversation import Findings
    from afterturn.importing.formats import stream_file

    return stream_file(file, Findings(), format_name)


def _imported(
    conversations: Callable[[], Iterator[Conversation]],
    turns: int,
    scope: MemoryScope,
    settings: Settings,
) -> dict[str, Any]:
    began = time.monotonic()
    with _progress(turns) as progress:
        tally, helped = asyncio.run(_run(conversations(), scope, settings, progress))
    seconds = time.monotonic() - began
    return {
        **asdict(tally),
        "processed_by": "this process" if helped else "workers",
        "seconds": round(seconds, 2),
        "turns_per_second": round(tally.turns / seconds, 1),
    }


async def _run(
    conversations: Iterator[Conversation],
    scope: MemoryScope,
    settings: Settings,
    progress: ImportProgress,
) -> tuple[Tally, bool]:
    from afterturn.database import Database
    from afterturn.importing.draining import Drain, patience_seconds
    from afterturn.importing.importer import Importer
    from afterturn.memory import Memory

    database = Database(str(settings.database_url), settings, pool_size=2)
    try:
        async with Memory(settings) as memory:
            importer = Importer(memory, database, scope, on_message=progress.message)
            await importer.hand_over(conversations)
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
            await importer.account()
            return importer.tally, helped
    finally:
        await database.close()


@contextmanager
def _progress(total: int) -> Iterator[ImportProgress]:
    from afterturn.cli.progress import ImportProgress

    with ImportProgress(total, shown=sys.stderr.isatty()) as progress:
        yield progress


def _problems(summary: dict[str, Any]) -> list[str]:
    """What went wrong besides the defects that are shown."""
    found = [
        f"{each['turn_id']} was refused: {each['reason']}" for each in summary.get("refused", ())
    ]
    if summary["defects_more"]:
        found.append(f"{summary['defects_more']} more defects are not shown")
    if summary.get("dead"):
        found.append(f"{summary['dead']} turns could not be recorded; see `afterturn status`")
    return found


def _print(summary: dict[str, Any]) -> None:
    shown = {"conversations": summary["conversations"], "turns": summary["turns"]}
    if "taken" in summary:
        shown |= {
            "taken": summary["taken"],
            "already known": summary["known"],
            "blank": summary["blank"],
            "refused": len(summary["refused"]),
            "recorded": summary["recorded"],
            "facts learned": summary["facts"],
            "without facts (extraction given up)": summary["degraded"],
            "processed by": summary["processed_by"],
            "time": f"{summary['seconds']} s, {summary['turns_per_second']} turns/s",
        }
    shown |= {f"left out: {reason}": count for reason, count in summary["left_out"].items()}
    if summary["undated"]:
        shown["turns without a time"] = summary["undated"]
    print_pairs(shown)
