"""`afterturn reembed`."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from afterturn.cli.arguments import as_json, examples
from afterturn.cli.output import print_json, print_pairs

if TYPE_CHECKING:
    from afterturn.pipeline.reembedding import Reembedded
    from afterturn.settings import Settings


@click.command(
    epilog=examples(
        "AFTERTURN_EMBEDDER=openai:text-embedding-3-small afterturn reembed",
        "afterturn reembed --json",
    )
)
@as_json
def reembed(as_json: bool) -> None:
    """Make the embedder of AFTERTURN_EMBEDDER that of the database, and all vectors with it.

    Needed after the embedder was changed: vectors of two models cannot be compared, so an
    application with another model than the database's refuses to start, and a worker with another
    one makes no vectors, which `afterturn doctor` names when it is run with the worker's settings.
    Reading goes on meanwhile, by words alone where a record has no new vector yet, and says so.
    Broken off, call it again: it goes on where it ended. Restart workers and applications with the
    new setting.

    Needs neither workers nor a broker; workers with the new setting take part.
    """
    from afterturn.cli.opening import database_settings
    from afterturn.settings import Settings

    done = asyncio.run(_reembed(database_settings(Settings.load())))
    if as_json:
        print_json(
            {
                "model": done.model_id,
                "replaced": done.replaced,
                "removed": done.removed,
                "embedded": done.embedded,
            }
        )
        return
    print_pairs(
        {
            "model": done.model_id,
            "model before": done.replaced or "none",
            "vectors removed": done.removed,
            "records embedded": done.embedded,
        }
    )


async def _reembed(settings: Settings) -> Reembedded:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from afterturn.database import Database
    from afterturn.embedding.checked import CheckedEmbedder
    from afterturn.embedding.compose import compose_embedder
    from afterturn.errors import ConfigurationError
    from afterturn.jobs.rings import RingPublisher
    from afterturn.migrations import require_current
    from afterturn.pipeline.reembedding import reembed
    from afterturn.pipeline.runner import Runner

    embedder = compose_embedder(settings)
    if embedder is None:
        raise ConfigurationError(
            "There is no embedder to make vectors with",
            detail="AFTERTURN_EMBEDDER is none",
            hint="Set AFTERTURN_EMBEDDER to the one that is wanted, then call this again.",
        )
    checked = embedder if isinstance(embedder, CheckedEmbedder) else CheckedEmbedder(embedder)
    database = Database(str(settings.database_url), settings, pool_size=4)
    rings = RingPublisher(str(settings.broker_url), settings)
    bar = Progress(
        TextColumn("records embedded"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    try:
        async with database.connection() as connection:
            await require_current(connection)
        with bar:
            shown = bar.add_task("", total=None)
            return await reembed(
                database,
                Runner(database, settings, rings, None, checked),
                checked,
                lambda embedded, records: bar.update(shown, completed=embedded, total=records),
            )
    finally:
        await asyncio.to_thread(rings.close)
        await database.close()
