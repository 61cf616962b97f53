"""The group of all commands, and how a failure leaves it.

Exit codes: 0 it went well, 1 something is wrong and the last line of stderr says what, 2 the
command line cannot be understood.
"""

from __future__ import annotations

from typing import Any

import click

from afterturn.cli import (
    compact,
    conversations,
    demo,
    doctor,
    erase_log,
    export,
    fleet,
    jobs,
    lifecycle,
    migrate,
    reembed,
    schedule,
    status,
)
from afterturn.cli.arguments import examples
from afterturn.errors import AfterturnError


class ReportingGroup(click.Group):
    """A group in which an error of ours is one line on stderr and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; our own errors end here, a defect of the program goes on."""
        try:
            return super().invoke(ctx)
        except AfterturnError as error:
            click.echo(f"error: {' '.join(str(error).split())}", err=True)
            ctx.exit(1)


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"afterturn {version('afterturn')}")
        ctx.exit()


@click.group(
    cls=ReportingGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples("afterturn demo", "afterturn up", "afterturn forget acme/alice"),
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Long-term memory for LLM agents: handed over after the turn, and erasable for good.

    Settings come from AFTERTURN_* variables. Where AFTERTURN_DATABASE_URL or AFTERTURN_BROKER_URL
    is not set, an embedded server is started and shared by your processes. A scope is written
    acme/alice, its segments percent-encoded where they hold a slash or a percent sign; as it is
    printed, v1/acme/alice, it is taken too, so a root called v1 is written v1/v1/...

    Exit codes: 0 it went well, 1 something is wrong (the last line says what), 2 usage.
    """


for _command in (
    demo.demo,
    fleet.up,
    fleet.worker,
    fleet.beat,
    fleet.flower,
    migrate.migrate,
    status.status,
    doctor.doctor,
    jobs.jobs,
    conversations.import_,
    export.export,
    lifecycle.flush,
    lifecycle.forget,
    schedule.schedule,
    erase_log.erased,
    erase_log.erase_log,
    erase_log.verify_erase_log,
    erase_log.replay_erasures,
    compact.compact,
    reembed.reembed,
):
    main.add_command(_command)
