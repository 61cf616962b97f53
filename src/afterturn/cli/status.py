"""`afterturn status`: what waits, what is wrong, and what runs."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from afterturn.cli.arguments import as_json, examples
from afterturn.cli.looking import Looker, Report
from afterturn.cli.output import console, print_json, print_pairs

if TYPE_CHECKING:
    from afterturn.cli.broker import BrokerView
    from afterturn.settings import Settings
    from afterturn.status import ModelUsage, Trouble

ROOTS_SHOWN = 5
OLDEST_SECONDS = 300.0


@click.command(epilog=examples("afterturn status --watch", "afterturn status --check --json"))
@click.option("--check", is_flag=True, help="Exit with 1 when something is wrong.")
@click.option(
    "--oldest",
    type=click.FloatRange(min=0),
    default=OLDEST_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="An unfinished job older than this is wrong.",
)
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="The pause of --watch.",
)
@as_json
def status(check: bool, oldest: float, watch: bool, every: float, as_json: bool) -> None:
    """Show what waits, what is wrong, and which servers answer.

    Exits with 0 whenever it can answer, also when the broker is down; with 1 when the database
    cannot be asked. With --check also when jobs are dead, stuck, left by a lost worker or older
    than --oldest, when the broker does not answer, and when AFTERTURN_EMBEDDER is not the embedder
    of the stored vectors. An embedded database that does not run is started to be asked, and
    that is said; a broker never is. With --watch a database that does not answer is said and
    asked again.
    """
    from afterturn.settings import Settings

    if check and watch:
        raise click.UsageError("--check answers once: leave --watch away.")
    settings = Settings.load()
    if watch:
        _watch(settings, oldest, every, as_json=as_json)
        return
    report = Looker(settings).look()
    wrong = report.wrong(oldest)
    _show(report, wrong, as_json=as_json)
    if check and wrong:
        raise click.exceptions.Exit(1)


def _watch(settings: Settings, oldest: float, every: float, *, as_json: bool) -> None:
    """Look until Ctrl-C. With JSON one object after the other."""
    from afterturn.errors import MemoryUnavailable

    looker = Looker(settings)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            try:
                report = looker.look()
            except MemoryUnavailable as error:
                click.clear()
                click.echo(f"error: {error}", err=True)
            else:
                click.clear()
                _show(report, report.wrong(oldest), as_json=as_json)
            sys.stdout.flush()
            time.sleep(every)


def _show(report: Report, wrong: list[Trouble], *, as_json: bool) -> None:
    if as_json:
        print_json(_document(report, wrong))
    else:
        _print(report, wrong)


def _document(report: Report, wrong: list[Trouble]) -> dict[str, Any]:
    return {
        "ok": not wrong,
        "wrong": [trouble.says for trouble in wrong],
        **report.ledger.model_dump(mode="json"),
        "outstanding": report.ledger.outstanding,
        "broker": asdict(report.broker),
        "embedded": report.embedded,
        "vectors": report.vectors,
        "release": _release(),
    }


def _release() -> str:
    from importlib.metadata import version

    return version("afterturn")


def _print(report: Report, wrong: list[Trouble]) -> None:
    from rich.table import Table

    ledger, broker = report.ledger, report.broker
    table = Table(title="unfinished jobs", title_justify="left")
    table.add_column("kind")
    for name in ("waiting", "running", "lapsed", "stuck", "oldest"):
        table.add_column(name, justify="right")
    for kind, jobs in sorted(ledger.jobs.items()):
        counts = (jobs.waiting, jobs.running, jobs.lapsed, jobs.stuck)
        table.add_row(kind, *map(str, counts), f"{jobs.oldest_seconds:.0f} s")
    if ledger.jobs:
        console().print(table)
    else:
        click.echo("no unfinished jobs")
    print_pairs(
        {
            "dead jobs": ledger.dead,
            "standing erases": ledger.standing_intents,
            "records that wait for a flush": ledger.pending,
            "erases scheduled": f"{ledger.scheduled}; {ledger.due} schedules are due",
            "extraction model": _usage_line(ledger.model),
            **{
                f"  for {root}": _usage_line(usage)
                for root, usage in list(ledger.model_by_root.items())[:ROOTS_SHOWN]
            },
            "broker": _broker_line(broker),
            "PostgreSQL": f"{ledger.postgresql}, at migration {ledger.migration}",
            "vectors of": report.vectors,
            "afterturn": _release(),
            **{f"embedded {name}": value for name, value in report.embedded.items()},
        }
    )
    if not wrong:
        click.echo("all is well")
    for trouble in wrong:
        click.echo(f"to look at: {trouble.says}. {trouble.mend}")


def _usage_line(usage: ModelUsage) -> str:
    return f"{usage.calls} calls, {usage.prompt_tokens} + {usage.completion_tokens} tokens"


def _broker_line(broker: BrokerView) -> str:
    if not broker.reachable:
        return "does not answer"
    waiting = sum(broker.rings.values())
    return f"answers, version {broker.version}, {waiting} rings wait for a worker"
