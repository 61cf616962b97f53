"""What enters is judged once: text, ids, metadata and times, and the whole kind of each case."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterturn.database import Database
from afterturn.errors import MemoryContractError
from afterturn.intake import (
    METADATA_BYTES_MAX,
    METADATA_DEPTH_MAX,
    RECORD_ID_CHARACTERS_MAX,
    SESSION_CHARACTERS_MAX,
    TEXT_BYTES_MAX,
    TURN_ID_CHARACTERS_MAX,
    checked_id,
    checked_metadata,
    checked_text,
    checked_time,
    clean_text,
)

SECRET = "the-secret-of-alice"

storable = st.text(max_size=8).map(clean_text)
any_text = st.text(alphabet=st.characters(categories=None), max_size=60)


def metadata_of(text: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    values = st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**40), 10**40)
        | st.floats(allow_nan=False, allow_infinity=False)
        | text,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(storable, inner),
        max_leaves=20,
    )
    return st.dictionaries(storable, values, max_size=5)


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("a\x00b", "a\ufffdb"),
        ("half an emoji \ud83d", "half an emoji \ufffd"),
        ("\udfff\ud800", "\ufffd\ufffd"),
        ("a whole one \U0001f600", "a whole one \U0001f600"),
        ("\x01\x1f\u2028\ufeff\ufffe", "\x01\x1f\u2028\ufeff\ufffe"),
        ("", ""),
    ],
)
def test_what_postgresql_cannot_hold_is_replaced(text: str, stored: str) -> None:
    """NUL and lone surrogates become U+FFFD; everything else stays as it is."""
    assert clean_text(text) == stored
    assert checked_text(text, what="query") == stored


@given(any_text)
def test_cleaned_text_can_be_stored_and_cleaning_again_changes_nothing(text: str) -> None:
    """One character for one: nothing is lost or moved."""
    cleaned = clean_text(text)
    assert cleaned.encode().decode() == cleaned
    assert "\x00" not in cleaned
    assert len(cleaned) == len(text)
    assert clean_text(cleaned) == cleaned


def test_text_up_to_the_limit_is_kept_whole() -> None:
    """The limit counts bytes in UTF-8, after cleaning; the error has both numbers and no text."""
    assert len(checked_text("a" * TEXT_BYTES_MAX, what="query")) == TEXT_BYTES_MAX == 1 << 20
    assert checked_text("語語", what="query", bytes_max=6) == "語語"
    for text, size in [("語語a", 7), ("\x00\x00a", 7), (SECRET, len(SECRET))]:
        with pytest.raises(MemoryContractError) as raised:
            checked_text(text, what="answer", bytes_max=6)
        assert raised.value.message == "The answer is too large"
        assert raised.value.detail == f"{size} bytes, at most 6"
        assert "AFTERTURN_TEXT_BYTES_MAX" in raised.value.hint
        assert text not in str(raised.value)


@pytest.mark.parametrize("value", [None, 5, SECRET.encode(), [SECRET], {"text": SECRET}])
def test_what_is_not_text_is_refused_by_its_type(value: Any) -> None:
    """The error names the type and holds nothing of the value."""
    with pytest.raises(MemoryContractError, match=f"must be text .got {type(value).__name__}") as e:
        checked_text(value, what="query")
    assert SECRET not in str(e.value)


@pytest.mark.parametrize("value", ["a", "0", "-", "t-1_2:3.4", "A" * 160, "user:assistant"])
def test_ids_are_letters_digits_and_four_marks(value: str) -> None:
    """They are returned as they were given."""
    assert checked_id(value, what="turn_id", characters_max=160) == value


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a b",
        "a\n",
        "é",
        "a/b",
        "a\x00",
        "\ud800",
        "\u0661",
        "a" * 161,
        "<b>",
        "a,b",
        "%",
        "a@b",
    ],
)
def test_other_ids_are_refused_without_being_shown(value: str) -> None:
    """An id that could be text is not repeated in the error, only its length and the rule."""
    with pytest.raises(MemoryContractError, match=r"Not a valid turn_id .*1 to 160 ASCII") as e:
        checked_id(value, what="turn_id", characters_max=160)
    assert f"{len(value)} characters" in str(e.value)
    assert len(value) < 3 or value not in str(e.value)


def test_ids_have_their_limits() -> None:
    """160 characters for turns, so that `{turn}:{speaker}:{layer}` fits a record's 200."""
    assert (TURN_ID_CHARACTERS_MAX, RECORD_ID_CHARACTERS_MAX, SESSION_CHARACTERS_MAX) == (
        160,
        200,
        200,
    )
    longest = checked_id("a" * 200, what="session", characters_max=SESSION_CHARACTERS_MAX)
    with pytest.raises(MemoryContractError, match="201 characters"):
        checked_id(longest + "a", what="session", characters_max=SESSION_CHARACTERS_MAX)


@pytest.mark.parametrize("value", [None, 5, b"t1", ["t1"]])
def test_an_id_that_is_not_text_is_refused(value: Any) -> None:
    """A number is not quietly written out."""
    with pytest.raises(MemoryContractError, match=f"got {type(value).__name__}"):
        checked_id(value, what="turn_id", characters_max=160)


@given(metadata_of(storable))
def test_metadata_is_kept_as_it_is(metadata: dict[str, Any]) -> None:
    """In a copy: a later change of either does not reach the other."""
    checked = checked_metadata(metadata)
    assert checked == metadata
    checked["added"] = 1
    assert "added" not in metadata


@given(metadata_of(any_text))
def test_metadata_of_any_text_can_be_stored(metadata: dict[str, Any]) -> None:
    """What cannot be stored in its values is replaced; checking again changes nothing."""
    checked = checked_metadata(metadata)
    written = json.dumps(checked, ensure_ascii=False, allow_nan=False)
    assert clean_text(written).encode().decode() == written
    assert json.loads(written) == checked == checked_metadata(checked)


def test_nested_values_are_copied_and_cleaned() -> None:
    """A later change of the caller's object does not reach what was handed over."""
    given_tags = ["a", ("b\x00", {"deep": "\ud800"})]
    checked = checked_metadata({"tags": given_tags, "level": Level.HIGH})
    given_tags.append("later")
    assert checked == {"tags": ["a", ["b\ufffd", {"deep": "\ufffd"}]], "level": 3}


def test_no_metadata_is_an_empty_object() -> None:
    """`None` and `{}` are the same."""
    assert checked_metadata(None) == checked_metadata({}) == {}


@pytest.mark.parametrize("metadata", [[SECRET], SECRET, 5, [("a", SECRET)], {SECRET}, b"{}"])
def test_metadata_that_is_no_object_is_refused(metadata: Any) -> None:
    """By its type; nothing of it is shown."""
    with pytest.raises(MemoryContractError, match=f"got {type(metadata).__name__}") as raised:
        checked_metadata(metadata)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "the float nan"),
        (float("inf"), "the float inf"),
        (float("-inf"), "the float -inf"),
        (datetime.now(UTC), "datetime"),
        ({SECRET}, "set"),
        (SECRET.encode(), "bytes"),
        (object(), "object"),
        (10**1_000, "int"),
    ],
)
@pytest.mark.parametrize("nesting", [lambda v: v, lambda v: [v], lambda v: {"inner": [v]}])
def test_a_value_that_is_not_json_is_refused_naming_its_key(
    value: Any, shown: str, nesting: Any
) -> None:
    """The top-level key and the type, however deep it stands; never the value."""
    with pytest.raises(MemoryContractError) as raised:
        checked_metadata({"fine": 1, "mood": nesting(value)})
    assert raised.value.detail == f"key 'mood' holds {shown}"
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("key", [5, None, 1.5, True, ("a",), b"a", "a\x00", "\ud800"])
def test_a_key_that_is_not_storable_text_is_refused(key: Any) -> None:
    """At the top and below: no number becomes a text, no character of a key is replaced."""
    with pytest.raises(MemoryContractError, match="A metadata key must be text") as raised:
        checked_metadata({key: 1})
    assert ascii(key) in raised.value.detail
    with pytest.raises(MemoryContractError, match="below key 'outer'"):
        checked_metadata({"outer": [{"inner": {key: 1}}]})


def test_metadata_may_be_nested_to_a_depth_that_does_not_depend_on_the_stack() -> None:
    """Too deep and circular objects are refused, naming the key."""

    def nested(levels: int) -> Any:
        value: Any = "leaf"
        for level in range(levels):
            value = [value] if level % 2 else {"k": value}
        return value

    assert checked_metadata({"deep": nested(METADATA_DEPTH_MAX - 1)})
    circular: list[Any] = []
    circular.append(circular)
    for value in (nested(METADATA_DEPTH_MAX), nested(100_000), circular):
        with pytest.raises(MemoryContractError, match="key 'deep' holds too many levels"):
            checked_metadata({"deep": value})


def test_metadata_up_to_the_limit_is_kept_and_more_is_refused_naming_the_largest_key() -> None:
    """The limit is 64 KiB of JSON in UTF-8: a letter of any script counts with its bytes."""
    frame = len(json.dumps({"small": 1, "notes": ""}))
    for letter in ("a", "é", "語", "😀"):
        letters = (METADATA_BYTES_MAX - frame) // len(letter.encode())
        fitting = {"small": 1, "notes": letter * letters}
        assert checked_metadata(fitting) == fitting
        with pytest.raises(MemoryContractError, match="the largest is 'notes'") as raised:
            checked_metadata({"small": 1, "notes": letter * (letters + 1)})
        assert f"at most {METADATA_BYTES_MAX}" in raised.value.detail
    with pytest.raises(MemoryContractError) as raised:
        checked_metadata({"k" * 70_000: 1})
    assert len(str(raised.value)) < 300


@given(
    st.datetimes(timezones=st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m))))
)
def test_times_are_kept_in_utc(value: datetime) -> None:
    """The same moment, or an error at the edge of the calendar where UTC has no such year."""
    earliest, latest = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    if not earliest <= value <= latest:
        with pytest.raises(MemoryContractError, match="years 1 to 9999"):
            checked_time(value, what="occurred_at")
        return
    checked = checked_time(value, what="occurred_at")
    assert checked == value
    assert checked is not None
    assert checked.tzinfo is UTC


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_time_beyond_the_calendar_is_refused(hours: int) -> None:
    """Where the year in UTC would be 0 or 10000."""
    edge = datetime.max if hours < 0 else datetime.min  # noqa: DTZ901 - it gets a zone below
    with pytest.raises(MemoryContractError, match="outside the years 1 to 9999"):
        checked_time(edge.replace(tzinfo=timezone(timedelta(hours=hours))), what="occurred_at")


def test_a_time_without_a_zone_is_refused() -> None:
    """The error says which time, and shows how to pass one that has a zone."""
    with pytest.raises(MemoryContractError, match=r"occurred_at has no time zone.*timezone\.utc"):
        checked_time(datetime(2024, 3, 31, 2, 30), what="occurred_at")  # noqa: DTZ001
    assert checked_time(None, what="occurred_at") is None


@pytest.mark.parametrize("value", [5, "2024-01-01T00:00:00Z", datetime.now(UTC).date()])
def test_what_is_not_a_datetime_is_refused(value: Any) -> None:
    """By its type."""
    with pytest.raises(
        MemoryContractError, match=f"must be a datetime .got {type(value).__name__}"
    ):
        checked_time(value, what="occurred_at")


async def test_what_passed_is_what_postgresql_gives_back(database: Database) -> None:
    """Text with every replaced character and metadata with every kind of value survive a trip."""
    text = checked_text("a\x00\ud83d \x01 語 😀 \ufeff \u2028", what="query")
    metadata = checked_metadata(
        {"ключ": ["\x00", "\udfff", 1, -0.5, 1e300, 10**30, None, True, {"": "\x7f"}]}
    )
    async with database.connection() as connection:
        row = await connection.fetchrow("select $1::text as t, $2::jsonb as m", text, metadata)
    assert row is not None
    assert row["t"] == text
    assert row["m"] == metadata
