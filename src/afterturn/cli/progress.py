"""Long work on stderr: the bars of an import, and the rows of an erase or a flush so far."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from afterturn.errors import MemoryUnavailable

if TYPE_CHECKING:
    from afterturn.receipts import LifecycleReceipt
    from afterturn.tickets import JobTicket

LOOK_SECONDS: Final = 0.5


async def watched(ticket: JobTicket, done: str) -> LifecycleReceipt:
    """The job's receipt; on a terminal, what it has come to meanwhile."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return await ticket.wait()
    waiting = asyncio.ensure_future(ticket.wait())
    with console.status("requested") as status:
        while not waiting.done():
            await asyncio.wait([waiting], timeout=LOOK_SECONDS)
            with contextlib.suppress(MemoryUnavailable):  # which the wait rides out, too
                status.update(progress_line(await ticket.progress(), done))
    return await waiting


def progress_line(counts: dict[str, int], done: str) -> str:
    """The rows so far in words."""
    rows = ", ".join(f"{count:,} of {table}" for table, count in counts.items() if count)
    return f"{done} so far: {rows or 'no rows'}"


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
