"""LoCoMo JSON: a list of conversations between two people, in dated sessions.

    [{"sample_id": "conv-26",
      "conversation": {
        "speaker_a": "…", "speaker_b": "…",
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [{"speaker": "…", "dia_id": "D1:1", "text": "…", "blip_caption": "…"}, …],
        …}}, …]

Times have no zone there and are read as UTC. A session has one time for all of its messages, so
its n-th message is dated n seconds after the first: that keeps them in order. Questions,
observations and summaries are not read, nor are links to pictures; a picture's caption is.

A conversation with a defect is left out as a whole and the defect reported; the others are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from afterturn.errors import MemoryContractError
from afterturn.importing.conversation import (
    Conversation,
    Findings,
    Malformed,
    Message,
    Reading,
    turn_id_of,
)
from afterturn.importing.times import session_time
from afterturn.intake import TURN_ID_CHARACTERS_MAX
from afterturn.scope import MemoryScope

NAME_CHARACTERS_MAX: Final = 200
_SESSION: Final = re.compile(r"session_([0-9]{1,9})")
_BETWEEN_MESSAGES: Final = timedelta(seconds=1)


def is_locomo(value: object) -> bool:
    """Whether this is laid out as a LoCoMo conversation."""
    return isinstance(value, dict) and isinstance(value.get("conversation"), dict)


class LocomoReader:
    """Reads the entries of a file one by one; ids may not come twice."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._seen: dict[str, int] = {}

    def read(self, entry: object, number: int) -> Conversation | None:
        """The conversation, whole; None for one with a defect, which is among the findings."""
        place = f"conversation {number}"
        try:
            conversation = _conversation(entry, place)
            first = self._seen.setdefault(conversation.conversation_id, number)
            if first != number:
                raise Malformed(place, f"its sample_id is that of conversation {first}")
        except Malformed as malformed:
            self._findings.defect(malformed.place, malformed.reason)
            return None
        return conversation


def read_locomo(document: object) -> Reading:
    """The conversations of a parsed file, whole ones only, and what is wrong with the others."""
    reading = Reading()
    reader = LocomoReader(reading)
    for number, entry in enumerate(_entries(document), start=1):
        conversation = reader.read(entry, number)
        if conversation is not None:
            reading.conversations.append(conversation)
    if not reading.conversations and not reading.defects:
        reading.defect("", "there is no conversation in it")
    return reading


def _entries(document: object) -> list[object]:
    if isinstance(document, list):
        return document
    return [document] if isinstance(document, dict) else []


def _conversation(entry: object, place: str) -> Conversation:
    if not isinstance(entry, dict) or not isinstance(entry.get("conversation"), dict):
        raise Malformed(place, "not an object with a `conversation`")
    identity = _identity(entry.get("sample_id"), place)
    place = f"{place} ({ascii(identity)[1:-1][:80]})"
    parts: dict[str, Any] = entry["conversation"]
    names = _names(parts, place)
    messages: dict[str, Message] = {}
    for key, lines in _sessions(parts, place):
        began = _began(parts, key, place)
        for number, line in enumerate(lines):
            message = _Line(
                f"{place}, {key}, message {number + 1}",
                identity,
                names,
                key,
                began + number * _BETWEEN_MESSAGES,
            ).read(line)
            if message.turn_id in messages:
                raise Malformed(f"{place}, {key}, message {number + 1}", "its dia_id came before")
            messages[message.turn_id] = message
    return Conversation(identity, names, tuple(messages.values()))


@dataclass(frozen=True, slots=True)
class _Line:
    """Where a message stands, and what it gets from there."""

    place: str
    conversation_id: str
    names: tuple[str, str]
    session: str
    at: datetime

    def read(self, line: object) -> Message:
        if not isinstance(line, dict):
            raise self._malformed("not an object")
        text, caption, speaker = line.get("text"), line.get("blip_caption"), line.get("speaker")
        if not isinstance(text, str):
            raise self._malformed("it has no text")
        if caption is not None and not isinstance(caption, str):
            raise self._malformed("its blip_caption is not text")
        if not isinstance(speaker, str) or speaker.strip() not in self.names:
            raise self._malformed("its speaker is neither speaker_a nor speaker_b")
        is_first = speaker.strip() == self.names[0]
        return Message(
            turn_id=self._turn_id(line.get("dia_id")),
            query=text if is_first else None,
            answer=None if is_first else text,
            session=self.session,
            caption=caption or None,
            occurred_at=self.at,
        )

    def _turn_id(self, dia_id: object) -> str:
        if not isinstance(dia_id, str) or not dia_id:
            raise self._malformed("it has no dia_id")
        turn_id = turn_id_of(self.conversation_id, dia_id)
        if len(turn_id) > TURN_ID_CHARACTERS_MAX:
            raise self._malformed(
                f"sample_id and dia_id have {len(turn_id)} characters together, "
                f"at most {TURN_ID_CHARACTERS_MAX}"
            )
        return turn_id

    def _malformed(self, reason: str) -> Malformed:
        return Malformed(self.place, reason)


def _identity(value: object, place: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise Malformed(place, "it has no sample_id")
    try:
        return MemoryScope.of(str(value)).segments[0]
    except MemoryContractError as error:
        raise Malformed(place, f"its sample_id cannot name a scope: {error}") from None


def _names(parts: Mapping[str, Any], place: str) -> tuple[str, str]:
    first, second = (_name(parts, key, place) for key in ("speaker_a", "speaker_b"))
    if first == second:
        raise Malformed(place, "speaker_a and speaker_b have the same name")
    return first, second


def _name(parts: Mapping[str, Any], key: str, place: str) -> str:
    value = parts.get(key)
    if not isinstance(value, str) or not 0 < len(value.strip()) <= NAME_CHARACTERS_MAX:
        raise Malformed(place, f"{key} is not a name of 1 to {NAME_CHARACTERS_MAX} characters")
    return value.strip()


def _sessions(parts: Mapping[str, Any], place: str) -> Iterator[tuple[str, list[object]]]:
    """Sessions by number; a date without a session (LoCoMo has such) is no session."""
    numbered = [(int(m[1]), key) for key in parts if (m := _SESSION.fullmatch(key))]
    for _, key in sorted(numbered):
        if not isinstance(parts[key], list):
            raise Malformed(f"{place}, {key}", "not a list of messages")
        yield key, parts[key]


def _began(parts: Mapping[str, Any], session: str, place: str) -> datetime:
    text = parts.get(f"{session}_date_time")
    if not isinstance(text, str):
        raise Malformed(f"{place}, {session}", f"there is no {session}_date_time")
    try:
        return session_time(text)
    except ValueError:
        raise Malformed(
            f"{place}, {session}_date_time",
            'not a time: expected for example "1:56 pm on 8 May, 2023" or ISO 8601',
        ) from None
