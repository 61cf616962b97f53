"""`docs/reference/cli.md`, made from the commands' own help.

Run `python -m tests.docs.cli_page` to write it anew after a command changed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

import click

from afterturn.cli import main

from .pages import DOCS

PAGE: Final = DOCS / "reference" / "cli.md"
_BEFORE: Final = """\
# The command line

This page is made from the help of the commands themselves: `afterturn COMMAND --help` says the
same.
"""
# Options, settings and file names, which Markdown would set in italics or take for dashes.
_LITERAL: Final = re.compile(r"(?<![\w`-])(--[a-z][a-z-]*|AFTERTURN_[A-Z_]*\*?|_PORT)(?![\w`])")


def page() -> str:
    """The whole page."""
    root = click.Context(main, info_name="afterturn")
    parts = [_BEFORE, _prose(main), _parameters(main, root)]
    for name in sorted(main.commands):
        parts += _sections(main.commands[name], root, name, level=2)
    return "\n".join(part for part in parts if part)


def _sections(
    command: click.Command, parent: click.Context, name: str, level: int
) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    yield f"{'#' * level} `{context.command_path}`\n"
    yield f"```text\n{usage}\n```\n"
    yield _prose(command)
    yield _parameters(command, context)
    yield _examples(command)
    if isinstance(command, click.Group):
        for each in command.commands:
            yield from _sections(command.commands[each], context, each, level + 1)


def _prose(command: click.Command) -> str:
    """The help text, paragraph by paragraph."""
    return _LITERAL.sub(r"`\1`", inspect.cleandoc(command.help or "")) + "\n"


def _parameters(command: click.Command, context: click.Context) -> str:
    rows = [
        f"| {_names(each)} | {_meaning(each)} |"
        for each in command.get_params(context)
        if isinstance(each, click.Option) and "--help" not in each.opts
    ]
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n" if rows else ""


def _names(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if option.is_flag:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} one of {', '.join(f'`{choice}`' for choice in option.type.choices)}"
    return f"{names} `{option.metavar or option.type.name.partition(' ')[0].upper()}`"


def _meaning(option: click.Option) -> str:
    text = _LITERAL.sub(r"`\1`", " ".join((option.help or "").split()))
    if option.show_default and option.default is not None:
        text += f" Default: `{option.default}`."
    return text + (" Required." if option.required else "")


def _examples(command: click.Command) -> str:
    lines = [line.strip() for line in (command.epilog or "").splitlines()[2:]]
    return "```sh\n" + "\n".join(lines) + "\n```\n" if lines else ""


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
