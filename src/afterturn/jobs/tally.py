"""The short codes that tasks return: counts and reasons, never text or ids.

Whatever is tallied is also what metrics count and logs say, there with the jobs' ids.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from afterturn import metrics
from afterturn.logs import log_outcome

_DONE = {
    "record": "recorded",
    "extract": "extracted",
    "embed": "embedded",
    "flush": "flushed",
    "forget": "forgot",
    "expire": "",
}
_REFUSED = {"stale": "stale turn", "lost": "lease lost", "misplaced": "record outside the scope"}


class Tally:
    """Counts outcomes of one task run and says them, for example `recorded 3`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._ended: dict[tuple[str, str, str], list[int]] = {}

    def add(self, what: str, count: int = 1) -> None:
        """Count something by its word."""
        self._counts[what] += count

    def applied(self, kind: str, verdict: str, job_id: int) -> None:
        """Count the verdict of one job whose work was done."""
        if verdict in _REFUSED:
            self._refused[_REFUSED[verdict]] += 1
        elif word := _DONE[kind] if verdict == "done" else verdict:
            self._counts[word] += 1
        self._note(kind, verdict, job_id)

    def done(self, kind: str, job_id: int) -> None:
        """Note that a job ended whose work is counted in other words."""
        self._note(kind, "done", job_id)

    def failed(self, kind: str, verdict: str, reason: str, job_id: int) -> None:
        """Count a failed attempt: `retry`, `dead` or `lost`."""
        self._counts[f"{verdict} ({reason})"] += 1
        self._note(kind, verdict, job_id, reason)

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """A piece of work on jobs of this kind: at its end metrics and logs get what was noted."""
        began = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            metrics.WORK_SECONDS.labels(kind).observe(seconds)
            ended, self._ended = self._ended, {}
            for (of_kind, outcome, reason), jobs in ended.items():
                metrics.JOBS.labels(of_kind, outcome).inc(len(jobs))
                log_outcome(of_kind, outcome, jobs, reason=reason, seconds=seconds)

    def _note(self, kind: str, outcome: str, job_id: int, reason: str = "") -> None:
        self._ended.setdefault((kind, outcome, reason), []).append(job_id)

    def __str__(self) -> str:
        parts = [f"{what} {count}" for what, count in self._counts.items()]
        parts += [
            f"refused: {why}" if count == 1 else f"refused {count}: {why}"
            for why, count in self._refused.items()
        ]
        return ", ".join(parts) or "nothing to do"
