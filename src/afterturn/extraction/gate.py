"""Whether the model may be called, after calls that found it out of reach."""

from __future__ import annotations

import time
from collections.abc import Callable


class ModelGate:
    """Closes when the model is out of reach, longer each time in a row; one call then probes.

    So an outage costs a process a call now and then, however many turns wait.
    """

    def __init__(
        self,
        first_seconds: float,
        cap_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first_seconds = first_seconds
        self._cap_seconds = cap_seconds
        self._clock = clock
        self._failures = 0
        self._open_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether calls may be made now."""
        return self._clock() >= self._open_at

    def room(self, calls: int, under_way: int) -> int:
        """How many of so many more calls may be made now: none, one to probe, or all."""
        if not self.is_open:
            return 0
        return min(calls, max(0, 1 - under_way)) if self._failures else calls

    def reached(self) -> None:
        """The model answered, well or not."""
        self._failures = 0
        self._open_at = 0.0

    def missed(self, retry_after_seconds: float = 0.0) -> float:
        """The model was out of reach; returns the seconds to wait.

        Calls that were under way together count as one failure.
        """
        if self.is_open:
            pause = min(self._first_seconds * 2.0 ** min(self._failures, 32), self._cap_seconds)
            self._failures += 1
            self._open_at = self._clock() + pause
        self._open_at = max(self._open_at, self._clock() + retry_after_seconds)
        return self._open_at - self._clock()
