"""The time of a test: stands still until it is moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from afterturn.errors import MemoryContractError
from afterturn.intake import checked_time

_START = datetime(2024, 1, 1, 12, 0, tzinfo=UTC)


class SettableClock:
    """A clock that shows `start` (noon of 1 January 2024, UTC) until it is set or advanced."""

    def __init__(self, start: datetime = _START) -> None:
        self._at = _aware(start)

    def now(self) -> datetime:
        """The time it shows, in UTC."""
        return self._at

    def set(self, at: datetime) -> None:
        """Show this time, which may lie in the past; a naive one is refused."""
        self._at = _aware(at)

    def advance(self, seconds: float) -> None:
        """Move on by so many seconds."""
        if seconds < 0:
            raise MemoryContractError(
                "A clock advances by no less than 0 s", detail=f"got {seconds:g}", hint="Use set()."
            )
        self._at += timedelta(seconds=seconds)


def _aware(at: datetime) -> datetime:
    checked = checked_time(at, what="The clock's time")
    assert checked is not None  # noqa: S101 - only None gives None
    return checked
