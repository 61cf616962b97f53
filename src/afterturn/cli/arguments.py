"""What several commands take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from afterturn.scope import MemoryScope

F = TypeVar("F", bound=Callable[..., Any])


def _scope(ctx: click.Context, param: click.Parameter, value: str) -> MemoryScope:
    """The scope written `acme/alice`; what cannot be one is a usage error that says the rule."""
    from afterturn.errors import MemoryContractError
    from afterturn.scope import scope_from_command_line

    try:
        return scope_from_command_line(value)
    except MemoryContractError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _scope_if_given(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> MemoryScope | None:
    return None if value is None else _scope(ctx, param, value)


scope_argument = click.argument("scope", callback=_scope)

scope_option = click.option(
    "--scope",
    required=True,
    callback=_scope,
    metavar="SCOPE",
    help="Each conversation becomes a scope below this one.",
)


def optional_scope(text: str) -> Callable[[F], F]:
    """`--scope` of a command that can do without."""
    return click.option("--scope", callback=_scope_if_given, metavar="SCOPE", help=text)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for a script.")


def examples(*lines: str) -> str:
    """The end of a command's help: command lines to copy."""
    title = "Example:" if len(lines) == 1 else "Examples:"
    return "\b\n" + "\n  ".join((title, *lines))
