"""What enters is judged here, once: text, ids, metadata, times."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BeforeValidator

from afterturn.errors import MemoryContractError

TURN_ID_CHARACTERS_MAX: Final = 160
RECORD_ID_CHARACTERS_MAX: Final = 200
SESSION_CHARACTERS_MAX: Final = 200
TEXT_BYTES_MAX: Final = 1 << 20
METADATA_BYTES_MAX: Final = 64 << 10
METADATA_ADDED_BYTES_MAX: Final = 8 << 10
"""Room in a record beyond a caller's limit, for what afterturn adds: speaker, names, ids."""
METADATA_DEPTH_MAX: Final = 64

T = TypeVar("T")

_ID: Final = re.compile(r"[A-Za-z0-9_:.-]+")
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


def clean_text(text: str) -> str:
    """The text with NUL and lone surrogates, which PostgreSQL cannot hold, as U+FFFD."""
    if (
        text.isascii() and "\0" not in text
    ):  # what most text is, told without looking at each letter
        return text
    return _UNSTORABLE.sub("\ufffd", text)


def checked_text(text: str, *, what: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """Cleaned text within the size limit; larger text is refused, never cut."""
    if not isinstance(text, str):
        raise MemoryContractError(f"The {what} must be text", detail=f"got {_type(text)}")
    cleaned = clean_text(text)
    size = len(cleaned.encode())
    if size > bytes_max:
        raise MemoryContractError(
            f"The {what} is too large",
            detail=f"{size} bytes, at most {bytes_max}",
            hint="Hand over the text in several turns, or raise AFTERTURN_TEXT_BYTES_MAX.",
        )
    return cleaned


def checked_id(value: str, *, what: str, characters_max: int) -> str:
    """An id of letters, digits, `-`, `_`, `:` and `.`: ids travel in messages, text must not."""
    if not isinstance(value, str) or len(value) > characters_max or _ID.fullmatch(value) is None:
        raise MemoryContractError(
            f"Not a valid {what}",
            detail=f"{len(value)} characters" if isinstance(value, str) else f"got {_type(value)}",
            hint=f"Use 1 to {characters_max} ASCII letters, digits, '-', '_', ':' or '.'.",
        )
    return value


def checked_list(values: Iterable[T], *, what: str) -> list[T]:
    """Several values; a single text is refused, since its letters would pass for them."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise MemoryContractError(
            f"The {what} must be a list",
            detail=f"got {_type(values)}",
            hint=f"Pass {what}=[...], also for a single one.",
        )
    return list(values)


def checked_ids(values: Iterable[str], *, what: str, characters_max: int) -> list[str]:
    """Several ids."""
    several = checked_list(values, what=f"{what}s")
    return [checked_id(each, what=what, characters_max=characters_max) for each in several]


def checked_number(value: int, *, what: str, at_least: int = 0) -> int:
    """A number that PostgreSQL can count to."""
    if not isinstance(value, int) or not at_least <= value < 1 << 63:
        small = isinstance(value, int) and abs(value) < 1 << 63
        raise MemoryContractError(
            f"The {what} must be a whole number, at least {at_least} and below 2**63",
            detail=f"got {value if small else _type(value)}",
        )
    return value


def checked_seconds(value: float, *, what: str) -> float:
    """A length of time, 0 or more; without end is `math.inf`."""
    if not isinstance(value, int | float) or not value >= 0:  # NaN is neither
        shown = value if isinstance(value, int | float) else _type(value)
        raise MemoryContractError(
            f"The {what} must be a number of seconds, 0 or more", detail=f"got {shown}"
        )
    return value


def checked_metadata(
    metadata: Mapping[str, Any] | None, *, bytes_max: int = METADATA_BYTES_MAX
) -> dict[str, Any]:
    """A private copy of a JSON object of at most `bytes_max` bytes; a defect names its key."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise MemoryContractError(
            "Metadata must be an object of keys and values", detail=f"got {_type(metadata)}"
        )
    checked = {
        _checked_key(key, f"key {_shown(key)}"): _checked_json(value, f"key {_shown(key)}", 1)
        for key, value in metadata.items()
    }
    size = _json_bytes(checked)
    if size > bytes_max:
        largest = max(checked, key=lambda key: _json_bytes(checked[key]))
        raise MemoryContractError(
            "Metadata is too large",
            detail=f"{size} bytes, at most {bytes_max}; the largest is {_shown(largest)}",
        )
    return checked


def _checked_key(key: object, where: str) -> str:
    if not isinstance(key, str) or _UNSTORABLE.search(key):
        raise MemoryContractError(
            "A metadata key must be text without NUL or surrogates", detail=where
        )
    return key


def _checked_json(value: Any, where: str, depth: int) -> Any:
    """The value as JSON holds it. The depth is bounded by number: what the stack allows differs."""
    if isinstance(value, str):
        return clean_text(value)
    if value is None or (isinstance(value, int) and abs(value) < 10**1_000):
        return value
    if isinstance(value, float) and math.isfinite(value):
        # From here on jsonb gives back an integer: equal only if it goes in as one.
        return int(value) if abs(value) >= 1e16 else value
    if isinstance(value, (list, tuple, dict)) and depth < METADATA_DEPTH_MAX:
        if isinstance(value, dict):
            return {
                _checked_key(key, f"below {where}"): _checked_json(each, where, depth + 1)
                for key, each in value.items()
            }
        return [_checked_json(each, where, depth + 1) for each in value]
    nested = isinstance(value, (list, tuple, dict))
    raise MemoryContractError(
        "Metadata must be JSON",
        detail=f"{where} holds {'too many levels' if nested else _type(value)}",
        hint=f"Use text, finite numbers, booleans, null, and at most {METADATA_DEPTH_MAX} levels "
        "of lists and objects.",
    )


def _json_bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())


def _type(value: object) -> str:
    return f"{type(value).__name__}" if not isinstance(value, float) else f"the float {value}"


def _shown(key: object) -> str:
    text = ascii(key)
    return text if len(text) <= 80 else text[:77] + "..."


def checked_time(value: datetime | None, *, what: str) -> datetime | None:
    """An aware time in UTC; a naive one is refused, since its zone could only be guessed."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise MemoryContractError(f"{what} must be a datetime", detail=f"got {_type(value)}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise MemoryContractError(
            f"{what} has no time zone",
            detail=value.isoformat(),
            hint="Pass an aware datetime, for example datetime.now(timezone.utc).",
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise MemoryContractError(
            f"{what} is outside the years 1 to 9999 in UTC", detail=value.isoformat()
        ) from None


def _aware(value: datetime | None) -> datetime | None:
    return checked_time(value, what="A datetime")


def _record_metadata(value: Any) -> dict[str, Any]:
    return checked_metadata(value, bytes_max=METADATA_BYTES_MAX + METADATA_ADDED_BYTES_MAX)


def _turn_id(value: str) -> str:
    return checked_id(value, what="turn_id", characters_max=TURN_ID_CHARACTERS_MAX)


def _record_id(value: str) -> str:
    return checked_id(value, what="record_id", characters_max=RECORD_ID_CHARACTERS_MAX)


def _session(value: str) -> str:
    return checked_id(value, what="session", characters_max=SESSION_CHARACTERS_MAX)


Time = Annotated[datetime, AfterValidator(_aware)]
TurnId = Annotated[str, AfterValidator(_turn_id)]
RecordId = Annotated[str, AfterValidator(_record_id)]
SessionId = Annotated[str, AfterValidator(_session)]
Metadata = Annotated[dict[str, Any], BeforeValidator(_record_metadata)]
