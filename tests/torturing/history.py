"""What a process saw, noted before and after each thing it did, in a file of its own.

One JSON object a line, written by one `os.write`, so that a kill -9 loses at most the line that
was not written yet. `t` is nanoseconds of the machine's monotonic clock, which all processes
share: what is noted before a call happened before it, what is noted after, after.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class History:
    """The notes of one life of one process."""

    def __init__(self, folder: Path, who: str) -> None:
        self.who = who
        self._count = 0
        self._file = os.open(folder / f"{who}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, event: str, **fields: Any) -> int:
        """Write one event; its time."""
        at = time.monotonic_ns()
        line = json.dumps({"e": event, "t": at, "who": self.who, **fields}, ensure_ascii=False)
        os.write(self._file, line.encode() + b"\n")
        return at

    def new_op(self) -> str:
        """A name for the next thing to be done, unique in the run."""
        self._count += 1
        return f"{self.who}.{self._count}"


def read_histories(folder: Path) -> Iterator[Event]:
    """All events of a folder, each file's in order. A last line cut off by a kill is left out."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            try:
                yield json.loads(line)
            except ValueError:
                continue


class Tally:
    """Counts events while they are written, for the progress line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.counts: dict[str, int] = {}

    def update(self) -> dict[str, int]:
        """Read what came since the last time."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                fresh = file.read()
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                event = line[7 : line.index(b'"', 7)].decode()
                self.counts[event] = self.counts.get(event, 0) + 1
        return self.counts
