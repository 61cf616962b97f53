"""Message lists as the OpenAI API has them.

    [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}, …]

or objects that hold one (`{"id": "…", "messages": […]}`), alone, in a list, or one a line; also one
message a line. A content is text or a list of parts. Times are looked for in `created_at`,
`create_time` and `timestamp`; there are usually none, and then the order of the file is kept.

Turns are named by the number of their first message, so importing a list that has grown adds what
is new. A conversation without an `id` is called after the file and its number in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from afterturn.importing.conversation import Conversation, Findings, Message, turn_id_of
from afterturn.importing.exchanges import Pairing, Spoken, role_of, text_of, time_of

PART_TURNS_MAX: Final = 500
"""A longer conversation is handed over in parts."""

_TIMES: Final = ("created_at", "create_time", "timestamp")


def is_message(value: object) -> bool:
    """Whether this is one message."""
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def messages_in(value: object) -> list[Any] | None:
    """The messages of an element that is a whole conversation, else None."""
    if isinstance(value, dict):
        value = value.get("messages")
    elif isinstance(value, list) and not any(is_message(each) for each in value):
        return None
    return value if isinstance(value, list) else None


@dataclass(slots=True)
class MessageReader:
    """Reads the messages of one conversation as they come, and gives it in parts."""

    conversation_id: str
    findings: Findings
    place: str = ""
    _number: int = 0
    _parts: int = 0
    _done: list[Message] = field(default_factory=list)
    _pairing: Pairing = field(init=False)

    def __post_init__(self) -> None:
        self._pairing = Pairing(self.findings)

    def read(self, messages: list[Any]) -> Iterator[Conversation]:
        """The whole conversation."""
        for message in messages:
            yield from self.add(message)
        yield from self.rest()

    def add(self, message: object) -> Iterator[Conversation]:
        """Take one message; a part of the conversation, whenever one is full."""
        self._number += 1
        if not isinstance(message, dict):
            place = f"{self.place}, " if self.place else ""
            self.findings.defect(f"{place}message {self._number}", "not an object")
            return
        spoken = self._spoken(message)
        if spoken is not None:
            self._take(self._pairing.add(spoken))
        if len(self._done) >= PART_TURNS_MAX:
            yield self._part()

    def rest(self) -> Iterator[Conversation]:
        """The last part."""
        self._take(self._pairing.rest())
        if self._done or not self._parts:
            yield self._part()

    def _spoken(self, message: Mapping[str, Any]) -> Spoken | None:
        role = role_of(message.get("role"), self.findings)
        if role is None:
            return None
        text = text_of(message.get("content"), self.findings)
        if not text.strip():
            calls = message.get("tool_calls") or message.get("function_call")
            self.findings.left_out["tool calls" if calls else "messages without text"] += 1
            return None
        times = (time_of(message.get(key)) for key in _TIMES)
        return Spoken(role, text, str(self._number), next(filter(None, times), None))

    def _take(self, ended: list[Spoken] | None) -> None:
        if ended:
            turn_id = turn_id_of(self.conversation_id, ended[0].message_id)
            self._done.append(self._pairing.message(ended, turn_id, None))

    def _part(self) -> Conversation:
        done, self._done = self._done, []
        self._parts += 1
        return Conversation(self.conversation_id, None, tuple(done), continues=self._parts > 1)
