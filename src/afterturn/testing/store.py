"""What the reference holds, and the rules of memory as plainly as they can be written.

Everything is in dictionaries of one process and every step is done at once, so there are no locks
and no leases; what may be seen, what an erase takes, and which late work is refused is the same as
on PostgreSQL. The contracts in `afterturn.testing.contracts` hold both to that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from afterturn.errors import (
    ErasedScope,
    ErasePending,
    MemoryContractError,
    MemoryUnavailable,
    StaleTurn,
)
from afterturn.generations import token_from, vector_of
from afterturn.pipeline.staging import StagedTurn, Verdict
from afterturn.receipts import LifecycleOutcome, LifecycleReceipt
from afterturn.records import TURN_ORIGIN, MemoryLayer, MemoryRecord, Source, turn_records
from afterturn.schedules import Schedule
from afterturn.scope import MemoryScope, covering_paths
from afterturn.testing.clock import SettableClock
from afterturn.turns import TurnStatus
from afterturn.writes import Token

Key = tuple[str, str]
"""A path and an id within it."""

_ERASING: Final = "An erase that covers this scope has not completed"
_STALE: Final = "The turn began before an erase that covers its scope"


@dataclass(slots=True)
class HeldTurn:
    """A turn that was handed over."""

    said: StagedTurn
    staged_at: datetime
    token: list[int]
    number: int
    recorded: int | None = None
    extracted: int | None = None
    outcome: TurnStatus = "waiting"
    reason: str = ""
    attempts: int = 0

    @property
    def key(self) -> Key:
        """Path and turn id."""
        return self.said.scope.path, self.said.turn_id

    @property
    def is_open(self) -> bool:
        """Whether something is left to do."""
        return self.outcome == "waiting"


@dataclass(slots=True)
class HeldJob:
    """A flush or a forget, waiting or done."""

    job_id: int
    kind: Literal["flush", "forget"]
    scope: MemoryScope
    request: Mapping[str, Any]
    requested_at: datetime
    receipt: LifecycleReceipt | None = None


@dataclass(slots=True)
class HeldSchedule:
    """An erase to come."""

    shown: Schedule
    scope: MemoryScope
    request: Mapping[str, Any]


@dataclass(slots=True)
class ReferenceStore:
    """The tables, and what each step does to them."""

    clock: SettableClock = field(default_factory=SettableClock)
    reachable: bool = True
    not_covered: tuple[str, ...] = ()
    published: dict[Key, MemoryRecord] = field(default_factory=dict)
    pending: dict[Key, MemoryRecord] = field(default_factory=dict)
    turns: dict[Key, HeldTurn] = field(default_factory=dict)
    jobs: dict[int, HeldJob] = field(default_factory=dict)
    schedules: dict[int, HeldSchedule] = field(default_factory=dict)
    erase_numbers: dict[str, int] = field(default_factory=dict)
    content_numbers: dict[str, int] = field(default_factory=dict)
    last_number: int = 0

    # -- what may be done at all

    def require_reachable(self) -> None:
        """Every access begins here."""
        if not self.reachable:
            raise MemoryUnavailable(
                "The database cannot be reached", detail="the reference was made unreachable"
            )

    def erasing(self, path: str) -> bool:
        """Whether an erase that covers the path was requested and has not completed."""
        return any(
            job.receipt is None and job.kind == "forget" and covers(job.scope.path, path)
            for job in self.jobs.values()
        )

    def require_open(self, path: str) -> None:
        """Raise while an erase stands."""
        self.require_reachable()
        if self.erasing(path):
            raise ErasePending(_ERASING, hint="Try again when it is done.")

    def numbers(self, path: str) -> list[int]:
        """The erase numbers that cover a path, root first, 0 where nothing was erased."""
        return [self.erase_numbers.get(each, 0) for each in covering_paths(path)]

    def token(self, path: str) -> Token:
        """What a turn that begins now vouches for."""
        self.require_open(path)
        return token_from(path, self.numbers(path))

    def require_vouched(self, path: str, token: Token | None) -> None:
        """Raise unless a write to the path may go on with this token."""
        self.require_open(path)
        if token is None:
            if any(self.numbers(path)):
                raise ErasedScope(
                    "A write without a token met a scope that was erased before",
                    hint="Capture a token first and pass it on.",
                )
        elif vector_of(path, token) != self.numbers(path):
            raise StaleTurn(_STALE, hint="Begin a new turn.")

    def has_erased_source(self, record: MemoryRecord) -> bool:
        """Whether it names a turn that an erase took: one that is not there, of a scope with an
        erase that a writer to the record's scope vouches for nothing about."""
        vouched = frozenset(covering_paths(record.scope_path))
        return any(
            (source.turn_path, source.turn_id) not in self.turns
            and any(
                self.erase_numbers.get(each)
                for each in covering_paths(source.turn_path)
                if each not in vouched
            )
            for source in record.sources
        )

    # -- writing

    def keep(self, record: MemoryRecord) -> Literal["pending", "updated"]:
        """Keep a record until a flush; the same id in the same scope replaces."""
        key = record.scope_path, record.record_id
        known = key in self.pending or key in self.published
        self.pending[key] = record.model_copy(update={"recorded_at": self.clock.now()})
        return "updated" if known else "pending"

    def stage(self, turn: StagedTurn) -> Verdict:
        """Take a finished turn, unless it is known, stale, or an erase stands."""
        self.require_reachable()
        path = turn.scope.path
        if self.erasing(path):
            return "erasing"
        if (path, turn.turn_id) in self.turns:
            return "known"
        if list(turn.token) != self.numbers(path):
            return "stale"
        held = HeldTurn(turn, self.clock.now(), list(turn.token), self.draw())
        self.turns[held.key] = held
        return "staged"

    def record(self, turn: HeldTurn) -> None:
        """Publish a turn's raw records."""
        said = turn.said
        records = turn_records(
            query=said.query,
            answer=said.answer,
            scope=said.scope,
            extra_metadata=said.metadata,
            turn_id=said.turn_id,
        )
        for record in records:
            metadata = dict(record.metadata)
            if said.session:
                metadata["session"] = said.session
            if said.names:
                metadata["speaker_name"] = said.names[metadata["speaker"] != "user"]
            self.publish(
                record.model_copy(update={"metadata": metadata, "occurred_at": said.occurred_at})
            )
        turn.recorded = len(records)

    def publish(self, record: MemoryRecord) -> None:
        """Make a record readable, and move the number of its scope."""
        key = record.scope_path, record.record_id
        stamped = record.recorded_at or self.clock.now()
        self.published[key] = record.model_copy(update={"recorded_at": stamped})
        self.content_numbers[record.scope_path] = self.draw()

    def learn(self, fact: MemoryRecord) -> None:
        """Publish what an extractor learned; the same fact again adds its sources."""
        known = self.published.get((fact.scope_path, fact.record_id))
        if known is not None and known.text == fact.text:
            both = tuple(dict.fromkeys((*known.sources, *fact.sources)))
            fact = fact.model_copy(update={"sources": both})
        self.publish(fact)

    # -- reading

    def visible(self, scope: MemoryScope) -> Iterator[MemoryRecord]:
        """The published records whose scope covers the reader's."""
        self.require_open(scope.path)
        paths = frozenset(covering_paths(scope.path))
        return (record for (path, _), record in self.published.items() if path in paths)

    # -- flush and forget

    def enqueue(
        self, kind: Literal["flush", "forget"], scope: MemoryScope, request: Mapping[str, Any]
    ) -> int:
        """Add a job; an erase stands from here on."""
        self.require_reachable()
        job = HeldJob(self.draw(), kind, scope, dict(request), self.clock.now())
        self.jobs[job.job_id] = job
        return job.job_id

    def enqueue_due(self) -> None:
        """Turn the erases whose time has come into jobs."""
        now = self.clock.now()
        for held in self.schedules.values():
            if held.shown.state == "waiting" and held.shown.due_at <= now:
                job_id = self.enqueue("forget", held.scope, held.request)
                done = {"state": "done", "job_id": job_id, "ran_at": now}
                held.shown = held.shown.model_copy(update=done)

    def run_jobs(self, until: int | None = None) -> None:
        """Run the jobs in the order in which they were enqueued, up to this one."""
        self.require_reachable()
        for job_id in sorted(self.jobs):
            job = self.jobs[job_id]
            if job.receipt is None and (until is None or job_id <= until):
                job.receipt = self.flush(job) if job.kind == "flush" else self.forget(job)

    def receipt(self, job_id: int) -> LifecycleReceipt | None:
        """What a job did, None while it waits."""
        self.require_reachable()
        if job_id not in self.jobs:
            raise MemoryContractError("There is no such lifecycle job", detail=f"job {job_id}")
        return self.jobs[job_id].receipt

    def flush(self, job: HeldJob) -> LifecycleReceipt:
        """Record what was acknowledged before, then publish what waits in the subtree."""
        path = job.scope.path
        if self.erasing(path):
            return self._receipt(job, "superseded", Counter(), 0)
        for turn in self.turns.values():
            if covers(path, turn.key[0]) and turn.recorded is None and turn.number < job.job_id:
                self.record(turn)
        waiting = [key for key in self.pending if covers(path, key[0])]
        for key in waiting:
            self.publish(self.pending.pop(key))
        generation = self.content_numbers[path] = self.draw()
        return self._receipt(job, "done", Counter(memories=len(waiting)), generation)

    def forget(self, job: HeldJob) -> LifecycleReceipt:
        """Erase in every state, and see to what was learned elsewhere."""
        path = job.scope.path
        named = job.request.get("named")
        keeps = job.request.get("derived", "keep") == "keep"
        counts: Counter[str] = Counter()
        gone = self._named_turns(path, named) if named is not None else None
        heard = gone
        if gone is not None and named is not None:
            sides = self._named_sides(path, frozenset(named["record_ids"]))
            heard = gone | {turn_id for turn_id, _ in sides}
        outside, derived_outside = self._unlearn(path, gone, heard, keeps, counts)
        if named is None:
            self._erase_subtree(path, counts)
            for held in self.schedules.values():
                if covers(path, held.scope.path) and held.shown.state == "waiting":
                    gone_too = {"state": "erased", "scope_path": None}
                    held.shown = held.shown.model_copy(update=gone_too)
        else:
            self._erase_named(path, named, gone or frozenset(), counts)
            self._extract_again(path, heard or frozenset())
        generation = self.advance(path)
        for each in outside:
            self.advance(each)
        for each in {*outside, *({path} if named is not None else ())}:
            self._vouch_anew(each)
        return self._receipt(job, "done", counts, generation, derived_outside)

    def advance(self, path: str) -> int:
        """Move the erase number: turns that began before are stale from here on."""
        self.erase_numbers[path] = self.content_numbers[path] = self.draw()
        return self.erase_numbers[path]

    def draw(self) -> int:
        """A number greater than any before."""
        self.last_number += 1
        return self.last_number

    def _erase_subtree(self, path: str, counts: Counter[str]) -> None:
        for name, table in self._tables().items():
            doomed = [key for key in table if covers(path, key[0])]
            for key in doomed:
                del table[key]
            counts[name] += len(doomed)

    def _tables(self) -> dict[str, dict[Key, Any]]:
        return {"memories": self.published, "pending": self.pending, "turns": self.turns}

    def _named_turns(self, path: str, named: Mapping[str, Any]) -> frozenset[str]:
        session = named.get("session")
        of_session = {
            turn.said.turn_id
            for turn in self.turns.values()
            if turn.key[0] == path and session is not None and turn.said.session == session
        }
        return frozenset(named["turn_ids"]) | of_session

    def _unlearn(
        self,
        path: str,
        gone: frozenset[str] | None,
        heard: frozenset[str] | None,
        keeps: bool,
        counts: Counter[str],
    ) -> tuple[set[str], int]:
        """Take the erased turns out of the sources of records that are not erased themselves.

        `gone` are the turns of a named erase, `heard` these and those that lost a side, None for a
        whole subtree. Returns the other scopes touched, and how many records there were left
        standing because the erase `keeps` them.
        """
        outside: set[str] = set()
        kept: set[Key] = set()
        for table in (self.published, self.pending):
            for key, record in list(table.items()):
                if gone is None and covers(path, key[0]):
                    continue
                taken = gone if keeps and key[0] != path else heard
                left = tuple(s for s in record.sources if not _taken(s, path, taken))
                if left == record.sources:
                    continue
                if keeps and key[0] != path:
                    kept.add(key)
                    table[key] = record.model_copy(update={"sources": left})
                    continue
                if key[0] != path:
                    outside.add(key[0])
                if left:
                    table[key] = record.model_copy(update={"sources": left})
                else:
                    del table[key]
                    counts["derived"] += 1
        return outside, len(kept)

    def _erase_named(
        self, path: str, named: Mapping[str, Any], gone: frozenset[str], counts: Counter[str]
    ) -> None:
        ids = frozenset(named["record_ids"])
        session = named.get("session")
        sides = self._named_sides(path, ids)
        for turn_id, speaker in sides:
            self._silence(path, turn_id, speaker)
        for name, table in (("memories", self.published), ("pending", self.pending)):
            for key, record in list(table.items()):
                side = _side(record)
                if key[0] == path and (
                    record.record_id in ids
                    or side in sides
                    or (side is not None and side[0] in gone)
                    or (session is not None and not record.sources
                        and record.metadata.get("session") == session)
                ):  # fmt: skip
                    del table[key]
                    counts[name] += 1
        for turn_id in gone:
            counts["turns"] += self.turns.pop((path, turn_id), None) is not None

    def _named_sides(self, path: str, ids: frozenset[str]) -> set[tuple[str, str]]:
        """The sides of turns whose records are named, recorded yet or not."""
        return {
            (turn.said.turn_id, speaker)
            for turn in self.turns.values()
            if turn.key[0] == path
            for speaker in ("user", "assistant")
            for layer in (MemoryLayer.WORKING, MemoryLayer.EPISODIC)
            if f"{turn.said.turn_id}:{speaker}:{layer.value}" in ids
        }

    def _silence(self, path: str, turn_id: str, speaker: str) -> None:
        """Take one side out of a turn that stands otherwise."""
        turn = self.turns.get((path, turn_id))
        if turn is not None:
            said = turn.said
            is_query = speaker == "user"
            turn.said = said._replace(query=None) if is_query else said._replace(answer=None)

    def _extract_again(self, path: str, turn_ids: frozenset[str]) -> None:
        """What was learned from both sides of a turn is gone with one: the other is read again."""
        for turn_id in turn_ids:
            turn = self.turns.get((path, turn_id))
            if (
                turn is not None
                and turn.outcome == "done"
                and (turn.said.query or turn.said.answer)
            ):
                turn.outcome, turn.extracted = "waiting", None

    def _vouch_anew(self, path: str) -> None:
        """What was acknowledged before and not erased is not lost: it gets the numbers of now."""
        for turn in self.turns.values():
            if covers(path, turn.key[0]) and turn.is_open:
                turn.token = self.numbers(turn.key[0])

    def _receipt(
        self,
        job: HeldJob,
        outcome: LifecycleOutcome,
        counts: Counter[str],
        generation: int,
        derived_outside: int = 0,
    ) -> LifecycleReceipt:
        return LifecycleReceipt(
            job_id=job.job_id,
            kind=job.kind,
            scope_path=job.scope.path,
            outcome=outcome,
            counts={name: count for name, count in counts.items() if count},
            derived_outside=derived_outside,
            not_covered=self.not_covered if job.kind == "forget" else (),
            generation=generation,
            requested_at=job.requested_at,
            completed_at=self.clock.now(),
        )


def covers(ancestor: str, path: str) -> bool:
    """Whether a path is the other or lies under it, by complete segments."""
    return path == ancestor or path.startswith(ancestor + "/")


def _taken(source: Source, path: str, gone: frozenset[str] | None) -> bool:
    if gone is None:
        return covers(path, source.turn_path)
    return source.turn_path == path and source.turn_id in gone


def _side(record: MemoryRecord) -> tuple[str, str] | None:
    """The turn and the speaker whose message a record is; None for what is no message."""
    if record.origin != TURN_ORIGIN:
        return None
    return record.metadata["turn_id"], record.metadata["speaker"]
