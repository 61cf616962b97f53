"""The short codes that tasks return: counts and reasons, never text or ids."""

from __future__ import annotations

from collections import Counter

_DONE = {"record": "recorded", "extract": "extracted", "embed": "embedded"}
_REFUSED = {"stale": "stale turn", "lost": "lease lost", "misplaced": "record outside the scope"}


class Tally:
    """Counts outcomes of one task run and says them, for example `recorded 3`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    def add(self, what: str, count: int = 1) -> None:
        """Count an outcome by its word."""
        self._counts[what] += count

    def applied(self, kind: str, verdict: str) -> None:
        """Count the verdict of one turn."""
        if verdict == "done":
            self._counts[_DONE[kind]] += 1
        elif verdict == "erasing":
            self._counts["erasing"] += 1
        else:
            self._refused[_REFUSED[verdict]] += 1

    def failed(self, verdict: str, reason: str) -> None:
        """Count a failed attempt: `retry`, `dead` or `lost`."""
        self._counts[f"{verdict} ({reason})"] += 1

    def __str__(self) -> str:
        parts = [f"{what} {count}" for what, count in self._counts.items()]
        parts += [
            f"refused: {why}" if count == 1 else f"refused {count}: {why}"
            for why, count in self._refused.items()
        ]
        return ", ".join(parts) or "nothing to do"
