"""What the pages name exists: commands, options, settings, files, targets of make."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from afterturn.cli import main
from afterturn.scope import MAX_DEPTH
from afterturn.settings import PREFIX, Settings
from tests.docs.pages import DOCS, ROOT, Block, blocks, pages

_ASSIGNMENT = re.compile(r"\w+=\S*")
_ELSEWHERE = {"POSTGRES_BIN", "VALKEY_SERVER", "ROOT_MODE"}
_PIECES = re.compile(r"&&|\|\||[|;>]")


def _shell_lines(block: Block) -> Iterator[str]:
    """The commands of a block, `\\` at a line's end joined, prompts and comments taken off."""
    text = block.text.replace("\\\n", " ")
    if block.language == "console":  # the rest of such a block is what the commands print
        text = "\n".join(line for line in text.splitlines() if line.startswith("$ "))
    for line in text.splitlines():
        for piece in _PIECES.split(line.partition(" #")[0].removeprefix("$ ").strip()):
            words = shlex.split(piece, comments=True)
            while words and _ASSIGNMENT.fullmatch(words[0]):
                words.pop(0)
            if words:
                yield shlex.join(words)


def _commands() -> list[tuple[str, str]]:
    return [
        (str(block.page), line)
        for block in blocks("sh", "console")
        for line in _shell_lines(block)
        if line.startswith("afterturn ")
    ]


@pytest.mark.parametrize(("page", "line"), _commands())
def test_a_command_of_the_pages_is_understood(page: str, line: str) -> None:
    """The command exists and takes these options and arguments."""
    words = shlex.split(line)[1:]
    command: click.Command = main
    context = click.Context(main, info_name="afterturn")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        assert name in command.commands, f"{page}: no such command"
        command = command.commands[name]
        context = click.Context(command, info_name=name, parent=context)
    command.make_parser(context).parse_args(list(words))


def test_every_setting_named_exists() -> None:
    """A misspelt variable on a page would be refused when somebody sets it."""
    known = {name.upper() for name in Settings.model_fields} | _ELSEWHERE
    for page in pages():
        named = set(re.findall(rf"\b{PREFIX}([A-Z_]+[A-Z])\b", page.read_text("utf-8")))
        assert named <= known, page


def test_every_block_of_python_is_python() -> None:
    """Also those that show `await` outside a function, as a notebook allows."""
    for block in blocks("python"):
        if "--8<--" not in block.text:
            compile(block.text, str(block.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", [p.name for p in sorted(ROOT.glob("*.md"))])
def test_links_from_the_root_lead_somewhere(page: str) -> None:
    """mkdocs looks at the links of docs/; these it does not see."""
    text = (ROOT / page).read_text("utf-8")
    for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)|src=\"([^\"]+)\"", text):
        target = next(filter(None, link))
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_what_make_and_python_are_asked_for_exists() -> None:
    """`make demo` has a target, `python bench/handover.py` a file."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for page in pages():
        text = page.read_text("utf-8")
        assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets, page
        for name in re.findall(r"\b((?:bench|examples|tests|workers)/[\w/]+\.py)\b", text):
            assert (ROOT / name).exists(), f"{page}: {name}"


def test_the_depth_of_a_scope_is_stated() -> None:
    """The number on the page of scopes is the library's."""
    page = Path(DOCS / "reference" / "api" / "models.md").read_text("utf-8")
    assert f"at most, is {MAX_DEPTH}" in page
