"""What enters is judged here, once: text, ids, metadata, times."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator

from afterturn.errors import MemoryContractError

TURN_ID_CHARACTERS_MAX: Final = 160
RECORD_ID_CHARACTERS_MAX: Final = 200
SESSION_CHARACTERS_MAX: Final = 200
TEXT_BYTES_MAX: Final = 1 << 20
METADATA_BYTES_MAX: Final = 64 << 10

_ID: Final = re.compile(r"[A-Za-z0-9_:.-]+")
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


def clean_text(text: str) -> str:
    """The text with NUL and lone surrogates, which PostgreSQL cannot hold, as U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def checked_text(text: str, *, what: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """Cleaned text within the size limit; larger text is refused, never cut."""
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
            detail=f"{len(value) if isinstance(value, str) else 0} characters",
            hint=f"Use 1 to {characters_max} ASCII letters, digits, '-', '_', ':' or '.'.",
        )
    return value


def checked_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """A JSON object of at most `METADATA_BYTES_MAX` bytes; a defect names its key."""
    if metadata is None:
        return {}
    checked: dict[str, Any] = {}
    for key, value in metadata.items():
        if not isinstance(key, str) or _UNSTORABLE.search(key):
            raise MemoryContractError(
                "A metadata key must be text without NUL or surrogates", detail=f"key {key!a}"
            )
        try:
            # Escapes keep surrogates visible here; json.loads gives a private copy.
            encoded = json.dumps(value, allow_nan=False, ensure_ascii=True)
        except (TypeError, ValueError):
            raise MemoryContractError(
                "Metadata must be JSON",
                detail=f"key {key!a} holds a {type(value).__name__}",
                hint="Convert it to text, numbers, booleans, lists or objects first.",
            ) from None
        checked[key] = _cleaned(json.loads(encoded), key)
    size = len(json.dumps(checked).encode())
    if size > METADATA_BYTES_MAX:
        largest = max(checked, key=lambda k: len(json.dumps(checked[k])))
        raise MemoryContractError(
            "Metadata is too large",
            detail=f"{size} bytes, at most {METADATA_BYTES_MAX}; the largest is {largest!a}",
        )
    return checked


def _cleaned(value: Any, key: str) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_cleaned(item, key) for item in value]
    if isinstance(value, dict):
        for inner in value:
            if _UNSTORABLE.search(inner):
                raise MemoryContractError(
                    "A metadata key must be text without NUL or surrogates",
                    detail=f"below key {key!a}",
                )
        return {inner: _cleaned(item, key) for inner, item in value.items()}
    return value


def checked_time(value: datetime | None, *, what: str) -> datetime | None:
    """An aware time in UTC; a naive one is refused, since its zone could only be guessed."""
    if value is None:
        return None
    if value.tzinfo is None or value.utcoffset() is None:
        raise MemoryContractError(
            f"{what} has no time zone",
            detail=value.isoformat(),
            hint="Pass an aware datetime, for example datetime.now(timezone.utc).",
        )
    return value.astimezone(UTC)


def _aware(value: datetime | None) -> datetime | None:
    return checked_time(value, what="A datetime")


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
Metadata = Annotated[dict[str, Any], BeforeValidator(checked_metadata)]
