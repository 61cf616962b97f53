"""What the demo shows: plain words, a line where a line will do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from afterturn.demo.asking import Answer
from afterturn.records import MemoryLayer, MemoryRecord

_SHOWN_MAX: Final = 3
_INDENT: Final = 3
_LEARNED: Final = {
    MemoryLayer.SEMANTIC: "a fact",
    MemoryLayer.PROCEDURAL: "a habit",
    MemoryLayer.PROSPECTIVE: "a plan",
}


class Screen:
    """Writes to stdout and keeps what turned out not to be true."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, emoji=False)
        self._steps = 0
        self.untrue: list[str] = []

    def step(self, title: str) -> None:
        """Begin the next numbered step."""
        self._steps += 1
        self._console.print(f"\n[bold cyan]{self._steps}. {escape(title)}[/]")

    def say(self, text: str) -> None:
        """A line or a paragraph."""
        self._console.print(Padding.indent(escape(text), _INDENT))

    def gap(self) -> None:
        """An empty line."""
        self._console.print()

    def claim(self, text: str, holds: bool) -> None:
        """Something that must be true; the demo fails when it is not."""
        mark = "[bold green]yes[/]" if holds else "[bold red]NO [/]"
        self._console.print(Padding.indent(f"{mark}  {escape(text)}", _INDENT))
        if not holds:
            self.untrue.append(text)

    def pairs(self, rows: Mapping[str, object]) -> None:
        """Names and values, one pair a line."""
        table = _grid()
        for name, value in rows.items():
            table.add_row(f"   {escape(name)}", escape(str(value)))
        self._console.print(table)

    def answers(self, answers: Sequence[Answer]) -> None:
        """Each question with the best of what came back; a star marks what answers it."""
        for answer in answers:
            self._console.print(
                f"\n   [bold]{escape(answer.question.text)}[/]"
                f"  [dim]{answer.milliseconds:.1f} ms[/]"
            )
            if not answer.memories:
                self._console.print("      [dim]nothing is remembered[/]")
                continue
            table = _grid()
            for memory in answer.memories[:_SHOWN_MAX]:
                star = "[bold green]*[/]" if answer.is_evidence(memory.record) else " "
                score = f"[dim]{memory.score:5.2f}[/]"
                table.add_row(f"    {star} {score}", escape(_told(memory.record)))
            self._console.print(table)


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _told(record: MemoryRecord) -> str:
    """A memory in a line: when, who, what."""
    when = record.occurred_at or record.recorded_at
    day = f"{when:%d %b %Y}" if when else ""
    who = record.metadata.get("speaker_name") or _LEARNED.get(record.layer, record.layer.value)
    return f"{day}  {who}: {record.text}"
