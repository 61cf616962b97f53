"""`up`, and the parts of the fleet one by one: `worker`, `beat`, `flower`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from afterturn.cli.arguments import as_json, examples
from afterturn.cli.output import print_json, print_pairs

if TYPE_CHECKING:
    from afterturn.fleet import FleetCommand
    from afterturn.up import UpReport

_keep_running = click.option(
    "--keep-running",
    is_flag=True,
    help="Start it again whenever it ends, for where no process manager does so.",
)


@click.command(epilog=examples("afterturn up", "afterturn up --no-flower"))
@click.option("--flower/--no-flower", default=True, help="Whether Flower runs, too.")
@as_json
def up(flower: bool, as_json: bool) -> None:
    """Start everything and keep it running until Ctrl-C.

    That is workers, beat, Flower, and an embedded PostgreSQL and Valkey where no URL is set. What
    dies is started again. Once the workers are ready, the URLs are printed; with --json as one
    object.
    """
    from afterturn.settings import Settings
    from afterturn.up import run_up

    def ready(report: UpReport) -> None:
        _print_report(report, as_json=as_json)

    run_up(Settings.load(), flower=flower, on_ready=ready, on_event=_to_stderr)


@click.command(
    epilog=examples("afterturn worker", "afterturn worker --queues record,lifecycle,sweep")
)
@click.option(
    "--queues",
    default="record,extract,lifecycle,sweep",
    show_default=True,
    metavar="NAMES",
    help="The queues to serve, separated by commas. Extraction can be slow: give it workers of "
    "its own.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 64),
    help="Processes of this worker.  [default: AFTERTURN_WORKER_CONCURRENCY, 2]",
)
@click.option("--name", help="What Flower calls it.  [default: worker and its process id]")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    help="Where it serves metrics; 0: nowhere.  [default: AFTERTURN_METRICS_PORT, 0]",
)
@_keep_running
def worker(
    queues: str,
    concurrency: int | None,
    name: str | None,
    metrics_port: int | None,
    keep_running: bool,
) -> None:
    """Run one worker in the foreground, until SIGTERM.

    It waits for a database and a broker that do not answer yet. Exits with 78 when starting again
    will not help (a setting, a port that is taken, a database that was not migrated or holds
    vectors of another embedder), with 75 when it may (an embedded server that does not start).
    """
    from afterturn.errors import ConfigurationError
    from afterturn.fleet import queue_names, worker_command
    from afterturn.settings import Settings

    try:
        chosen = queue_names(queues)
    except ConfigurationError as error:
        raise click.BadParameter(str(error), param_hint="--queues") from None
    command = worker_command(
        chosen, concurrency, name, settings=Settings.load(), metrics_port=metrics_port
    )
    _run(command, name or "worker", keep_running=keep_running)


@click.command(epilog=examples("afterturn beat"))
@_keep_running
def beat(keep_running: bool) -> None:
    """Run the clock that has the workers look for what was missed.

    Any number may run at once; none at all only delays work whose message was lost.
    """
    from afterturn.fleet import beat_command
    from afterturn.settings import Settings

    _run(beat_command(settings=Settings.load()), "beat", keep_running=keep_running)


@click.command(epilog=examples("AFTERTURN_FLOWER_PORT=5556 afterturn flower"))
@_keep_running
def flower(keep_running: bool) -> None:
    """Run Flower, which shows workers and tasks in a browser and changes nothing.

    It listens on AFTERTURN_FLOWER_ADDRESS and _PORT, 127.0.0.1:5555 unless set; on any other
    address AFTERTURN_FLOWER_BASIC_AUTH=user:password is required.
    """
    from afterturn.fleet import flower_command
    from afterturn.settings import Settings

    _run(flower_command(Settings.load()), "flower", keep_running=keep_running)


def _run(command: FleetCommand, name: str, *, keep_running: bool) -> None:
    from afterturn.fleet import execute
    from afterturn.kept import run_kept

    if not keep_running:
        execute(command)
    raise click.exceptions.Exit(run_kept(command, name))


def _print_report(report: UpReport, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "database_url": report.database_url,
                "broker_url": report.broker_url,
                "flower_url": report.flower_url,
                "flower_refused": report.flower_refused,
                "not_ready": list(report.not_ready),
                "logs": str(report.logs),
            }
        )
        return
    click.echo("afterturn is up; Ctrl-C stops it.")
    print_pairs(
        {
            "PostgreSQL": _without_password(report.database_url),
            "broker": _without_password(report.broker_url),
            "Flower": report.flower_url or report.flower_refused or "not asked for",
            "logs": report.logs,
        }
    )
    for name in report.not_ready:
        _to_stderr(f"{name} is not ready yet; see {report.logs}")


def _without_password(url: str) -> str:
    """The URL to be shown. Replaced in place: an empty host does not survive `urlunsplit`."""
    from urllib.parse import urlsplit

    password = urlsplit(url).password
    return url.replace(f":{password}@", ":***@", 1) if password else url


def _to_stderr(line: str) -> None:
    click.echo(line, err=True)
