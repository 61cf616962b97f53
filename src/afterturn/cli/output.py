"""What commands print: JSON for scripts, tables for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON object on stdout, in ASCII so that no locale can break it."""
    click.echo(json.dumps(document, indent=2))


def console() -> Console:
    """Where tables go: stdout, without colours when it is not a terminal."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False)


def print_pairs(rows: Mapping[str, object]) -> None:
    """Two columns: what, and how much or where. Long values wrap; nothing is cut."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, str(value))
    console().print(table)
