"""No two operations wait in a circle: each test holds them where they would meet crosswise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from afterturn.lifecycle import Derived
from afterturn.pipeline.rows import record_row
from afterturn.records import MemoryRecord, Source
from afterturn.scope import MemoryScope
from tests.erase.test_seams import left_of
from tests.pipeline.conftest import ALICE, CHAT_1, CHAT_2, Desk, fact
from tests.pipeline.conftest import desk as desk
from tests.pipeline.test_interleavings import FINAL, fence, until_waiting

ROOM = MemoryScope.of("acme", "room")
FLUSH_CHUNK = "select verdict from afterturn.flush_chunk($1, $2, $3, 100, true, '30s')"

# The erase's statements stop before they touch a record, until whoever holds the lock lets go.
STALL = """
create function public.stall() returns trigger language plpgsql as $$
begin
    if current_setting('test.stall', true) = 'on' then
        perform pg_advisory_xact_lock(4711);
    end if;
    return null;
end $$;
create trigger stall before update or delete on afterturn.memories
    for each statement execute function public.stall();
"""
HELD = "select pg_advisory_xact_lock(4711)"


async def write(conn: Any, scope: MemoryScope, *records: MemoryRecord) -> None:
    await conn.fetch(
        "select * from afterturn.write_records($1, null, $2::jsonb)",
        scope.stored_path,
        [record_row(record) for record in records],
    )


def learned(scope: MemoryScope, record_id: str, room: MemoryScope = ROOM) -> MemoryRecord:
    source = Source(turn_id="t1", turn_path=room.path)
    return fact(scope, record_id, f"{record_id} lives in Oslo", [source])


async def until_waiting_or_done(desk: Desk, task: asyncio.Task[Any], count: int) -> None:
    """Until the task is done, or that many sessions wait for a lock."""
    waiting = asyncio.create_task(until_waiting(desk, count))
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def stalled_final(desk: Desk, job: Any) -> str:
    async with desk.database.connection() as conn, conn.transaction():
        await conn.execute("select set_config('test.stall', 'on', true)")
        return str(await conn.fetchval(FINAL, *fence(job)))


@pytest.mark.parametrize("derived", ["keep", "erase"])
async def test_an_erase_and_a_flush_of_what_was_learned_from_it(
    desk: Desk, derived: Derived
) -> None:
    """Both take the records that wait before the numbers of their scopes."""
    await desk.record(await desk.stage(ROOM, "t1"))
    async with desk.database.connection() as conn:
        await conn.execute(STALL)
        await write(conn, CHAT_1, learned(CHAT_1, "w"))
    erase = await desk.claim_job(await desk.enqueue_forget(ROOM, derived=derived))
    flush = await desk.claim_job(await desk.enqueue("flush", ALICE))
    async with desk.database.connection() as conn, conn.transaction():
        await conn.execute(HELD)
        final = asyncio.create_task(stalled_final(desk, erase))
        await until_waiting(desk)
        flushing = asyncio.create_task(desk.value(FLUSH_CHUNK, *fence(flush)))
        await until_waiting(desk, 2)
    assert await final == "done"
    assert await flushing == "done"
    assert await left_of(desk, ROOM) == []


@pytest.mark.parametrize("held", ["a", "b"])
async def test_an_erase_that_keeps_and_a_write_in_place_of_what_it_keeps(
    desk: Desk, held: str
) -> None:
    """Both take a record before its sources."""
    await desk.record(await desk.stage(ROOM, "t1"))
    async with desk.database.connection() as conn:
        await write(conn, ALICE, learned(ALICE, "a"), learned(ALICE, "b"))
    erase = await desk.claim_job(await desk.enqueue_forget(ROOM, derived="keep"))
    async with desk.database.connection() as holder, holder.transaction():
        # Of the two sources the erase has taken the other one, if that came first.
        await holder.execute(
            "select from afterturn.memory_sources where record_id = $1 for update", held
        )
        final = asyncio.create_task(desk.value(FINAL, *fence(erase)))
        await until_waiting(desk)
        other = fact(ALICE, "b" if held == "a" else "a", "lives in Bergen")

        async def rewrite() -> None:
            async with desk.database.connection() as conn:
                await write(conn, ALICE, other)

        writing = asyncio.create_task(rewrite())
        await until_waiting_or_done(desk, writing, 2)
    assert await final == "done"
    await writing
    assert await left_of(desk, ROOM) == []


async def test_two_erases_that_reach_into_each_others_roots(desk: Desk) -> None:
    """Both take the heads of the erase log in the same order."""
    first, between, last = (MemoryScope.of(root) for root in "abc")
    rooms = first.child("room"), last.child("room")
    for room in rooms:
        await desk.record(await desk.stage(room, "t1"))
    async with desk.database.connection() as conn:
        for scope, room in ((first, rooms[1]), (between, rooms[1]), (last, rooms[0])):
            user = scope.child("user")
            await write(conn, user, learned(user, "w", room))
    await desk.forget(between.child("other"))
    jobs = [await desk.claim_job(await desk.enqueue_forget(room)) for room in rooms]
    async with desk.database.connection() as holder, holder.transaction():
        await holder.execute(
            "select from afterturn.erase_log_heads where root_key = afterturn.scope_key($1)"
            " for update",
            between.stored_path,
        )
        of_last = asyncio.create_task(desk.value(FINAL, *fence(jobs[1])))
        await until_waiting(desk)
        of_first = asyncio.create_task(desk.value(FINAL, *fence(jobs[0])))
        await until_waiting_or_done(desk, of_first, 2)
    assert (await of_last, await of_first) == ("done", "done")


async def test_an_erase_and_what_wakes_a_flush_that_it_covers(desk: Desk) -> None:
    """Whoever wakes a job never waits for the one before it, which the erase may hold."""
    before = await desk.enqueue("flush", CHAT_1)
    ended = await desk.enqueue("flush", CHAT_2)
    woken = await desk.enqueue("flush", ALICE)
    await desk.run(ended)
    await desk.value("update afterturn.jobs set blocked_by = $1 where id = $2", ended, woken)
    await desk.value("update afterturn.jobs set releasing = true where id = $1", ended)
    erase = await desk.claim_job(await desk.enqueue_forget(ALICE))
    async with desk.database.connection() as conn, conn.transaction():
        # As far as the waking has come when the erase begins: it holds the job that it looks at.
        await conn.execute("select from afterturn.jobs where id = $1 for update", woken)
        final = asyncio.create_task(desk.value(FINAL, *fence(erase)))
        await until_waiting_or_done(desk, final, 1)
        await conn.fetch("select * from afterturn.unblock($1, 10)", ended)
    assert await final == "busy"
    assert await desk.value(FINAL, *fence(erase)) == "done"
    assert await desk.ledger.unblock(ended) == {}
    assert [(await desk.outcome(job))[0] for job in (before, ended, woken)] == [
        "superseded",
        "done",
        "superseded",
    ]


async def test_a_flush_that_yields_and_what_wakes_the_erase_it_yields_to(desk: Desk) -> None:
    """Whoever wakes the erase leaves it where it is while the flush before it is held."""
    failing = await desk.claim_job(await desk.enqueue("flush", CHAT_1))
    assert failing is not None
    ended = await desk.enqueue("flush", CHAT_2)
    erase = await desk.enqueue_forget(ALICE, named={"turn_ids": ["t"]})
    job = await desk.claim_job(ended)
    assert job is not None
    assert await desk.value(FLUSH_CHUNK, *fence(job)) == "done"
    async with desk.database.connection() as conn, conn.transaction():
        # As far as the waking has come when the flush fails: it holds the job that it looks at.
        await conn.execute("select from afterturn.jobs where id = $1 for update", erase)
        yielding = asyncio.create_task(desk.ledger.fail_lifecycle(failing.lease, "x"))
        await until_waiting(desk)
        (row,) = await conn.fetch("select * from afterturn.unblock($1, 10)", ended)
        assert dict(row) == {"free": None, "seen": 0}
    assert (await yielding)[0] == "requeued"
    assert await desk.ledger.unblock(ended) == {"forget": [erase]}
    assert await desk.run(erase) == "forgot 1"


async def test_what_could_not_be_woken_at_once_is_woken(desk: Desk) -> None:
    """While the job before it is held it is looked at again; its mark stays until then."""
    before = await desk.claim_job(await desk.enqueue("flush", CHAT_1))
    ended = await desk.enqueue("flush", CHAT_2)
    woken = await desk.enqueue("flush", ALICE)
    job = await desk.claim_job(ended)
    assert before is not None
    assert job is not None
    assert await desk.value(FLUSH_CHUNK, *fence(job)) == "done"
    points_at = "select blocked_by from afterturn.jobs where id = $1"
    async with desk.database.connection() as conn, conn.transaction():
        await conn.execute(
            "select from afterturn.jobs where id = $1 for update", before.lease.job_id
        )
        assert await desk.ledger.unblock(ended) == {}
        assert await desk.value(points_at, woken) == ended
        assert await desk.value("select releasing from afterturn.jobs where id = $1", ended)
        waking = asyncio.create_task(desk.ledger.unblock(ended))
    assert await waking == {}
    assert await desk.value(points_at, woken) == before.lease.job_id


async def test_two_callers_who_lock_several_scopes_for_themselves(desk: Desk) -> None:
    """Ancestors' locks are taken in the same order as their own."""
    roots = [f"v1/{name}/" for name in "abc"]
    keys = {root: await desk.value("select afterturn.lock_key(0, $1)", root) for root in roots}
    first, second, third = sorted(roots, key=keys.__getitem__)

    async def hold(*paths: str) -> None:
        await desk.rows("select afterturn.lock_exclusive($1::text[])", list(paths))

    async with desk.database.connection() as conn, conn.transaction():
        await conn.execute("select afterturn.lock_shared(array[$1])", first)
        one = asyncio.create_task(hold(first, third, f"{second}x/"))
        await until_waiting(desk)
        other = asyncio.create_task(hold(first, second, f"{third}x/"))
        await until_waiting(desk, 2)
    await one
    await other


MANY = 101
"""More scopes than an erase takes locks of; it then takes those of their roots."""


async def learn_in_many_scopes(desk: Desk) -> list[MemoryScope]:
    """A published and a waiting fact of the room, in each of many users' scopes."""
    users = [MemoryScope.of("acme", f"user-{n:03}") for n in range(MANY)]
    await desk.record(await desk.stage(ROOM, "t1"))
    for record_id in ("published", "waiting"):
        async with desk.database.connection() as conn:
            for user in users:
                await write(conn, user, learned(user, record_id))
        if record_id == "published":
            await desk.flush(MemoryScope.of("acme"))
    return users


@pytest.mark.parametrize("first", ["what is kept", "the scope outside"])
async def test_what_many_scopes_keep_beside_an_erase_of_one_of_them(desk: Desk, first: str) -> None:
    """Neither has the other's lock; they take rows and numbers in one order, so one waits."""
    users = await learn_in_many_scopes(desk)
    one = users[50]
    keeping = await desk.claim_job(await desk.enqueue_forget(ROOM, derived="keep"))
    erasing = await desk.claim_job(await desk.enqueue_forget(one))
    jobs = [keeping, erasing] if first == "what is kept" else [erasing, keeping]
    async with desk.database.connection() as conn, conn.transaction():
        assert await conn.fetchval(FINAL, *fence(jobs[0])) == "done"
        later = asyncio.create_task(desk.value(FINAL, *fence(jobs[1])))
        await until_waiting(desk)
    assert await later == "done"
    assert await left_of(desk, ROOM) == []
    assert await left_of(desk, one) == []
    held = await desk.rows("select path, record_id from afterturn.memories")
    assert len(held) == 2 * (MANY - 1)


@pytest.mark.parametrize("first", ["what is kept", "the flush"])
async def test_what_many_scopes_keep_beside_a_flush_of_one_of_them(desk: Desk, first: str) -> None:
    """What moves in between is found where it is."""
    users = await learn_in_many_scopes(desk)
    keeping = await desk.claim_job(await desk.enqueue_forget(ROOM, derived="keep"))
    flush = await desk.claim_job(await desk.enqueue("flush", users[50]))
    calls = [(FINAL, fence(keeping)), (FLUSH_CHUNK, fence(flush))]
    if first == "the flush":
        calls.reverse()
    async with desk.database.connection() as conn, conn.transaction():
        assert await conn.fetchval(calls[0][0], *calls[0][1]) == "done"
        later = asyncio.create_task(desk.value(calls[1][0], *calls[1][1]))
        await until_waiting(desk)
    assert await later == "done"
    assert await left_of(desk, ROOM) == []
    assert await desk.value("select count(*) from afterturn.memories") == 2 * MANY


async def test_an_erase_of_what_many_scopes_learned_takes_all_of_it(desk: Desk) -> None:
    """It needs their roots for itself: whoever writes anywhere under them holds it back."""
    users = await learn_in_many_scopes(desk)
    erase = await desk.claim_job(await desk.enqueue_forget(ROOM))
    async with desk.database.connection() as conn, conn.transaction():
        await write(conn, users[0].child("chat"), fact(users[0].child("chat"), "w", "in Bergen"))
        assert await desk.value(FINAL, *fence(erase)) == "busy"
    assert await desk.value(FINAL, *fence(erase)) == "done"
    assert await left_of(desk, ROOM) == []
    assert [text for _, text in await desk.texts(pending=True)] == ["in Bergen"]
    assert await desk.texts() == []
