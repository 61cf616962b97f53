"""`afterturn demo`."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import click

from afterturn.cli.arguments import examples


@click.command(epilog=examples("afterturn demo", "afterturn demo --keep"))
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where its servers live; a fresh folder that is removed afterwards unless given.",
)
@click.option("--keep", is_flag=True, help="Keep everything running until Ctrl-C.")
def demo(home: Path | None, keep: bool) -> None:
    """Watch two conversations being remembered, recalled and erased, by the real parts.

    Starts PostgreSQL, Valkey, Celery workers and Flower for itself, whatever AFTERTURN_* says, and
    stops them at the end. Exits with 1 when something it shows is not true.
    """
    from afterturn.demo.story import tell

    # Told to end, it takes down what it started, as at Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    if not tell(home, keep=keep):
        raise click.exceptions.Exit(1)


def _end(number: int, _frame: FrameType | None) -> None:
    """A second one does not interrupt the end."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)
