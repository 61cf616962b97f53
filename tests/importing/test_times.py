"""Session times."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterturn.importing.times import session_time


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1:56 pm on 8 May, 2023", datetime(2023, 5, 8, 13, 56, tzinfo=UTC)),
        ("12:28 am on 8 November, 2023", datetime(2023, 11, 8, 0, 28, tzinfo=UTC)),
        ("12:00 pm on 29 February, 2024", datetime(2024, 2, 29, 12, 0, tzinfo=UTC)),
        ("  9:05 PM on 1 Sep 2022 ", datetime(2022, 9, 1, 21, 5, tzinfo=UTC)),
        ("2023-05-08T13:56:00", datetime(2023, 5, 8, 13, 56, tzinfo=UTC)),
        ("2023-05-08T13:56:00+02:00", datetime(2023, 5, 8, 11, 56, tzinfo=UTC)),
        ("2023-05-08T13:56:00Z", datetime(2023, 5, 8, 13, 56, tzinfo=UTC)),
    ],
)
def test_a_time_is_read_as_utc_unless_it_has_a_zone(text: str, expected: datetime) -> None:
    """LoCoMo's own spelling and ISO 8601 give the moment meant."""
    assert session_time(text) == expected
    assert session_time(text).utcoffset() == expected.utcoffset()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "13:56 pm on 8 May, 2023",
        "0:10 am on 8 May, 2023",
        "1:56 pm on 31 April, 2023",
        "1:61 pm on 8 May, 2023",
        "1:56 pm on 8 Mai, 2023",
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    """A time that does not exist is not guessed at."""
    with pytest.raises(ValueError):  # noqa: PT011 - the caller words its own message
        session_time(text)


@given(st.datetimes())
def test_every_minute_survives_being_written_the_locomo_way(when: datetime) -> None:
    """Writing a minute in LoCoMo's spelling and reading it gives it back."""
    minute = when.replace(second=0, microsecond=0, tzinfo=UTC)
    half = "am" if minute.hour < 12 else "pm"
    months = "January February March April May June July August September October November December"
    month = months.split()[minute.month - 1]
    text = (
        f"{minute.hour % 12 or 12}:{minute.minute:02} {half} on "
        f"{minute.day} {month}, {minute.year:04}"
    )
    assert session_time(text) == minute
