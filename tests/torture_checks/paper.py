"""A run on paper: notes with a clock that ticks once a note, and what is held at the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.torturing import judging, words
from tests.torturing.findings import Held
from tests.torturing.history import Event
from tests.torturing.judging import Violation
from tests.torturing.story import Said, stored, tell
from tests.torturing.words import Segments

CHAT: Segments = ("acme", "alice", "chat-4")
TRAP: Segments = ("acme", "alice", "chat-42")


@dataclass
class Paper:
    """Notes, in the order of the calls."""

    events: list[Event] = field(default_factory=list)
    held: Held = field(default_factory=Held)
    jobs: int = 0

    def note(self, event: str, op: str, **fields: Any) -> None:
        """One note; its time is its place."""
        self.events.append({"e": event, "t": len(self.events) + 1, "who": "p", "op": op, **fields})

    def begin(self, op: str, scope: Segments = CHAT, **fields: Any) -> None:
        """A turn begins and has its token."""
        sides = fields.pop("sides", "qa")
        markers = {side: words.marker(side, op) for side in sides}
        about = {"id": op, "session": None, "markers": markers, **fields}
        self.note("begin", op, scope=scope, **about)
        self.note("began", op)

    def finish(self, op: str, answer: str = "acked", **fields: Any) -> None:
        """The turn is handed over and answered."""
        self.note("finish", op)
        self.note(answer, op, **fields)

    def turn(self, op: str, scope: Segments = CHAT, **fields: Any) -> None:
        """A whole acknowledged turn."""
        self.begin(op, scope, **fields)
        self.finish(op)

    def ask(self, op: str, scope: Segments = CHAT, what: str = "scope", **fields: Any) -> None:
        """An erase is asked for."""
        about = {"turn_ids": [], "session": None, "derived": "erase", "via": "facade", **fields}
        self.note("forget", op, scope=scope, what=what, **about)

    def receipt(self, op: str, scope: Segments = CHAT) -> None:
        """Its receipt."""
        self.note("receipt", op, receipt=self.paper_of("forget", scope))

    def forget(self, op: str, scope: Segments = CHAT, what: str = "scope", **fields: Any) -> None:
        """An erase from request to receipt."""
        self.ask(op, scope, what, **fields)
        self.receipt(op, scope)

    def paper_of(self, kind: str, scope: Segments, **fields: Any) -> dict[str, Any]:
        """A receipt."""
        self.jobs += 1
        return {
            "job_id": self.jobs,
            "kind": kind,
            "scope_path": stored(scope),
            "outcome": "done",
            "completed_at": f"2030-01-01T00:00:{self.jobs:02}Z",
            **fields,
        }

    def saw(self, ops: list[str], scope: Segments = CHAT, **fields: Any) -> None:
        """A read that began just now and found the query of each of these ops at home."""
        seen: dict[str, list[str]] = {}
        for op in ops:
            said = tell(self.events).said[op]
            seen.setdefault(stored(said.scope), []).append(said.markers["q"])
        at = len(self.events) + 1
        self.note("look", "")
        about = {"via": "retrieve", "whole": False, "wanted": "", "seen": seen, **fields}
        self.note("saw", "", scope=scope, since=at, **about)

    def hold(self, op: str, *, layers: tuple[str, ...] = ("working", "episodic")) -> None:
        """The turn is there at the end, as it should be, or with some layers only."""
        said = tell(self.events).said[op]
        self.hold_item(said, kind="turn", turn_id=said.id, query=said.markers["q"])
        for side, speaker in (("q", "user"), ("a", "assistant")):
            for layer in layers if side in said.markers else ():
                name = f"{said.id}:{speaker}:{layer}"
                self.hold_record(said, name, layer, said.markers[side])
        for side in said.markers:
            self.held.tables[said.markers[side]] = Counter(
                {"afterturn.turns": 1, "afterturn.memories": len(layers)}
            )

    def hold_record(
        self, said: Said, name: str, layer: str, text: str, *, at: str = "", origin: str = "turn"
    ) -> None:
        """A record is there."""
        about = {"record_id": name, "layer": layer, "text": text, "origin": origin}
        self.hold_item(said, kind="record", at=at, **about)

    def hold_item(self, said: Said, *, at: str = "", **item: Any) -> None:
        """Anything is there."""
        self.held.add({"scope_path": at or stored(said.scope), **item})

    def violations(self) -> list[Violation]:
        """All that the auditor finds."""
        story = tell(self.events)
        verdicts = judging.judge(story)
        return [
            *judging.check_held(verdicts, self.held),
            *judging.check_tokens(story, verdicts),
            *judging.check_looks(story, verdicts),
            *judging.check_alarms(story),
            *judging.check_order(story.receipts),
        ]

    def codes(self) -> set[str]:
        """Their kinds."""
        return {violation.code for violation in self.violations()}

    def fate(self, op: str) -> str:
        """What the notes say must be at the end."""
        return judging.judge(tell(self.events))[op].fate
