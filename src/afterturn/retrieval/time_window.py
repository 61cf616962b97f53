"""The stretch of time that a question is about: "on 5 January", "in May 2023", "last week".

English, with the words `today`, `yesterday`, `last week` and their like counted from the reader's
now. A day without a year is that day of any year; so is a month.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from afterturn.retrieval.lexical import Floats

_SECONDS_A_DAY: Final = 86_400.0
_DAYS_A_YEAR: Final = 365.25
_SEASONS: Final = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_COUNTS: Final = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
_UNIT_DAYS: Final = {"day": 1, "week": 7, "month": 30, "year": 365}

_MONTHS: Final = {
    name: number
    for number, names in enumerate(
        (
            *("january jan", "february feb", "march mar", "april apr", "may", "june jun"),
            *("july jul", "august aug", "september sept sep", "october oct"),
            *("november nov", "december dec"),
        ),
        start=1,
    )
    for name in names.split()
}
_MONTH: Final = "(?P<month>" + "|".join(sorted(_MONTHS, key=len, reverse=True)) + r")\b\.?"
_YEAR: Final = r"(?P<year>(?:19|20)\d\d)\b"
_DAY: Final = r"(?P<day>[0-3]?\d)(?:st|nd|rd|th)?"
_PATTERNS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?P<year>(?:19|20)\d\d)-(?P<month>[01]\d)-(?P<day>[0-3]\d)\b",
        rf"\b{_DAY}(?: of)? {_MONTH}(?:,? {_YEAR})?",
        rf"\b{_MONTH} {_DAY}\b(?!:)(?:,? {_YEAR})?",
        rf"\b{_MONTH},?(?: of)? {_YEAR}",
        # "may" and "march" are verbs, too: without a year only after a word that asks for a time.
        rf"\b(?:in|during|since|until|before|after|early|late|mid|around|of|last|this|next)[ -]"
        rf"{_MONTH}(?! \d)",
        rf"\b(?P<season>{'|'.join(_SEASONS)})(?: of)? {_YEAR}",
        rf"\b(?:in|during|of|since|year) {_YEAR}",
    )
)
_RELATIVE: Final = re.compile(
    r"\b(?:(?P<name>today|tonight|yesterday)"
    r"|(?P<which>last|this|past) (?P<span>night|week|weekend|month|year)"
    rf"|last (?P<weekday>{'|'.join(_WEEKDAYS)})"
    rf"|(?P<count>\d{{1,3}}|{'|'.join(_COUNTS)}) (?P<unit>day|week|month|year)s? ago)\b",
    re.IGNORECASE,
)
# Most questions name no time: one look tells.
_MAY_NAME_ONE: Final = re.compile(
    rf"\d|\b(?:{'|'.join(_MONTHS)}|today|tonight|yesterday|last|this|past|ago)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """From `start` to `end` in seconds since the epoch; each year again where `yearly`."""

    start: float
    end: float
    yearly: bool = False

    def nearness(self, times: Floats) -> Floats:
        """1 inside, falling to a half at one length of the window away, from 2 to 30 days.

        What happened is often told days later, so what lies behind the window counts, too.
        """
        middle, half = (self.start + self.end) / 2, (self.end - self.start) / 2
        away = np.abs(times - middle)
        if self.yearly:
            year = _DAYS_A_YEAR * _SECONDS_A_DAY
            away = np.abs((times - middle + year / 2) % year - year / 2)
        falls_in = min(max(2 * half, 2 * _SECONDS_A_DAY), 30 * _SECONDS_A_DAY)
        beyond = np.maximum(away - half, 0.0) / falls_in
        return np.asarray(np.exp2(-(beyond**2)))


def time_window(cue: str, now: float | None) -> TimeWindow | None:
    """The window a question names, the most exact one first; `None` when it names none.

    `now` in seconds since the epoch; without it, words that count from it name nothing.
    """
    if _MAY_NAME_ONE.search(cue) is None:
        return None
    for pattern in _PATTERNS:
        for found in pattern.finditer(cue):
            window = _named(found.groupdict())
            if window is not None:
                return window
    relative = _RELATIVE.search(cue)
    return _counted(relative, datetime.fromtimestamp(now, UTC)) if relative and now else None


def _named(parts: dict[str, str | None]) -> TimeWindow | None:
    year, month, day, season = (parts.get(key) for key in ("year", "month", "day", "season"))
    first = _SEASONS[season.lower()] if season else 1
    if month:
        first = int(month) if month.isdigit() else _MONTHS[month.lower()]
    try:
        start = datetime(int(year or 2000), first, int(day or 1), tzinfo=UTC)
    except ValueError:  # 31 June: no day at all
        return None
    days = 1 if day else 30 if month else 92 if season else 365
    return _window(start, days, yearly=year is None)


def _counted(found: re.Match[str], now: datetime) -> TimeWindow:
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    parts = {key: value.lower() for key, value in found.groupdict().items() if value}
    if "unit" in parts:
        count = _COUNTS.get(parts["count"]) or int(parts["count"])
        days = _UNIT_DAYS[parts["unit"]]
        return _window(today - timedelta(days=count * days + days // 2), max(days, 1))
    if "weekday" in parts:
        back = (today.weekday() - _WEEKDAYS.index(parts["weekday"]) - 1) % 7 + 1
        return _window(today - timedelta(days=back), 1)
    if "span" in parts:
        days = {"night": 1, "week": 7, "weekend": 3, "month": 30, "year": 365}[parts["span"]]
        back = days if parts["which"] == "last" and parts["span"] != "night" else 0
        return _window(today - timedelta(days=back + days - 1), days)
    return _window(today - timedelta(days=parts["name"] == "yesterday"), 1)


def _window(start: datetime, days: int, *, yearly: bool = False) -> TimeWindow:
    seconds = start.timestamp()
    return TimeWindow(seconds, seconds + days * _SECONDS_A_DAY, yearly)
