"""The bars of an import: messages handed over, jobs left to be done."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class ImportProgress:
    """Two bars on stderr; nothing at all unless `shown`."""

    def __init__(self, messages: int, *, shown: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._handed_over = self._progress.add_task("messages handed over", total=messages)
        self._processed = self._progress.add_task("jobs processed", total=None)
        self._most_left = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def message(self) -> None:
        """One more message was handed over."""
        self._progress.advance(self._handed_over)

    def left(self, jobs: int) -> None:
        """So many jobs are unfinished now; the most seen is the whole."""
        self._most_left = max(self._most_left, jobs)
        self._progress.update(
            self._processed, total=self._most_left, completed=self._most_left - jobs
        )
