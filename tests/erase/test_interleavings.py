"""Operations stepped through their interleavings; what must hold is checked after each.

All of them, depth first, with `ERASE_INTERLEAVINGS=all`; in a usual run a sample of each pair by
seed (a failure names the schedule, which `SCHEDULE="a b a …"` repeats alone).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import asyncpg
import pytest

from afterturn.database import Database
from afterturn.errors import ErasePending
from afterturn.jobs.ledger import ClaimedJob, ClaimedTurn, Ledger
from afterturn.jobs.rings import RingPublisher
from afterturn.jobs.tally import Tally
from afterturn.lifecycle import forget_request
from afterturn.pipeline.applying import TurnApplier, turn_work
from afterturn.pipeline.recording import Recorder
from afterturn.pipeline.staging import StagedTurn, stage
from afterturn.queries import MemoryQuery
from afterturn.records import Source
from afterturn.retrieval.service import PostgresRetrieval
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from afterturn.writes import WriteRequest
from afterturn.writing import PostgresWriting
from tests.erase.stepping import (
    GATES,
    Chooser,
    History,
    Note,
    Op,
    Scheduler,
    SteppedDatabase,
    along,
    at_random,
    following,
)
from tests.pipeline.conftest import SOON, Desk, fact

MARK: Final = "zanzibar"
NEIGHBOUR: Final = "neighbour"
ALL: Final = os.environ.get("ERASE_INTERLEAVINGS") == "all"
SAMPLE: Final = int(os.environ.get("ERASE_SAMPLE", "6"))
LIMIT: Final = int(os.environ.get("ERASE_LIMIT", "100000"))

_numbers = itertools.count(1)


@dataclass
class Stage:
    """A user's scope in which the operations meet, with something of everything in it."""

    desk: Desk
    user: MemoryScope
    chat: MemoryScope
    token: list[int]
    recording: ClaimedTurn
    extraction: ClaimedTurn
    embedding: ClaimedJob
    flush: ClaimedJob | None
    retrieval: PostgresRetrieval
    reading: Reading

    @property
    def query(self) -> MemoryQuery:
        return MemoryQuery(scope=self.chat, text=MARK)


class Reading:
    """Sends the retrieval's statements wherever it is told to at the moment."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def connection(self) -> Any:
        return self.database.connection()


async def set_up(desk: Desk, *, flushing: bool) -> Stage:
    """Turns of the chat in every state, a promoted fact, a neighbour's turn, a warm reader."""
    user = MemoryScope.of("acme", f"user-{next(_numbers)}")
    chat = user.child("chat-1")
    other = user.child("chat-2")
    text = f"said {MARK}"

    async def staged(turn_id: str) -> ClaimedTurn:
        done = await desk.stage(chat, turn_id, query=text, answer=None, session="s")
        return await desk.claim("record", done.record_job)

    old = await staged("old")
    extraction = await staged("extraction")
    await desk.recorder.record([old, extraction], Tally())
    learned = await desk.claim_extract(chat, "old")
    source = Source(turn_id="old", turn_path=chat.path)
    await desk.extract(learned, fact(user, "f-old", f"{MARK} of old", [source]))
    neighbour = await desk.stage(other, "n", query=NEIGHBOUR, answer=None)
    await desk.record(neighbour)
    recording = await staged("recording")
    writing = PostgresWriting(desk.database, desk.settings)
    await writing.write(WriteRequest(scope=chat, records=(fact(chat, "w", f"{MARK} written"),)))
    embed = await desk.value(
        "select id from afterturn.jobs where kind = 'embed' and path = $1", chat.stored_path
    )
    embedding = await desk.ledger.claim_embed([embed])
    assert embedding is not None
    claimed = await desk.claim_extract(chat, "extraction")
    # A flush in flight, past the recording of what was staged before it.
    flush = await desk.claim_job(await desk.enqueue("flush", chat)) if flushing else None
    reading = Reading(desk.database)
    retrieval = PostgresRetrieval(reading, desk.settings, None)  # type: ignore[arg-type]
    await retrieval.retrieve(MemoryQuery(scope=chat, text=MARK))
    return Stage(
        desk, user, chat, [0, 0, 0], recording, claimed, embedding, flush, retrieval, reading
    )


# -- the operations, each on a database of its own


def applier(database: SteppedDatabase, desk: Desk) -> TurnApplier:
    rings = RingPublisher("redis://127.0.0.1:1/0", desk.settings)
    rings.close(0)
    return TurnApplier(Ledger(database, desk.settings), rings, embed=True)


def stage_op(at: Stage) -> Callable[[SteppedDatabase, Note], Awaitable[object]]:
    async def run(database: SteppedDatabase, note: Note) -> object:
        turn = StagedTurn(at.chat, "new", at.token, "s", f"said {MARK}", None, None, {}, None)
        return (await stage(database, turn, ring_after=SOON)).verdict

    return run


def record_op(at: Stage) -> Callable[[SteppedDatabase, Note], Awaitable[object]]:
    async def run(database: SteppedDatabase, note: Note) -> object:
        tally = Tally()
        await Recorder(applier(database, at.desk)).record([at.recording], tally)
        return str(tally)

    return run


def extract_op(at: Stage) -> Callable[[SteppedDatabase, Note], Awaitable[object]]:
    async def run(database: SteppedDatabase, note: Note) -> object:
        tally = Tally()
        source = Source(turn_id="extraction", turn_path=at.chat.path)
        facts = [
            fact(at.user, "f-up", f"{MARK} promoted", [source]),
            fact(at.chat, "f-own", f"{MARK} own", [source]),
        ]
        work = [turn_work(at.extraction, facts)]
        await applier(database, at.desk).apply("extract", [at.extraction], work, tally)
        return str(tally)

    return run


def embed_op(at: Stage) -> Callable[[SteppedDatabase, Note], Awaitable[object]]:
    async def run(database: SteppedDatabase, note: Note) -> object:
        lacking = "select record_id, revision from afterturn.memories where path=$1 and not pending"
        rows = await at.desk.rows(lacking, at.chat.stored_path)
        return await Ledger(database, at.desk.settings).apply_embed(
            at.embedding,
            [row["record_id"] for row in rows],
            [row["revision"] for row in rows],
            [b"\0\0"] * len(rows),
            last=True,
        )

    return run


def flush_op(at: Stage) -> Callable[[SteppedDatabase, Note], Awaitable[object]]:
    async def run(database: SteppedDatabase, note: Note) -> object:
        assert at.flush is not None
        chunk = "select verdict from afterturn.flush_chunk($1, $2, $3, 100, true, '30s')"
        lease = at.flush.lease
        return await database.value(chunk, lease.job_id, lease.token, at.flush.stored_path)

    return run


def read_op(at: Stage) -> Callable[[SteppedDatabase, Note], Awaitable[object]]:
    async def run(database: SteppedDatabase, note: Note) -> object:
        at.reading.database = database
        try:
            found = await at.retrieval.retrieve(at.query)
        except ErasePending:
            return "erasing"
        finally:
            at.reading.database = at.desk.database
        return " ".join(memory.record.text for memory in found.memories)

    return run


def forget_op(
    at: Stage, scope: MemoryScope, named: dict[str, Any] | None
) -> Callable[[SteppedDatabase, Note], Awaitable[object]]:
    """Request, chunks and final, each of the product's own statements."""

    async def run(database: SteppedDatabase, note: Note) -> object:
        desk = at.desk
        rings = RingPublisher("redis://127.0.0.1:1/0", desk.settings)
        rings.close(0)
        await database.quiet()
        job_id = await database.value(
            "select job_id from afterturn.enqueue_lifecycle('forget', $1, $2::jsonb, '5s')",
            scope.stored_path,
            forget_request(derived="erase", named=named),
        )
        note("requested")
        while (job := await desk.claim_job(job_id)) is None:
            # A flush stands before a named erase.
            assert at.flush is not None
            await database.pause(until_others_moved=True)
            await desk.ledger.unblock(at.flush.lease.job_id)
        fence = (job_id, job.lease.token, scope.stored_path)
        if named is None:
            for function in ("forget_turns", "forget_memories"):
                await database.value(
                    f"select rows from afterturn.{function}($1, $2, $3, 1000, '30s', '', '')",
                    *fence,
                )
        await database.prepare(depth=scope.depth)
        final = "select verdict from afterturn.forget_final($1, $2, $3, '30s')"
        while (verdict := await database.value(final, *fence)) == "busy":
            await database.pause(until_others_moved=True)
        note("receipt")
        await desk.ledger.unblock(job_id)
        return verdict

    return run


OPERATIONS: Final = {
    "stage": stage_op,
    "record": record_op,
    "extract": extract_op,
    "embed": embed_op,
    "flush": flush_op,
    "read": read_op,
}


# -- what must hold


LEFT = """
select 'turns', turn_id from afterturn.turns where path >= $1 and path < afterturn.under_end($1)
    and (query || answer) is not null or query like '%' || $2 || '%'
        and path >= $1 and path < afterturn.under_end($1)
union all
select 'memories', record_id from afterturn.memories
where path >= $3 and path < afterturn.under_end($3) and text like '%' || $2 || '%'
union all
select 'memory_sources', record_id from afterturn.memory_sources
where turn_path >= $1 and turn_path < afterturn.under_end($1) and turn_id <> 'n'
union all
select 'jobs', kind || ' ' || coalesce(turn_id, '') from afterturn.jobs
where path >= $1 and path < afterturn.under_end($1) and finished_at is null
    and kind in ('record', 'extract') and turn_id <> 'n'
union all
select 'erase_intents', '' from afterturn.erase_intents
where path >= $3 and path < afterturn.under_end($3)
"""


async def check(at: Stage, scope: MemoryScope, history: History, names: tuple[str, ...]) -> None:
    """Nothing erased is anywhere, nothing else is gone, and the scope is of use at once."""
    desk = at.desk
    results = history.results
    told = f"{' '.join(history.steps)} -> {results}"
    for result in results.values():
        assert not isinstance(result, BaseException), told
    assert results["forget"] == "done", told
    left = await desk.rows(LEFT, at.chat.stored_path, MARK, at.user.stored_path)
    assert left == [], f"I1 erased text came back: {left} after {told}"
    if "read" in results and history.notes["read starts"] > history.notes["requested"]:
        assert MARK not in str(results["read"]), f"I2 served under an erase: {told}"
    found = await at.retrieval.retrieve(at.query)
    texts = " ".join(memory.record.text for memory in found.memories)
    assert MARK not in texts, f"I2 served after the receipt: {told}"
    if scope == at.chat:
        near = await desk.value(
            "select count(*) from afterturn.memories where path = $1",
            at.user.child("chat-2").stored_path,
        )
        assert near == 2, f"I3 a neighbour's rows are gone: {told}"
    assert (await desk.stage(at.chat, "next")).verdict == "staged", f"I4 out of use: {told}"
    late = StagedTurn(at.chat, "late", at.token, None, "late", None, None, {}, None)
    assert (await stage(desk.database, late, ring_after=SOON)).verdict == "stale", told
    jobs = await desk.rows(
        "select count(*) as n from afterturn.erase_log where scope_key = afterturn.scope_key($1)",
        scope.stored_path,
    )
    assert jobs == [{"n": 1}], f"I5 the erase took effect once: {told}"


@pytest.fixture
async def board(database_url: str, settings: Settings) -> AsyncIterator[Board]:
    """A database with gates, and connections for three operations."""
    control = await asyncpg.connect(database_url)
    await control.execute(GATES)
    databases = [SteppedDatabase(database_url, settings, session) for session in (1, 2, 3)]
    for each in databases:
        await each.open()
    yield Board(Scheduler(control), databases)
    deadlocks = await control.fetchval(
        "select deadlocks from pg_stat_database where datname = current_database()"
    )
    for each in databases:
        await each.close()
    await control.close()
    assert deadlocks == 0


@dataclass
class Board:
    """Where schedules are played."""

    scheduler: Scheduler
    databases: list[SteppedDatabase]

    async def play(
        self, desk: Desk, names: tuple[str, ...], target: str, choose: Chooser
    ) -> History:
        """Set up, run one schedule, check."""
        at = await set_up(desk, flushing="flush" in names)
        scope = at.user if target == "ancestor" else at.chat
        named = None
        if target == "session":
            named = {"record_ids": ["w"], "turn_ids": ["new"], "session": "s"}
        ops = [
            Op(name, database, OPERATIONS[name](at), at.chat.depth)
            for name, database in zip(names, self.databases, strict=False)
        ]
        ops.append(Op("forget", self.databases[2], forget_op(at, scope, named), scope.depth))
        history = await self.scheduler.run(ops, choose)
        await check(at, scope, history, names)
        return history

    async def explore(self, desk: Desk, names: tuple[str, ...], target: str) -> int:
        """All schedules, or a sample by seed; returns how many were played."""
        if schedule := os.environ.get("SCHEDULE"):
            await self.play(desk, names, target, along(schedule.split()))
            return 1
        if not ALL:
            for seed in range(SAMPLE):
                await self.play(desk, names, target, at_random(f"{names} {target} {seed}"))
            return SAMPLE
        played = 0
        prefix: list[str] | None = []
        while prefix is not None and played < LIMIT:
            prefix = following(await self.play(desk, names, target, along(prefix)))
            played += 1
        return played


@pytest.mark.parametrize("target", ["same", "ancestor", "session"])
@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_beside_an_erase(
    board: Board, desk: Desk, name: str, target: str
) -> None:
    """Wherever the erase and the other one meet, nothing erased is left, served or lost."""
    played = await board.explore(desk, (name,), target)
    print(f"{name} beside an erase ({target}): {played} schedules")
    assert played > 0


@pytest.mark.parametrize("target", ["same", "ancestor", "session"])
async def test_two_operations_beside_an_erase(board: Board, desk: Desk, target: str) -> None:
    """Three at once, each pair of the others; a sample, there are a million schedules each."""
    for names in itertools.combinations(OPERATIONS, 2):
        for seed in range(1 if not ALL else 200):
            choose = at_random(f"{names} {target} {seed}")
            await board.play(desk, names, target, choose)


async def test_a_schedule_can_be_repeated(board: Board, desk: Desk) -> None:
    """The same choices lead through the same steps to the same results."""
    for name in OPERATIONS:
        first = await board.play(desk, (name,), "same", at_random("again"))
        again = await board.play(desk, (name,), "same", along(first.steps))
        assert (again.steps, again.results) == (first.steps, first.results)


async def test_depth_first_plays_every_schedule_once(board: Board, desk: Desk) -> None:
    """Two operations of two steps each meet in six ways, whatever locks they take."""
    seen = []
    prefix: list[str] | None = []

    async def two_steps(database: SteppedDatabase, note: Note) -> object:
        await database.quiet()
        return await database.value("select 1")

    while prefix is not None:
        ops = [Op(name, board.databases[at], two_steps, 1) for at, name in enumerate("ab")]
        history = await board.scheduler.run(ops, along(prefix))
        seen.append("".join(history.steps))
        prefix = following(history)
    assert seen == ["aabb", "abab", "abba", "baab", "baba", "bbaa"]
