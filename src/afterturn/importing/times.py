"""When a session was: LoCoMo's way of writing it, and ISO 8601."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_MONTHS: Final = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
# As in "1:56 pm on 8 May, 2023".
_SPOKEN: Final = re.compile(
    r"(\d{1,2}):(\d{2})\s*([ap])\.?m\.?\s+on\s+(\d{1,2})\s+([a-z]+)\.?,?\s+(\d{4})", re.IGNORECASE
)
_NOON: Final = 12


def session_time(text: str) -> datetime:
    """The moment in UTC; a time without a zone is read as UTC. Raises `ValueError`.

    Month names are English whatever the locale, in full or by their first three letters.
    """
    match = _SPOKEN.fullmatch(text.strip())
    if match is None:
        when = datetime.fromisoformat(text.strip())
        return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    hour, minute, half, day, month, year = match.groups()
    if not 1 <= int(hour) <= _NOON:
        raise ValueError("the hour is not one of a 12-hour clock")
    on_the_clock = int(hour) % _NOON + (_NOON if half.lower() == "p" else 0)
    return datetime(int(year), _month(month), int(day), on_the_clock, int(minute), tzinfo=UTC)


def _month(name: str) -> int:
    word = name.lower()
    for number, month in enumerate(_MONTHS, start=1):
        if word in (month, month[:3]):
            return number
    raise ValueError("the month is not an English one")
