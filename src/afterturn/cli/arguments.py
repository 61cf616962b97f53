"""What several commands take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from afterturn.scope import MemoryScope


class ScopeType(click.ParamType):
    """A scope as it is written on a command line, `acme/alice`."""

    name = "scope"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> MemoryScope:
        """The scope; what cannot be one is a usage error that says the rule."""
        from afterturn.errors import MemoryContractError
        from afterturn.scope import MemoryScope, scope_from_command_line

        if isinstance(value, MemoryScope):
            return value
        try:
            return scope_from_command_line(str(value))
        except MemoryContractError as error:
            self.fail(str(error), param, ctx)


SCOPE = ScopeType()

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for a script.")


def examples(*lines: str) -> str:
    """The end of a command's help: command lines to copy."""
    title = "Example:" if len(lines) == 1 else "Examples:"
    return "\b\n" + "\n  ".join((title, *lines))
