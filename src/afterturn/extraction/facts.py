"""What makes two facts the same: their words, or the one thing that both are about.

A fact with a key says in its metadata what it is about: `subject` ("Nora") and `attribute`
("home"). Of such facts one is current, the latest by turn time; the others are its history. Use a
key only for what can have one value at a time. A fact without a key is known by its words.
"""

from __future__ import annotations

import re
import unicodedata
from hashlib import blake2b
from typing import Final

from afterturn.records import MemoryRecord

SUBJECT: Final = "subject"
ATTRIBUTE: Final = "attribute"
KEY_CHARACTERS_MAX: Final = 120

_SPACES: Final = re.compile(r"\s+")


def fact_key(record: MemoryRecord) -> tuple[str, str] | None:
    """Subject and attribute, normalised; `None` for a fact without a key."""
    subject = record.metadata.get(SUBJECT)
    attribute = record.metadata.get(ATTRIBUTE)
    if not isinstance(subject, str) or not isinstance(attribute, str):
        return None
    key = _normal(subject), _normal(attribute.replace("_", " ").replace("-", " "))
    return key if all(0 < len(part) <= KEY_CHARACTERS_MAX for part in key) else None


def fact_digest(text: str) -> str:
    """Hex of 16 bytes, equal for texts that differ in case, spacing and a final mark only."""
    return _digest(_normal(text).rstrip(" .!"))


def fact_id(text: str, key: tuple[str, str] | None = None) -> str:
    """The record id of a fact: by its key where it has one, else by its words."""
    return f"about:{_digest(chr(0).join(key))}" if key else f"fact:{fact_digest(text)}"


def _normal(text: str) -> str:
    return _SPACES.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()


def _digest(text: str) -> str:
    return blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()
