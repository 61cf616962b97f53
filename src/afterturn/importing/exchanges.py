"""Messages with roles, paired into turns: what the user said and what the assistant answered.

A message of the user begins a turn; what the assistant says until the next one is its answer. An
assistant that speaks first gives a turn with an answer alone. Only text is taken: instructions,
tools, pictures and the like are counted and left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from afterturn.importing.conversation import Findings, Message

ANSWER_CHARACTERS_MAX: Final = 200_000
"""An answer in many messages is split where it would become longer."""

_LEFT_OUT_ROLES: Final = {
    "system": "system messages",
    "developer": "system messages",
    "tool": "tool messages",
    "function": "tool messages",
}
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})
_STEP: Final = timedelta(milliseconds=1)
_MILLISECONDS_FROM: Final = 1e11
"""Seconds since 1970 are smaller than this until the year 5138; what is larger is milliseconds."""


@dataclass(slots=True)
class Spoken:
    """One message of a file, reduced to what matters here."""

    role: str
    text: str
    message_id: str
    occurred_at: datetime | None


@dataclass(slots=True)
class Pairing:
    """Pairs the messages of one conversation; `turn_id` makes the id of a turn from its first
    message's."""

    findings: Findings
    turn_ids: Mapping[str, str] = field(default_factory=dict)
    _open: list[Spoken] = field(default_factory=list)
    _last: datetime | None = None

    def add(self, spoken: Spoken) -> list[Spoken] | None:
        """Take the next message; the messages of the turn that it ends, if it ends one."""
        ended = None
        if self._open and (spoken.role == "user" or self._is_full(spoken)):
            ended, self._open = self._open, []
        self._open.append(spoken)
        return ended

    def rest(self) -> list[Spoken] | None:
        """The messages of the last turn."""
        ended, self._open = self._open, []
        return ended or None

    def message(self, ended: list[Spoken], turn_id: str, session: str | None) -> Message:
        """The turn that these messages are. Times only ever grow within a conversation."""
        query = ended[0].text if ended[0].role == "user" else None
        answers = ended[1:] if query is not None else ended
        at = next((each.occurred_at for each in ended if each.occurred_at), None)
        if at is None:
            self.findings.undated += 1
            at = None if self._last is None else self._last + _STEP
        elif self._last is not None and at <= self._last:
            at = self._last + _STEP
        self._last = at or self._last
        return Message(
            turn_id=turn_id,
            query=query,
            answer="\n\n".join(each.text for each in answers) or None,
            session=session,
            occurred_at=at,
        )

    def _is_full(self, spoken: Spoken) -> bool:
        size = sum(len(each.text) for each in self._open) + len(spoken.text)
        return self._open[-1].role != "user" and size > ANSWER_CHARACTERS_MAX


def role_of(role: object, findings: Findings) -> str | None:
    """`user` or `assistant`; None for what is left out."""
    if role in ("user", "assistant"):
        return str(role)
    known = _LEFT_OUT_ROLES.get(role) if isinstance(role, str) else None
    findings.left_out[known or "messages of another role"] += 1
    return None


def text_of(content: object, findings: Findings) -> str:
    """The text of a message's content: a string, or a list of parts of which text is one kind."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        findings.left_out["contents that are neither text nor parts"] += 1
        return ""
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str) and _is_text(part):
            texts.append(part["text"])
        else:
            findings.left_out[_kind_of(part)] += 1
    return "\n".join(text for text in texts if text)


def time_of(value: object) -> datetime | None:
    """A moment: seconds or milliseconds since 1970, or ISO 8601 (UTC where it has no zone)."""
    try:
        if isinstance(value, str):
            at = datetime.fromisoformat(value.strip())
            return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        if not math.isfinite(value) or value <= 0:
            return None
        return datetime.fromtimestamp(value / 1000 if value >= _MILLISECONDS_FROM else value, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _is_text(part: Mapping[str, Any]) -> bool:
    return part.get("type", "text") in _TEXT_PARTS


def _kind_of(part: object) -> str:
    if not isinstance(part, dict):
        return "parts that are no objects"
    kind = str(part.get("type") or part.get("content_type") or "")
    for word in ("image", "audio", "video", "file"):
        if word in kind:
            return f"{word} parts"
    return "parts of another kind"
