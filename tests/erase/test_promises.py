"""What an erase promises to whoever calls it, at the public interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from afterturn import Memory, MemoryQuery, MemoryRecord, MemoryScope, Settings, WriteRequest
from afterturn.database import Database
from afterturn.errors import ErasePending, MemoryContractError, StaleTurn
from afterturn.generations import advance, capture, lock
from afterturn.jobs.tally import Tally
from tests.pipeline.conftest import ALICE, CHAT_1, Desk

BOB = MemoryScope.of("acme", "bob")


@pytest.fixture
async def memory(settings: Settings) -> AsyncIterator[Memory]:
    """No worker runs, and nothing answers where the broker should be."""
    alone = settings.model_copy(
        update={"broker_url": "redis://127.0.0.1:1/0", "extractor": "rules"}
    )
    async with Memory(alone) as opened:
        yield opened


async def say(memory: Memory, scope: MemoryScope, text: str, *, session: str = "s") -> str:
    """A turn that is recorded and extracted when this returns; its id."""
    async with memory.turn(scope, session=session) as turn:
        await turn.finish(text, "I see.")
    await memory.drain(scope, in_process=True)
    return turn.turn_id


async def everything(memory: Memory, scope: MemoryScope) -> list[str]:
    return sorted([repr(item) async for item in memory.export(scope)])


async def test_a_waiting_forget_needs_neither_broker_nor_worker(memory: Memory) -> None:
    """The caller runs the job, and what stands before it; the receipt says what went."""
    await say(memory, CHAT_1, "My dog is called Zanzibar.")
    await memory.enqueue_flush(CHAT_1.child("deeper"))
    receipt = await memory.forget(ALICE, requested_by="alice", reason="ticket 7")
    assert receipt.outcome == "done"
    assert receipt.counts["turns"] == 1
    assert receipt.counts["memories"] > 4  # both sides in two layers, and what was learned
    assert receipt.generation > 0
    assert receipt.log_head
    assert await everything(memory, ALICE) == []
    assert await memory.job(receipt.job_id) is not None


async def test_the_scope_is_of_use_at_once(memory: Memory) -> None:
    """The same ids again are new turns, and only these are there."""
    async with memory.turn(CHAT_1, turn_id="t1") as before:
        await before.finish("Zanzibar", None)
    await memory.forget(CHAT_1)
    async with memory.turn(CHAT_1, turn_id="t1") as again:
        ticket = await again.finish("Madagascar", None)
    await memory.drain(CHAT_1, in_process=True)
    assert (await ticket.wait()).status == "done"
    assert [said.query for said in await memory.transcript(CHAT_1)] == ["Madagascar"]
    await memory.forget(CHAT_1)
    with pytest.raises(StaleTurn):
        await before.finish("Zanzibar", None)


async def test_a_ticket_tells_how_far_the_erase_is(memory: Memory, desk: Desk) -> None:
    """Chunk by chunk, and in the end what the receipt says."""
    for turn_id in ("t1", "t2", "t3"):
        await desk.record(await desk.stage(CHAT_1, turn_id))
    ticket = await memory.enqueue_forget(CHAT_1)
    assert await ticket.progress() == {}
    job = await desk.claim_job(ticket.job_id)
    assert job is not None
    chunk = "select rows from afterturn.forget_memories($1, $2, $3, 5, '30s', '', '')"
    await desk.value(chunk, job.lease.job_id, job.lease.token, job.stored_path)
    assert await ticket.progress() == {"memories": 5}
    await desk.expire_lease(job.lease.job_id)
    receipt = await ticket.wait()
    assert await ticket.progress() == receipt.counts
    assert receipt.counts["memories"] == 12


async def test_nothing_is_served_from_the_request_on(memory: Memory) -> None:
    """By no way in, however warm the cache is; elsewhere all goes on."""
    await say(memory, CHAT_1, "Zanzibar")
    await say(memory, BOB, "Madagascar")
    query = MemoryQuery(scope=CHAT_1, text="Zanzibar")
    assert (await memory.retrieve(query)).memories
    begun = await memory.begin_turn(CHAT_1)
    ticket = await memory.enqueue_forget(ALICE)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: memory.retrieve(query),
        lambda: memory.list(CHAT_1),
        lambda: memory.transcript(CHAT_1),
        lambda: everything(memory, CHAT_1),
        lambda: memory.begin_turn(CHAT_1),
        lambda: begun.retrieve("Zanzibar"),
        lambda: begun.finish("Zanzibar", None),
        lambda: memory.remember(CHAT_1, "Zanzibar"),
        lambda: memory.write(WriteRequest(scope=CHAT_1, records=())),
    ]
    for call in calls:
        with pytest.raises(ErasePending):
            await call()
    assert (await memory.retrieve(MemoryQuery(scope=BOB, text="Madagascar"))).memories
    above = [repr(item) async for item in memory.export(ALICE.ancestor(1))]
    assert above
    assert not any("Zanzibar" in item for item in above)
    await ticket.wait()
    assert not (await memory.retrieve(query)).memories


async def test_a_warm_reader_that_noticed_nothing_serves_nothing(
    memory: Memory, settings: Settings
) -> None:
    """Another process erased and was done before this one read again."""
    await say(memory, CHAT_1, "Zanzibar")
    query = MemoryQuery(scope=CHAT_1, text="Zanzibar")
    assert (await memory.retrieve(query)).memories
    async with Memory(settings) as other:
        await other.forget(ALICE)
    assert (await memory.retrieve(query)).memories == ()


async def test_a_flush_is_seen_by_whoever_has_read_before(memory: Memory) -> None:
    """What moves rows moves the number that readers go by, in the same transaction."""
    query = MemoryQuery(scope=CHAT_1, text="Zanzibar")
    await say(memory, CHAT_1, "hello")
    assert not [m for m in (await memory.retrieve(query)).memories if "Zan" in m.record.text]
    record = MemoryRecord(
        record_id="r", text="Zanzibar", scope_path=CHAT_1.path, layer="semantic", origin="test"
    )
    await memory.write(WriteRequest(scope=CHAT_1, records=(record,)))
    await memory.flush(CHAT_1)
    assert "Zanzibar" in [m.record.text for m in (await memory.retrieve(query)).memories]


# -- bad input: a clear error, and nothing is changed


@pytest.mark.parametrize("segments", [(), ("",), ("a\nb",), ("acme", "x" * 201), ("a",) * 9])
async def test_a_bad_scope_is_refused_where_it_enters(
    memory: Memory, segments: tuple[str, ...]
) -> None:
    """Pending turns go on, no number moves."""
    async with memory.turn(CHAT_1) as turn:
        await turn.finish("Zanzibar", None)
    with pytest.raises(MemoryContractError):
        await memory.forget(MemoryScope.of(*segments))
    await memory.drain(CHAT_1, in_process=True)
    assert len(await memory.transcript(CHAT_1)) == 1
    assert (await memory.begin_turn(CHAT_1)).token == ()


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"record_ids": []},
        {"turn_ids": ()},
        {"session": ""},
        {"turn_ids": ["what I said about Zanzibar"]},
        {"record_ids": ["x" * 1_000]},
        {"derived": "maybe", "session": "s"},
        {"session": "s", "reason": "x" * 501},
    ],
)
async def test_a_bad_selection_is_refused_and_nothing_is_changed(
    memory: Memory, named: dict[str, object]
) -> None:
    """Nothing named, ids that are text, unknown ways, notes too long."""
    await say(memory, CHAT_1, "Zanzibar")
    async with memory.turn(CHAT_1, turn_id="waiting") as turn:
        await turn.finish("still to do", None)
    before = await everything(memory, CHAT_1)
    with pytest.raises(MemoryContractError) as raised:
        await memory.forget_records(CHAT_1, **named)  # type: ignore[arg-type] # on purpose
    assert raised.value.hint or raised.value.detail
    assert await everything(memory, CHAT_1) == before
    assert (await memory.begin_turn(CHAT_1)).token == ()
    await memory.drain(CHAT_1, in_process=True)
    assert len(await memory.transcript(CHAT_1)) == 2


async def test_what_is_named_and_not_there_is_no_error(memory: Memory) -> None:
    """The receipt is empty, the number moves: turns begun before may have read it elsewhere."""
    await say(memory, CHAT_1, "Zanzibar")
    before = await everything(memory, CHAT_1)
    begun = await memory.begin_turn(CHAT_1)
    receipt = await memory.forget_records(
        CHAT_1, record_ids=["unknown"], turn_ids=["unknown"], session="unknown"
    )
    assert receipt.counts == {}
    assert await everything(memory, CHAT_1) == before
    with pytest.raises(StaleTurn):
        await begun.finish("too late", None)


async def test_an_empty_scope_gives_an_empty_receipt_and_a_new_number(memory: Memory) -> None:
    """Once more gives a greater one; nothing else has moved."""
    await say(memory, BOB, "Madagascar")
    others = await everything(memory, BOB)
    first = await memory.forget(CHAT_1)
    second = await memory.forget(CHAT_1)
    for receipt in (first, second):
        assert receipt.counts == {}
        assert receipt.derived_outside == 0
    assert (await memory.begin_turn(CHAT_1)).token == ((CHAT_1.path, second.generation),)
    assert second.generation > first.generation
    assert await everything(memory, BOB) == others


async def test_an_unknown_job_is_named_in_the_error(memory: Memory) -> None:
    """Also when the id is a turn's job."""
    async with memory.turn(CHAT_1) as turn:
        await turn.finish("Zanzibar", None)
    for job_id in (1, 123_456_789):
        with pytest.raises(MemoryContractError, match=str(job_id)):
            await memory.job(job_id)


async def test_a_source_that_cannot_be_erased_is_named_in_the_receipt(
    settings: Settings,
) -> None:
    """Our tables are erased; what is plugged in instead is not ours to erase."""

    class Elsewhere:
        async def retrieve(self, query: MemoryQuery) -> object:
            raise NotImplementedError

        async def scan_candidates(self, query: MemoryQuery) -> object:
            raise NotImplementedError

    async with Memory(settings, source=Elsewhere()) as memory:  # type: ignore[arg-type]
        receipt = await memory.forget(CHAT_1)
    assert receipt.not_covered == ("Elsewhere",)


# -- an adopter's own erase, which moves the number and leaves our rows alone


async def test_work_under_way_is_refused_after_an_adopters_own_erase(desk: Desk) -> None:
    """The turn's row and its job are still there: the token alone refuses it, and its text goes."""
    waiting = await desk.stage(CHAT_1, "t1", query="Zanzibar")
    turn = await desk.claim("record", waiting.record_job)
    async with desk.database.connection() as conn, conn.transaction():
        await lock(conn, [ALICE.path], exclusive=True)
        await advance(conn, ALICE)
    tally = Tally()
    await desk.recorder.record([turn], tally)
    assert str(tally) == "refused: stale turn"
    assert await desk.texts() == []
    assert await desk.value("select count(*) from afterturn.turns") == 0


async def test_erases_of_many_scopes_at_once_end_without_a_deadlock(
    desk: Desk, database: Database
) -> None:
    """Overlapping ones in order, the others side by side, with turns staged all the time."""
    scopes = [ALICE, CHAT_1, BOB, ALICE.child("chat-2"), MemoryScope.of("acme"), CHAT_1.child("x")]
    tokens = {scope: await desk.token(scope) for scope in scopes}
    jobs = [await desk.enqueue_forget(scope) for scope in scopes]
    left = set(jobs)

    async def worker() -> None:
        while left:
            for job_id in sorted(left):
                job = await desk.claim_job(job_id)
                if job is not None:
                    await desk.lifecycle.run(job, Tally())
                    await desk.ledger.unblock(job_id)
                    left.discard(job_id)
            await asyncio.sleep(0)

    await asyncio.gather(*(worker() for _ in range(3)))
    async with database.connection() as conn:
        for scope in scopes:
            assert await capture(conn, scope.path) != tokens[scope]
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    assert await desk.value(deadlocks) == 0
