"""`afterturn status`: what waits, what is wrong, and what runs."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from afterturn.cli.arguments import as_json, examples
from afterturn.cli.broker import BrokerView, look_at_broker
from afterturn.cli.opening import database_settings, running_broker_url
from afterturn.cli.output import console, print_json, print_pairs

if TYPE_CHECKING:
    from afterturn.settings import Settings
    from afterturn.status import MemoryStatus

OLDEST_SECONDS = 300.0


@dataclass(frozen=True)
class Report:
    """All that `status` shows."""

    ledger: MemoryStatus
    broker: BrokerView
    embedded: dict[str, str]

    def wrong(self, oldest_seconds: float) -> list[str]:
        """What an operator has to look at; empty when all is well."""
        found = [f"{self.ledger.dead} jobs are dead"] if self.ledger.dead else []
        for kind, jobs in self.ledger.jobs.items():
            if jobs.stuck:
                found.append(f"{jobs.stuck} {kind} jobs are stuck")
            if jobs.lapsed:
                found.append(f"{jobs.lapsed} {kind} jobs were left by a lost worker")
            if jobs.oldest_seconds > oldest_seconds:
                found.append(f"the oldest {kind} job has waited {jobs.oldest_seconds:.0f} s")
        if not self.broker.reachable:
            found.append("the broker does not answer")
        return found


@click.command(epilog=examples("afterturn status", "afterturn status --check --json"))
@click.option("--check", is_flag=True, help="Exit with 1 when something is wrong.")
@click.option(
    "--oldest",
    type=click.FloatRange(min=0),
    default=OLDEST_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="An unfinished job older than this is wrong.",
)
@as_json
def status(check: bool, oldest: float, as_json: bool) -> None:
    """Show what waits, what is wrong, and which servers answer.

    Exits with 0 whenever it can answer, also when the broker is down; with 1 when the database
    cannot be asked. With --check also when jobs are dead, stuck, left by a lost worker or older
    than --oldest, or the broker does not answer. An embedded database that does not run is
    started to be asked; a broker never is.
    """
    from afterturn.settings import Settings

    report = _look(Settings.load())
    wrong = report.wrong(oldest)
    if as_json:
        print_json(_document(report, wrong))
    else:
        _print(report, wrong)
    if check and wrong:
        raise click.exceptions.Exit(1)


def _look(settings: Settings) -> Report:
    embedded = _embedded(settings)
    broker_url = settings.broker_url or running_broker_url(settings)
    broker = look_at_broker(broker_url, settings) if broker_url else BrokerView(reachable=False)
    return Report(asyncio.run(_ledger(database_settings(settings))), broker, embedded)


async def _ledger(settings: Settings) -> MemoryStatus:
    from afterturn.database import Database
    from afterturn.migrations import require_current
    from afterturn.status import read_status

    database = Database(str(settings.database_url), settings, pool_size=1)
    try:
        async with database.connection() as conn:
            await require_current(conn)
        return await read_status(database)
    finally:
        await database.close()


def _embedded(settings: Settings) -> dict[str, str]:
    """The embedded servers in use, by name, as they were before this command."""
    wanted = {"postgres": settings.database_url is None, "valkey": settings.broker_url is None}
    if not any(wanted.values()):
        return {}
    from afterturn import embedded

    found = embedded.status(settings.home)
    pids = {
        "postgres": found.postgres_pid if found and found.database_url else None,
        "valkey": found.valkey_pid if found and found.broker_url else None,
    }
    servers = {
        name: f"runs as process {pids[name]}" if pids[name] else "does not run"
        for name, is_wanted in wanted.items()
        if is_wanted
    }
    return {"home": str(settings.home), **servers}


def _document(report: Report, wrong: list[str]) -> dict[str, Any]:
    return {
        "ok": not wrong,
        "wrong": wrong,
        **report.ledger.model_dump(mode="json"),
        "outstanding": report.ledger.outstanding,
        "broker": asdict(report.broker),
        "embedded": report.embedded,
        "release": _release(),
    }


def _release() -> str:
    from importlib.metadata import version

    return version("afterturn")


def _print(report: Report, wrong: list[str]) -> None:
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
            "broker": _broker_line(broker),
            "PostgreSQL": f"{ledger.postgresql}, at migration {ledger.migration}",
            "afterturn": _release(),
            **{f"embedded {name}": value for name, value in report.embedded.items()},
        }
    )
    click.echo("all is well" if not wrong else "to look at: " + "; ".join(wrong))


def _broker_line(broker: BrokerView) -> str:
    if not broker.reachable:
        return "does not answer"
    waiting = sum(broker.rings.values())
    return f"answers, version {broker.version}, {waiting} rings wait for a worker"
