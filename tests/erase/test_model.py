"""The public interface against a plain model, driven by random rules on a real database.

One memory reads and writes, another one (as in another process) erases, so that the reader's
cache is always an old one. Each example lives under a tenant of its own. After every rule
everything held under the tenant is compared with the model.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Coroutine
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from afterturn import (
    ExtractionRequest,
    ExtractionResult,
    JobTicket,
    Memory,
    MemoryQuery,
    MemoryRecord,
    MemoryScope,
    Settings,
    Turn,
    WriteRequest,
)
from afterturn.errors import AfterturnError, ErasedScope, ErasePending, StaleTurn

T = TypeVar("T")
Derived = Literal["keep", "erase"]
EXAMPLES: Final = int(os.environ.get("ERASE_EXAMPLES", "12"))
STEPS: Final = int(os.environ.get("ERASE_STEPS", "25"))

PLACES: Final = ((), ("al",), ("al", "chat-4"), ("al", "chat-42"), ("alice", "chat-4"))
TURN_IDS: Final = ("t1", "t2", "t3")
RECORD_IDS: Final = ("r1", "r2")
SESSIONS: Final = ("s1", "s2")

_tenants = itertools.count(1)
_words = itertools.count(1)


class Learning:
    """One fact for the turn's scope, one for the scope above; none from a silenced question."""

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        (turn,) = request.turns
        if turn.query is None:
            return ExtractionResult()
        return ExtractionResult(
            records=tuple(
                MemoryRecord(
                    record_id=record_id,
                    text=f"learned {turn.query} {where}",
                    scope_path=path.path,
                    layer="semantic",
                    origin="extracted",
                )
                for record_id, where, path in fact_places(request.scope, turn.turn_id)
            )
        )


def fact_places(scope: MemoryScope, turn_id: str) -> list[tuple[str, str, MemoryScope]]:
    """(record id, a word, path) of what is learned from a turn."""
    tail = "-".join(segment for segment in scope.segments[1:]) or "top"
    own = (f"fact:{tail}:{turn_id}:own", "here", scope)
    if scope.depth == 1:
        return [own]
    return [own, (f"fact:{tail}:{turn_id}:up", "above", scope.ancestor(scope.depth - 1))]


@dataclass
class Said:
    """A turn that was acknowledged."""

    scope: MemoryScope
    turn_id: str
    session: str
    query: str | None
    answer: str | None
    recorded: bool = False
    extracted: bool = False


@dataclass
class Fact:
    """What was learned, and from which turn; also when that was erased and the fact kept."""

    path: MemoryScope
    record_id: str
    text: str
    source: tuple[MemoryScope, str, str]


@dataclass
class Begun:
    """A turn that has begun; stale once an erase moved a number that covers it."""

    turn: Turn
    scope: MemoryScope
    session: str
    is_stale: bool = False


@dataclass
class Written:
    """A record of a direct write."""

    published: str | None = None
    pending: str | None = None


@dataclass
class World:
    """The model: what must be held, no more and no less."""

    said: dict[tuple[str, str], Said] = field(default_factory=dict)
    facts: dict[tuple[str, str], Fact] = field(default_factory=dict)
    written: dict[tuple[str, str], Written] = field(default_factory=dict)
    scopes: dict[str, MemoryScope] = field(default_factory=dict)
    begun: list[Begun] = field(default_factory=list)
    advanced: list[MemoryScope] = field(default_factory=list)

    def record(self, under: MemoryScope) -> None:
        for said in self.said.values():
            if under.covers(said.scope):
                said.recorded = True

    def extract(self) -> None:
        for said in self.said.values():
            if said.recorded and not said.extracted:
                said.extracted = True
                if said.query is None:
                    continue
                source = (said.scope, said.turn_id, said.session)
                for record_id, where, path in fact_places(said.scope, said.turn_id):
                    text = f"learned {said.query} {where}"
                    self.facts[path.path, record_id] = Fact(path, record_id, text, source)

    def publish(self, under: MemoryScope) -> None:
        for (path, _), written in self.written.items():
            if under.covers(self.scopes[path]) and written.pending is not None:
                written.published, written.pending = written.pending, None

    def forget(self, scope: MemoryScope, derived: Derived) -> int:
        """Erase a scope; returns how many facts elsewhere were left alone."""
        self.said = {k: s for k, s in self.said.items() if not scope.covers(s.scope)}
        self.written = {
            k: w for k, w in self.written.items() if not scope.covers(self.scopes[k[0]])
        }
        self.facts = {k: f for k, f in self.facts.items() if not scope.covers(f.path)}
        return self._learned(scope, lambda source: scope.covers(source[0]), derived)

    def forget_turns(
        self, scope: MemoryScope, turn_ids: set[str], session: str | None, derived: Derived
    ) -> int:
        def is_named(source: tuple[MemoryScope, str, str]) -> bool:
            return source[0] == scope and (source[1] in turn_ids or source[2] == session)

        gone = [k for k, s in self.said.items() if is_named((s.scope, s.turn_id, s.session))]
        for key in gone:
            del self.said[key]
        here = [k for k, f in self.facts.items() if f.path == scope and is_named(f.source)]
        for key in here:
            del self.facts[key]
        return self._learned(scope, is_named, derived)

    def forget_record(self, scope: MemoryScope, record_id: str) -> None:
        self.written.pop((scope.path, record_id), None)
        self.facts.pop((scope.path, record_id), None)
        moved = [scope]
        for said in self.said.values():
            if said.scope == scope and record_id.startswith(f"{said.turn_id}:"):
                side = "query" if ":user:" in record_id else "answer"
                if getattr(said, side) is None:
                    continue
                setattr(said, side, None)
                learned = [
                    k for k, f in self.facts.items() if f.source[:2] == (scope, said.turn_id)
                ]
                moved += [self.facts.pop(key).path for key in learned]
                said.extracted = said.query is None and said.answer is None and said.extracted
        self.advance(moved)

    def _learned(self, scope: MemoryScope, is_erased: Any, derived: Derived) -> int:
        taken = [k for k, f in self.facts.items() if is_erased(f.source)]
        moved = [scope]
        if derived == "erase":
            moved += [self.facts[key].path for key in taken]
            for key in taken:
                del self.facts[key]
        self.advance(moved)
        return 0 if derived == "erase" else len(taken)

    def advance(self, moved: list[MemoryScope]) -> None:
        self.advanced += moved
        for begun in self.begun:
            begun.is_stale = begun.is_stale or any(m.covers(begun.scope) for m in moved)

    def records(self) -> Counter[tuple[str, str, str]]:
        """(path, record id, text) of all that is held."""
        found: Counter[tuple[str, str, str]] = Counter()
        for said in self.said.values():
            if said.recorded:
                for side, text in (("user", said.query), ("assistant", said.answer)):
                    for layer in ("working", "episodic"):
                        if text is not None:
                            found[said.scope.path, f"{said.turn_id}:{side}:{layer}", text] += 1
        for fact in self.facts.values():
            found[fact.path.path, fact.record_id, fact.text] += 1
        for (path, record_id), written in self.written.items():
            for text in (written.published, written.pending):
                if text is not None:
                    found[path, record_id, text] += 1
        return found

    def visible(self, scope: MemoryScope) -> set[str]:
        """The texts that a reader at this scope may be shown."""
        texts = set()
        for path, record_id, text in self.records():
            written = self.written.get((path, record_id))
            if written is not None and written.published != text:
                continue
            if scope.path == path or scope.path.startswith(f"{path}/"):
                texts.add(text)
        return texts


class Machine(RuleBasedStateMachine):
    """The rules."""

    runner: asyncio.Runner
    memory: Memory
    other: Memory

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.standing: tuple[MemoryScope, JobTicket, Derived] | None = None
        self.root = MemoryScope.of("none")

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @initialize()
    def start(self) -> None:
        self.root = MemoryScope.of(f"tenant-{next(_tenants)}")

    def at(self, place: tuple[str, ...]) -> MemoryScope:
        scope = MemoryScope.of(*self.root.segments, *place)
        self.world.scopes[scope.path] = scope
        return scope

    def is_standing(self, scope: MemoryScope) -> bool:
        return self.standing is not None and self.standing[0].covers(scope)

    @contextmanager
    def expecting(self, *errors: type[AfterturnError] | None) -> Any:
        """Exactly the first error that is not None, or none at all."""
        wanted = next((error for error in errors if error is not None), None)
        raised: AfterturnError | None = None
        try:
            yield wanted
        except AfterturnError as error:
            raised = error
        assert (type(raised) if raised else None) is wanted, f"{raised!r} instead of {wanted}"

    # -- turns

    @rule(
        place=st.sampled_from(PLACES),
        turn_id=st.sampled_from(TURN_IDS),
        session=st.sampled_from(SESSIONS),
    )
    def begin(self, place: tuple[str, ...], turn_id: str, session: str) -> None:
        scope = self.at(place)
        with self.expecting(ErasePending if self.is_standing(scope) else None):
            turn = self.wait(self.memory.begin_turn(scope, turn_id=turn_id, session=session))
            self.world.begun.append(Begun(turn, scope, session))

    @precondition(lambda self: self.world.begun)
    @rule(data=st.data(), answered=st.booleans(), again=st.booleans())
    def finish(self, data: st.DataObject, answered: bool, again: bool) -> None:
        """Also twice, of a stale turn, and of an id that is known already."""
        at = data.draw(st.integers(0, len(self.world.begun) - 1), label="turn")
        begun = self.world.begun[at]
        query = f"question word{next(_words)}"
        answer = f"answer word{next(_words)}" if answered else None
        key = (begun.scope.path, begun.turn.turn_id)
        is_known = key in self.world.said
        refusal: type[AfterturnError] | None = None
        if self.is_standing(begun.scope):
            refusal = ErasePending
        elif begun.is_stale and not is_known:
            refusal = StaleTurn
        for _ in range(2 if again else 1):
            with self.expecting(refusal):
                ticket = self.wait(begun.turn.finish(query, answer))
                assert ticket.status == "staged"
        if refusal is None and not is_known:
            self.world.said[key] = Said(
                begun.scope, begun.turn.turn_id, begun.session, query, answer
            )

    @precondition(lambda self: self.standing is None)
    @rule()
    def work(self) -> None:
        """Workers do all that is outstanding."""
        self.wait(self.memory.drain(self.root, in_process=True))
        self.world.record(self.root)
        self.world.extract()

    # -- writes

    @rule(
        place=st.sampled_from(PLACES),
        record_id=st.sampled_from(RECORD_IDS),
        token=st.sampled_from(["none", "fresh", "old"]),
        data=st.data(),
    )
    def write(
        self, place: tuple[str, ...], record_id: str, token: str, data: st.DataObject
    ) -> None:
        scope = self.at(place)
        refusal: type[AfterturnError] | None = None
        vouched = None
        if token == "fresh" and not self.is_standing(scope):
            vouched = self.wait(self.memory.begin_turn(scope)).token
        elif token == "old" and (olds := [b for b in self.world.begun if b.scope == scope]):
            old = data.draw(st.sampled_from(olds), label="old token")
            vouched = old.turn.token
            refusal = StaleTurn if old.is_stale else None
        elif any(m.covers(scope) for m in self.world.advanced):
            refusal = ErasedScope
        text = f"record word{next(_words)}"
        record = MemoryRecord(
            record_id=record_id, text=text, scope_path=scope.path, layer="semantic", origin="test"
        )
        with self.expecting(ErasePending if self.is_standing(scope) else None, refusal) as wanted:
            request = WriteRequest(scope=scope, records=(record,), token=vouched)
            receipt = self.wait(self.memory.write(request))
            known = self.world.written.setdefault((scope.path, record_id), Written())
            held = known.published is not None or known.pending is not None
            assert receipt.outcomes[0].status == ("updated" if held else "pending"), wanted
            known.pending = text

    @precondition(lambda self: self.standing is None)
    @rule(place=st.sampled_from(PLACES))
    def flush(self, place: tuple[str, ...]) -> None:
        scope = self.at(place)
        receipt = self.wait(self.memory.flush(scope))
        assert receipt.outcome == "done"
        self.world.record(scope)
        self.world.publish(scope)

    # -- erases

    @precondition(lambda self: self.standing is None)
    @rule(
        place=st.sampled_from(PLACES),
        derived=st.sampled_from(["erase", "erase", "keep"]),
    )
    def forget(self, place: tuple[str, ...], derived: Derived) -> None:
        scope = self.at(place)
        receipt = self.wait(self.other.forget(scope, derived=derived))
        assert receipt.outcome == "done"
        assert receipt.derived_outside == self.world.forget(scope, derived)

    @precondition(lambda self: self.standing is None)
    @rule(place=st.sampled_from(PLACES), derived=st.sampled_from(["erase", "keep"]))
    def request(self, place: tuple[str, ...], derived: Derived) -> None:
        """An erase that stands for a while."""
        scope = self.at(place)
        ticket = self.wait(self.other.enqueue_forget(scope, derived=derived))
        self.standing = scope, ticket, derived

    @precondition(lambda self: self.standing is not None)
    @rule()
    def complete(self) -> None:
        assert self.standing is not None
        scope, ticket, derived = self.standing
        assert self.wait(ticket.wait()).outcome == "done"
        self.world.forget(scope, derived)
        self.standing = None

    @precondition(lambda self: self.standing is None)
    @rule(
        place=st.sampled_from(PLACES),
        session=st.sampled_from([None, *SESSIONS]),
        turn_ids=st.sets(st.sampled_from(TURN_IDS), min_size=1),
        derived=st.sampled_from(["erase", "keep"]),
    )
    def forget_turns(
        self,
        place: tuple[str, ...],
        session: str | None,
        turn_ids: set[str],
        derived: Derived,
    ) -> None:
        """By session, or by turn."""
        scope = self.at(place)
        named = set() if session else turn_ids
        receipt = self.wait(
            self.other.forget_records(
                scope, turn_ids=sorted(named), session=session, derived=derived
            )
        )
        assert receipt.outcome == "done"
        assert receipt.derived_outside == self.world.forget_turns(scope, named, session, derived)

    @precondition(lambda self: self.standing is None)
    @rule(place=st.sampled_from(PLACES), data=st.data())
    def forget_record(self, place: tuple[str, ...], data: st.DataObject) -> None:
        """A written record, a fact, one side of a turn, recorded or not; or an unknown id."""
        scope = self.at(place)
        here = sorted(
            {r for path, r, _ in self.world.records() if path == scope.path}
            | {f"{s.turn_id}:user:episodic" for s in self.world.said.values() if s.scope == scope}
        )
        record_id = data.draw(st.sampled_from([*here, "unknown"]), label="record")
        self.wait(self.other.forget_records(scope, record_ids=[record_id]))
        self.world.forget_record(scope, record_id)

    # -- what must hold

    @rule(place=st.sampled_from(PLACES))
    def retrieve(self, place: tuple[str, ...]) -> None:
        """Each visible text is found by its word, and nothing that is not visible."""
        scope = self.at(place)
        visible = self.world.visible(scope)
        query = MemoryQuery(scope=scope, text=" ".join(sorted(visible)) or "word", limit=100)
        with self.expecting(ErasePending if self.is_standing(scope) else None):
            found = self.wait(self.memory.retrieve(query))
            texts = {memory.record.text for memory in found.memories}
            assert texts == visible, (texts - visible, visible - texts)

    @invariant()
    def held(self) -> None:
        """Everything under the tenant, except where an erase stands."""
        if self.is_standing(self.root):
            return
        records: Counter[tuple[str, str, str]] = Counter()
        turns = set()
        for item in self.wait(self._exported()):
            if isinstance(item, MemoryRecord):
                records[item.scope_path, item.record_id, item.text] += 1
                for source in item.sources:
                    assert (source.turn_path, source.turn_id) in self.world.said
            else:
                turns.add((item.scope_path, item.turn_id, item.query, item.answer))
        covered = [self.standing[0].path] if self.standing else []

        def is_shown(path: str) -> bool:
            return not any(path == c or path.startswith(f"{c}/") for c in covered)

        wanted = Counter({k: n for k, n in self.world.records().items() if is_shown(k[0])})
        assert records == wanted, (records - wanted, wanted - records)
        assert turns == {
            (s.scope.path, s.turn_id, s.query, s.answer)
            for s in self.world.said.values()
            if is_shown(s.scope.path)
        }

    async def _exported(self) -> list[Any]:
        return [item async for item in self.memory.export(self.root)]


def test_the_public_interface_does_what_the_model_does(settings: Settings) -> None:
    """Turns, writes, flushes, forgets of all kinds and levels, stale tokens, ids used again."""
    quick = settings.model_copy(update={"broker_url": "redis://127.0.0.1:1/0"})
    with asyncio.Runner() as runner:
        memory = Memory(quick, extractor=Learning())
        other = Memory(quick, extractor=Learning())
        runner.run(memory.open())
        runner.run(other.open())

        class Opened(Machine):
            pass

        Opened.runner, Opened.memory, Opened.other = runner, memory, other
        try:
            run_state_machine_as_test(
                Opened,
                settings=hypothesis.settings(
                    max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None
                ),
            )
        finally:
            runner.run(memory.close())
            runner.run(other.close())
