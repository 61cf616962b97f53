"""`afterturn export`."""

from __future__ import annotations

import asyncio
from typing import IO, TYPE_CHECKING

import click

from afterturn.cli.arguments import examples, scope_argument
from afterturn.cli.opening import database_settings

if TYPE_CHECKING:
    from afterturn.scope import MemoryScope
    from afterturn.settings import Settings


@click.command(
    epilog=examples(
        "afterturn export acme/alice > alice.jsonl",
        "afterturn export acme/alice --output alice.jsonl",
    )
)
@scope_argument
@click.option(
    "--output",
    type=click.File("wb", lazy=False),
    default="-",
    help="A file; stdout unless given.",
)
def export(scope: MemoryScope, output: IO[bytes]) -> None:
    """Write everything held under SCOPE as JSON lines in UTF-8.

    Turns as they were said come first, then records, waiting ones included; `kind` is `turn` or
    `record`. Rows are streamed, so memory stays bounded. Where nothing is held, stderr says so.
    """
    from afterturn.settings import Settings

    if not asyncio.run(_export(scope, output, database_settings(Settings.load()))):
        click.echo(f"nothing is held under {scope}", err=True)


async def _export(scope: MemoryScope, output: IO[bytes], settings: Settings) -> int:
    import json

    from afterturn.database import Database
    from afterturn.reading import Reading
    from afterturn.records import MemoryRecord

    database = Database(str(settings.database_url), settings, pool_size=1)
    rows = 0
    try:
        async for item in Reading(database).export(scope):
            kind = "record" if isinstance(item, MemoryRecord) else "turn"
            row = {"kind": kind, **item.model_dump(mode="json")}
            output.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            rows += 1
    finally:
        await database.close()
    return rows
