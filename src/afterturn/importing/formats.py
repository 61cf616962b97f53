"""Reading a file: which format it is of, and its conversations one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from afterturn.errors import MemoryContractError
from afterturn.importing.chatgpt import is_chatgpt, read_chatgpt
from afterturn.importing.conversation import Conversation, Findings, Malformed, Reading
from afterturn.importing.elements import Element, elements
from afterturn.importing.locomo import LocomoReader, is_locomo
from afterturn.importing.messages import MessageReader, is_message, messages_in
from afterturn.scope import SEGMENT_CHARACTERS_MAX, MemoryScope

Format = Literal["auto", "locomo", "chatgpt", "messages"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)

_UNKNOWN: Final = (
    "not of a known format: LoCoMo is a list of objects, each with a `sample_id` and a "
    "`conversation`; a ChatGPT export one of objects with a `mapping`; messages have a `role` and "
    "a `content`"
)


def read_file(file: Path, format_name: Format = "auto") -> Reading:
    """The whole file in memory. Never raises: what cannot be read is a defect with its place."""
    reading = Reading()
    for conversation in stream_file(file, reading, format_name):
        reading.conversations.append(conversation)
    return reading


@dataclass(slots=True)
class Survey(Findings):
    """What a file holds: how many conversations and turns, and what was found besides."""

    conversations: int = 0
    turns: int = 0


def survey_file(file: Path, format_name: Format = "auto") -> Survey:
    """Go through a file without handing anything over."""
    survey = Survey()
    for conversation in stream_file(file, survey, format_name):
        survey.conversations += not conversation.continues
        survey.turns += len(conversation.messages)
    return survey


def stream_file(
    file: Path, findings: Findings, format_name: Format = "auto"
) -> Iterator[Conversation]:
    """The conversations of a file as they come, long ones in parts; the rest into `findings`.

    At most one element of the file (16 MiB) is in memory.
    """
    reader = _FileReader(file.stem, findings, format_name)
    for element in elements(file):
        yield from reader.read(element)
    yield from reader.end()


class _FileReader:
    def __init__(self, name: str, findings: Findings, format_name: Format) -> None:
        self._name = name
        self._findings = findings
        self._format = format_name
        self._locomo = LocomoReader(findings)
        self._messages: MessageReader | None = None
        self._row = -1
        self._unknown: list[Element] = []
        self._conversations = 0
        self._taken: dict[str, int] = {}

    def read(self, element: Element) -> Iterator[Conversation]:
        """What an element adds."""
        if element.defect:
            place = f"conversation {element.number}, {element.place}"
            is_whole_file = element.number <= 1 and not self._conversations
            self._findings.defect(element.place if is_whole_file else place, element.defect)
            return
        if self._format == "auto":
            self._format = _format_of(element.value)
            if self._format == "auto":
                if len(self._unknown) < 10:
                    self._unknown.append(element)
                return
            for unknown in self._unknown:
                self._findings.defect(f"conversation {unknown.number}", "not a conversation")
            self._unknown.clear()
        match self._format:
            case "locomo":
                conversation = self._locomo.read(element.value, element.number)
                if conversation is not None:
                    self._conversations += 1
                    yield conversation
            case "chatgpt":
                yield from self._read_chatgpt(element)
            case "messages":
                yield from self._read_messages(element)

    def end(self) -> Iterator[Conversation]:
        """What is left when the file ends."""
        yield from self._end_of_messages()
        if not self._conversations and not self._findings.defects:
            known = self._format != "auto"
            self._findings.defect("", "there is no conversation in it" if known else _UNKNOWN)

    def _read_chatgpt(self, element: Element) -> Iterator[Conversation]:
        place = f"conversation {element.number}"
        if not isinstance(element.value, dict):
            self._findings.defect(place, "not an object")
            return
        own = element.value.get("conversation_id") or element.value.get("id")
        conversation_id = self._named(own, element.number)
        if conversation_id is None:
            return
        try:
            conversation = read_chatgpt(element.value, conversation_id, place, self._findings)
        except Malformed as malformed:
            self._findings.defect(malformed.place, malformed.reason)
            return
        self._conversations += 1
        yield conversation

    def _read_messages(self, element: Element) -> Iterator[Conversation]:
        whole = messages_in(element.value)
        if whole is None and not is_message(element.value):
            place = f"conversation {element.number}"
            if element.row == self._row and self._messages is not None:
                yield from self._messages.add(element.value)
            else:
                self._findings.defect(place, "neither a message nor a list of messages")
            return
        if whole is not None:
            yield from self._end_of_messages()
            own = element.value.get("id") if isinstance(element.value, dict) else None
            reader = self._reader(own, element.number)
            if reader is not None:
                yield from reader.read(whole)
            return
        if self._messages is None or element.row != self._row:
            yield from self._end_of_messages()
            self._row = element.row
            self._messages = self._reader(None, max(element.row, 1))
        if self._messages is not None:
            yield from self._messages.add(element.value)

    def _reader(self, own: object, number: int) -> MessageReader | None:
        conversation_id = self._named(own, number)
        if conversation_id is None:
            return None
        self._conversations += 1
        return MessageReader(conversation_id, self._findings, f"conversation {number}")

    def _end_of_messages(self) -> Iterator[Conversation]:
        if self._messages is not None:
            yield from self._messages.rest()
            self._messages = None

    def _named(self, own: object, number: int) -> str | None:
        """The id of a conversation: its own, else the file's name and its number.

        None, with a defect, where it is the id of another one.
        """
        name = f"{self._name}-{number}"[-SEGMENT_CHARACTERS_MAX:]
        if isinstance(own, str) and own:
            with contextlib.suppress(MemoryContractError):
                name = MemoryScope.of(own).segments[0]
        first = self._taken.setdefault(name, number)
        if first != number:
            self._findings.defect(
                f"conversation {number}", f"its id is that of conversation {first}"
            )
            return None
        return name


def _format_of(value: Any) -> Format:
    """The format that an element shows, `auto` where it shows none."""
    if is_locomo(value):
        return "locomo"
    if is_chatgpt(value):
        return "chatgpt"
    if is_message(value) or messages_in(value) is not None:
        return "messages"
    return "auto"
