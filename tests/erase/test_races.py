"""The erase against work in flight: nothing comes back, and nothing else is lost.

{where the turn is} x {which scope is erased} x {alone, one more turn at once}; every cell several
times (`ERASE_TRIALS`, 20 for the figures of the documentation, which `-s` prints). Everything is
asked of the public interface, and at the end of every table of the schema. The broker does not
answer and no worker runs but the held one: the waiting caller erases by itself.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from afterturn import (
    ExtractionRequest,
    ExtractionResult,
    LifecycleReceipt,
    Memory,
    MemoryQuery,
    MemoryRecord,
    MemoryScope,
    Settings,
    Turn,
)
from afterturn.database import Database
from afterturn.errors import StaleTurn
from afterturn.jobs.ledger import Applied
from afterturn.jobs.names import Kind
from afterturn.jobs.rings import RingPublisher
from afterturn.pipeline.runner import Runner

State = Literal["extraction", "record", "embed", "flush", "staged", "begun"]
Target = Literal["same", "ancestor", "descendant", "session"]
STATES: Final[tuple[State, ...]] = ("extraction", "record", "embed", "flush", "staged", "begun")
TARGETS: Final[tuple[Target, ...]] = ("same", "ancestor", "descendant", "session")
TRIALS: Final = int(os.environ.get("ERASE_TRIALS", "1"))

_numbers = itertools.count(1)


class Hands:
    """What the held worker does stops here until it is let go."""

    def __init__(self) -> None:
        self.arrived = 0
        self._go = threading.Event()
        self._go.set()

    def hold(self) -> None:
        self.arrived = 0
        self._go.clear()

    def let_go(self) -> None:
        self._go.set()

    async def stop(self) -> None:
        self.arrived += 1
        while not self._go.is_set():
            await asyncio.sleep(0.001)

    def stop_thread(self) -> None:
        self.arrived += 1
        assert self._go.wait(60)

    async def until(self, arrived: int) -> None:
        async with asyncio.timeout(30):
            while self.arrived < arrived:
                await asyncio.sleep(0.001)


class Learning:
    """Learns one fact for the turn's scope and one for the scope above it; its model waits."""

    def __init__(self, hands: Hands | None = None) -> None:
        self._hands = hands

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        if self._hands is not None:
            await self._hands.stop()
        (turn,) = request.turns
        above = request.scope.ancestor(max(1, request.scope.depth - 1))
        records = tuple(
            MemoryRecord(
                record_id=f"fact:{turn.turn_id}:{at}",
                text=f"{turn.query} is known at level {scope.depth}",
                scope_path=scope.path,
                layer="semantic",
                origin="extracted",
            )
            for at, scope in enumerate((request.scope, above))
        )
        return ExtractionResult(records=records)


class Vectors:
    """A tiny embedder whose worker's copy waits."""

    model_id = "tiny"
    dim = 4

    def __init__(self, hands: Hands | None = None) -> None:
        self._hands = hands

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self._hands is not None:
            self._hands.stop_thread()
        return np.ones((len(texts), self.dim), dtype=np.float32)


@dataclass
class Ring:
    """A memory as an agent holds it, and a worker whose hands can be held."""

    memory: Memory
    database: Database
    worker: Runner
    hands: dict[State, Hands]
    tasks: list[asyncio.Task[str]] = field(default_factory=list)

    async def finish(self, turn: Turn, text: str) -> str:
        return (await turn.finish(text, None)).status

    async def jobs(self, root: MemoryScope, kind: str) -> list[int]:
        rows = await self.database.rows(
            "select id from afterturn.jobs where kind = $2 and finished_at is null "
            "and path >= $1 and path < afterturn.under_end($1) order by id",
            root.stored_path,
            kind,
        )
        return [row["id"] for row in rows]

    async def run(self, kind: Any, root: MemoryScope) -> None:
        """The worker does all of one kind, unheld."""
        await self.worker.run(kind, await self.jobs(root, kind))

    async def start(self, state: State, kind: Any, root: MemoryScope, arrivals: int) -> None:
        """The worker begins and is held in the middle."""
        self.hands[state].hold()
        ids = await self.jobs(root, kind)
        assert ids
        self.tasks = [asyncio.create_task(self.worker.run(kind, ids))]
        await self.hands[state].until(arrivals)

    async def let_go(self, state: State) -> None:
        """The worker wakes and ends what it had begun."""
        if state in self.hands:
            self.hands[state].let_go()
        await asyncio.gather(*self.tasks)
        self.tasks = []

    async def holding(self, word: str) -> list[str]:
        """The tables in which some row has the word."""
        tables = await self.database.rows(
            "select c.relname from pg_class c "
            "where c.relnamespace = 'afterturn'::regnamespace and c.relkind = 'r'"
        )
        return [
            table["relname"]
            for table in tables
            if await self.database.value(
                f"select exists (select from afterturn.{table['relname']} t "
                "where position($1 in t::text) > 0)",
                word,
            )
        ]


@pytest.fixture
async def ring(settings: Settings, database: Database) -> AsyncIterator[Ring]:
    quick = settings.model_copy(update={"broker_url": "redis://127.0.0.1:1/0"})
    hands: dict[State, Hands] = {s: Hands() for s in ("extraction", "record", "embed", "flush")}
    rings = RingPublisher("redis://127.0.0.1:1/0", quick)
    rings.close(0)
    worker = Runner(database, quick, rings, Learning(hands["extraction"]), Vectors(hands["embed"]))
    apply_turns = worker._ledger.apply_turns

    async def held(kind: Kind, work: Sequence[Mapping[str, Any]], *, embed: bool) -> Applied:
        # A worker's recording and a flush's own: between the claim and the transaction.
        if kind == "record":
            await hands["record"].stop()
            await hands["flush"].stop()
        return await apply_turns(kind, work, embed=embed)

    worker._ledger.apply_turns = held  # type: ignore[method-assign] # held on purpose
    async with Memory(quick, extractor=Learning(), embedder=Vectors()) as memory:
        yield Ring(memory, database, worker, hands)


@dataclass(frozen=True)
class Places:
    """Who is erased and who must stay, and in which session each speaks."""

    root: MemoryScope
    erased: MemoryScope
    victim: MemoryScope
    bystander: MemoryScope
    victim_session: str = "s"
    bystander_session: str = "s"


def places(target: Target) -> Places:
    root = MemoryScope.of(f"tenant-{next(_numbers)}")
    user, chat = root.child("alice"), root.child("alice").child("chat-4")
    match target:
        case "same":
            return Places(root, chat, chat, user.child("chat-42"))
        case "ancestor":
            return Places(root, user, chat, root.child("alice2").child("chat-4"))
        case "descendant":
            return Places(root, chat, chat, user)
        case "session":
            return Places(root, chat, chat, chat, "gone", "kept")


async def forget(ring: Ring, target: Target, at: Places) -> LifecycleReceipt:
    if target == "session":
        return await ring.memory.forget_records(at.erased, session=at.victim_session)
    return await ring.memory.forget(at.erased)


async def trial(ring: Ring, state: State, target: Target, *, followed: bool) -> str:
    """One erase in one state; what went wrong, empty when nothing did."""
    at, memory = places(target), ring.memory
    number = next(_numbers)
    erased, kept, new = (f"{word}{number}x" for word in ("zanzibar", "bystander", "newcomer"))
    turns = [
        await memory.begin_turn(at.victim, session=at.victim_session),
        await memory.begin_turn(at.bystander, session=at.bystander_session),
    ]
    await turns[0].retrieve(erased)
    if state != "begun":
        for turn, text in zip(turns, (erased, kept), strict=True):
            assert await ring.finish(turn, text) == "staged"
    match state:
        case "record":
            await ring.start(state, "record", at.root, 1)
        case "extraction":
            await ring.run("record", at.root)
            await ring.start(state, "extract", at.root, 2)
        case "embed":
            await ring.run("record", at.root)
            await ring.run("extract", at.root)
            await ring.start(state, "embed", at.victim, 1)
        case "flush":
            flushed_scope = at.root if target == "descendant" else at.victim
            await memory.enqueue_flush(flushed_scope)
            await ring.start(state, "flush", at.root, 1)
        case "staged" | "begun":
            pass
    forgetting = asyncio.create_task(forget(ring, target, at))
    if state == "flush" and target in ("descendant", "session"):
        # Order is kept: the erase waits for the flush that it does not cover.
        while not await ring.jobs(at.root, "forget"):
            await asyncio.sleep(0)
        await ring.let_go(state)
    receipt = await forgetting
    if state == "begun":
        with suppress(StaleTurn):
            await ring.finish(turns[0], erased)
            return "a turn begun before was accepted"
        if target != "session":  # which makes all turns of its scope stale
            await ring.finish(turns[1], kept)
    if followed:
        follower = await memory.begin_turn(at.victim, session=at.victim_session)
        assert await ring.finish(follower, new) == "staged"
    await ring.let_go(state)
    await memory.drain(at.root, in_process=True)
    wrong = [f"resurrected in {table}" for table in await ring.holding(erased)]
    for scope in (at.victim, at.erased, at.bystander):
        for found in (
            [
                m.record.text
                for m in (await memory.retrieve(MemoryQuery(scope=scope, text=erased))).memories
            ],
            [record.text for record in await memory.list(scope)],
            [str(said.query) for said in await memory.transcript(scope)],
            [repr(item) async for item in memory.export(scope)],
        ):
            wrong += [f"served: {text}" for text in found if erased in text]
    if not (state == "begun" and target == "session"):
        texts = " ".join([record.text for record in await memory.list(at.bystander)])
        wrong += ["a bystander was lost"] if kept not in texts else []
    if followed:
        query = MemoryQuery(scope=at.victim, text=new)
        answer = [m.record.text for m in (await memory.retrieve(query)).memories]
        rows = [r.record_id for r in await memory.list(at.victim) if new in r.text]
        if len(rows) != 3 or not any(new in text for text in answer):
            wrong.append(f"of the new turn there is {rows}, and retrieved {len(answer)}")
    wrong += [] if receipt.outcome == "done" else [f"outcome {receipt.outcome}"]
    return "; ".join(wrong)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.timeout(1_800)
async def test_nothing_erased_comes_back(ring: Ring, state: State) -> None:
    """Whatever is under way, whichever scope, with and without a turn right behind."""
    trials: Counter[str] = Counter()
    failures: list[str] = []
    for target in TARGETS:
        for followed in (False, True):
            for _ in range(TRIALS):
                cell = f"{state:10} {target:10} {'followed' if followed else 'alone':8}"
                trials[cell] += 1
                wrong = await trial(ring, state, target, followed=followed)
                failures += [f"{cell}: {wrong}"] if wrong else []
    for cell, count in trials.items():
        back = sum(cell in f and ("resurrected" in f or "served" in f) for f in failures)
        print(f"{cell}  {back} of {count} came back")
    assert failures == []
