"""The text that is indexed and embedded for a record: `(date) Speaker: text [caption]`.

Speaker and date are part of what people ask for ("what did Caroline do in May?"), so they are
part of the text on both sides: the embedding job and the lexical index use this one function.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

TURN_LAYERS: Final = frozenset({"working", "episodic"})

# Month names of our own: strftime's follow the process's locale.
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def index_text(
    text: str,
    metadata: Mapping[str, Any],
    *,
    layer: str,
    occurred_at: datetime | None,
    recorded_at: datetime | None,
) -> str:
    """The record's text with its date, the metadata's `speaker_name` and `caption` around it.

    A message that names no time happened when it was recorded; a fact did not, so a fact without
    `occurred_at` carries no date.
    """
    when = occurred_at or (recorded_at if layer in TURN_LAYERS else None)
    parts = []
    if when is not None:
        parts.append(f"({when.day} {_MONTHS[when.month - 1]} {when.year})")
    speaker_name = metadata.get("speaker_name")
    if isinstance(speaker_name, str) and speaker_name.strip():
        parts.append(f"{speaker_name.strip()}:")
    parts.append(text)
    caption = metadata.get("caption")
    if isinstance(caption, str) and caption.strip():
        parts.append(f"[{caption.strip()}]")
    return " ".join(parts)
