"""What happened, put together from the notes of all processes: things said, erases, looks.

Times are those of the notes: a call lies between the note before it and the note after it. A
process that was killed left the second one out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from tests.torturing.history import Event
from tests.torturing.words import Segments, covers

Outcome = Literal["acked", "refused", "unknown"]


class Effect(Enum):
    """What an erase does to what was said."""

    NONE = "none"
    MAY = "may"
    MUST = "must"


@dataclass
class Said:
    """A turn, or a record written by hand."""

    op: str
    kind: Literal["turn", "record"]
    scope: Segments
    id: str
    session: str | None
    markers: dict[str, str]
    began_at: int
    mood: str = "plain"
    lift: int = 0
    degrade: bool = False
    begun_at: int | None = None  # from here on its token was captured
    tried_at: int | None = None
    answered_at: int | None = None
    published_at: int | None = None  # from here on readers find it
    acked: bool = False
    refused: str = ""  # by what
    reason: str = ""
    unanswered: bool = False  # the last attempt, or one before it, may have been kept
    ever_unknown: bool = False
    denied: bool = False  # handed over again after it was acknowledged, and answered "stale"

    @property
    def outcome(self) -> Outcome:
        """What the caller knows: nothing was kept unless it is acked, or unknown."""
        if self.acked:
            return "acked"
        return "unknown" if self.unanswered and not self.refused else "refused"

    @property
    def fact_path(self) -> str:
        """Where its extracted fact belongs."""
        return stored(self.scope[: self.lift] if self.lift else self.scope)


@dataclass
class Erase:
    """A forget of a scope, of named turns, or of a session at a scope."""

    op: str
    scope: Segments
    what: Literal["scope", "turns", "session"]
    turn_ids: frozenset[str]
    session: str | None
    derived: str
    asked_at: int
    standing_at: int | None = None  # the request was acknowledged
    done_at: int | None = None  # the receipt was there

    @property
    def is_sure(self) -> bool:
        """Whether it was acknowledged, so that it must have its effect in the end."""
        return self.standing_at is not None or self.done_at is not None

    def names(self, said: Said) -> bool:
        """Whether it is meant to take this."""
        if self.what == "scope":
            return covers(self.scope, said.scope)
        if self.scope != said.scope or said.kind != "turn":
            return False
        if self.what == "turns":
            return said.id in self.turn_ids
        return self.session == said.session

    def effect_on(self, said: Said) -> Effect:
        """What it does to this, as far as the notes can tell."""
        if not self.names(said) or (self.done_at is not None and self.done_at < said.began_at):
            return Effect.NONE
        begun = said.begun_at is not None and said.begun_at < self.asked_at
        return Effect.MUST if begun and self.is_sure else Effect.MAY

    def makes_stale(self, said: Said) -> bool:
        """Whether `finish` must be refused: begun before it, finished after it."""
        return (
            covers(self.scope, said.scope)
            and self.done_at is not None
            and said.begun_at is not None
            and said.begun_at < self.asked_at
            and said.tried_at is not None
            and said.tried_at > self.done_at
        )

    def may_refuse(self, said: Said) -> bool:
        """Whether it explains a refusal: it stood, or advanced the scope or one above it."""
        overlaps = self.done_at is None or self.done_at > said.began_at
        asked_before = said.answered_at is None or self.asked_at < said.answered_at
        near = covers(self.scope, said.scope) or (
            self.derived == "erase" and self.scope[0] == said.scope[0]
        )
        return overlaps and asked_before and near


@dataclass
class Look:
    """One read that was answered: the markers seen, by path."""

    who: str
    via: str
    scope: Segments
    started_at: int
    ended_at: int
    whole: bool
    wanted: str
    seen: dict[str, list[str]]

    @property
    def is_last(self) -> bool:
        """Whether it was taken when all was settled and published."""
        return self.who.startswith("auditor")

    @property
    def markers(self) -> set[str]:
        """All markers seen, whatever their path."""
        return {word for words in self.seen.values() for word in words}


@dataclass
class Story:
    """Everything of the run."""

    said: dict[str, Said] = field(default_factory=dict)
    erases: dict[str, Erase] = field(default_factory=dict)
    looks: list[Look] = field(default_factory=list)
    receipts: list[dict[str, Any]] = field(default_factory=list)  # with `asked_at`, `told_at`
    alarms: list[Event] = field(default_factory=list)  # what processes found wrong themselves
    errors: list[Event] = field(default_factory=list)  # every event that quotes an error
    counts: dict[str, int] = field(default_factory=dict)
    _asked: dict[str, int] = field(default_factory=dict)

    def by_marker(self) -> dict[str, Said]:
        """Who said a marker."""
        return {word: said for said in self.said.values() for word in said.markers.values()}


def stored(scope: Iterable[str]) -> str:
    """The library's path of a scope."""
    from afterturn import MemoryScope

    return MemoryScope.of(*scope).path


def tell(events: Iterable[Event]) -> Story:
    """The story of a run from its events, each process's in order."""
    story = Story()
    for event in events:
        kind = event["e"]
        story.counts[kind] = story.counts.get(kind, 0) + 1
        if kind in ("crash", "violation"):
            story.alarms.append(event)
        if "error" in event:
            story.errors.append(event)
        if kind in ("begin", "remember"):
            story.said[event["op"]] = _said(event)
        elif kind == "forget":
            story.erases[event["op"]] = _erase(event)
            story._asked[event["op"]] = event["t"]
        elif kind == "flush":
            story._asked[event["op"]] = event["t"]
        elif kind == "saw":
            story.looks.append(_look(event))
        elif event.get("op") in story.said:
            _told_of_said(story.said[event["op"]], event)
        else:
            _told_of_job(story, event)
    return story


def _said(event: Event) -> Said:
    is_turn = event["e"] == "begin"
    return Said(
        op=event["op"],
        kind="turn" if is_turn else "record",
        scope=tuple(event["scope"]),
        id=event["id"],
        session=event.get("session"),
        markers=event["markers"],
        began_at=event["t"],
        mood=event.get("mood") or "plain",
        lift=event.get("lift", 0),
        degrade=bool(event.get("degrade")),
        unanswered=not is_turn,
        tried_at=None if is_turn else event["t"],
    )


def _erase(event: Event) -> Erase:
    return Erase(
        op=event["op"],
        scope=tuple(event["scope"]),
        what=event["what"],
        turn_ids=frozenset(event["turn_ids"]),
        session=event["session"],
        derived=event["derived"],
        asked_at=event["t"],
    )


def _look(event: Event) -> Look:
    return Look(
        who=event["who"],
        via=event["via"],
        scope=tuple(event["scope"]),
        started_at=event["since"],
        ended_at=event["t"],
        whole=event["whole"],
        wanted=event["wanted"],
        seen=event["seen"],
    )


def _told_of_said(said: Said, event: Event) -> None:
    at = event["t"]
    match event["e"]:
        case "began":
            said.begun_at = at
        case "finish":
            said.tried_at = said.tried_at or at
            said.unanswered = True
        case "pending":  # nothing was staged by this attempt; an earlier one may have been
            said.answered_at = at
            said.unanswered = said.ever_unknown
        case "unknown" | "crash":
            said.answered_at = at
            said.unanswered = said.ever_unknown = True
        case "refused" | "blank" | "begin_refused" | "abandoned":
            said.refused = event["e"]
            said.reason = event.get("error", "")
            said.answered_at = at
        case "denied":
            said.denied = True
        case "acked" if event.get("outcome") == "refused":
            said.refused = "refused"
        case "acked":
            said.acked = True
            said.answered_at = at
            said.begun_at = said.begun_at or at
            said.published_at = at if event.get("published") else None
        case _:
            return


def _told_of_job(story: Story, event: Event) -> None:
    erase = story.erases.get(event.get("op", ""))
    match event["e"]:
        case "requested" if erase is not None:
            erase.standing_at = event["t"]
        case "receipt" if erase is not None:
            erase.done_at = event["t"]
        case "flushed":
            published = story.said.get(event["of"])
            if published is not None and event["receipt"]["outcome"] == "done":
                published.published_at = event["t"]
        case _:
            return
    if "receipt" in event:
        story.receipts.append(
            {**event["receipt"], "asked_at": story._asked[event["op"]], "told_at": event["t"]}
        )
