"""The pages of the documentation, and what is in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"

_FENCE: Final = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: where it stands, its language, its text."""

    page: Path
    language: str
    text: str


def pages() -> list[Path]:
    """Everything that is written for a reader."""
    return [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def blocks(*languages: str) -> Iterator[Block]:
    """The fenced blocks in these languages, of all pages."""
    for page in pages():
        for indent, language, text in _FENCE.findall(page.read_text("utf-8")):
            if language in languages:
                yield Block(page.relative_to(ROOT), language, re.sub(f"(?m)^{indent}", "", text))
