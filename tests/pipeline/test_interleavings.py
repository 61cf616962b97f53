"""Interleavings that random load rarely meets, stepped statement by statement."""

from __future__ import annotations

import asyncio
from typing import Any

from afterturn.database import Database
from afterturn.jobs.ledger import ClaimedJob
from afterturn.jobs.tally import Tally
from afterturn.records import Source
from afterturn.scope import MemoryScope
from tests.pipeline.conftest import ALICE, CHAT_1, CHAT_2, Desk, fact

FINAL = "select verdict from afterturn.forget_final($1, $2, $3, '30s')"
WAITS_FOR_LOCK = """
select count(*) from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock'
"""


def fence(job: ClaimedJob | None) -> tuple[Any, ...]:
    assert job is not None
    return job.lease.job_id, job.lease.token, job.stored_path


async def until_waiting(desk: Desk, count: int = 1) -> None:
    """Until that many sessions of this database wait for a lock."""
    async with asyncio.timeout(20):
        while await desk.value(WAITS_FOR_LOCK) < count:
            await asyncio.sleep(0)


async def test_an_uncommitted_writer_holds_the_final_back_and_its_row_is_erased(
    desk: Desk,
) -> None:
    """A turn staged in an open transaction before the request is deleted, not left behind."""
    async with desk.database.connection() as conn, conn.transaction():
        told = await conn.fetchval(
            "select afterturn.stage_turn(afterturn.covering($1), 't1', '{0,0,0}', null, 'q', 'a',"
            " null, '{}', null, '1s')",
            CHAT_1.stored_path,
        )
        assert told.isdecimal()
        job = await desk.claim_job(await desk.enqueue_forget(CHAT_1))
        assert await desk.value(FINAL, *fence(job)) == "busy"
    assert await desk.value("select count(*) from afterturn.turns") == 1
    assert await desk.value(FINAL, *fence(job)) == "done"
    assert await desk.value("select count(*) from afterturn.turns") == 0


async def test_a_batch_that_waited_for_one_lock_does_not_write_for_a_scope_erased_meanwhile(
    desk: Desk,
) -> None:
    """Lock and check are separate statements: the check is younger than the wait."""
    scopes = sorted((MemoryScope.of("acme", name) for name in "pqrs"), key=lambda s: s.stored_path)
    keys = {s: await desk.value("select afterturn.lock_key(0, $1)", s.stored_path) for s in scopes}
    first, second = sorted(scopes, key=keys.__getitem__)[:2]
    turns = [
        await desk.claim("record", (await desk.stage(s, "t")).record_job) for s in (first, second)
    ]
    tally = Tally()
    async with desk.database.connection() as holder:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("select pg_advisory_xact_lock($1::bigint)", keys[first])
        batch = asyncio.create_task(desk.recorder.record(turns, tally))
        await until_waiting(desk)
        assert await desk.forget(second) == "forgot 1"
        await transaction.commit()
    await batch
    assert str(tally) == "recorded 1, refused: stale turn"
    assert {path for path, _ in await desk.texts()} == {first.stored_path}


async def test_a_stage_that_waited_is_judged_by_what_holds_after_the_wait(desk: Desk) -> None:
    """An erase that runs from request to receipt while a stage waits makes it stale."""
    token = await desk.token(CHAT_1)
    key = await desk.value("select afterturn.lock_key(0, $1)", ALICE.ancestor(1).stored_path)
    async with desk.database.connection() as holder:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("select pg_advisory_xact_lock($1::bigint)", key)
        staging = asyncio.create_task(desk.stage(CHAT_1, "t1", token=token))
        await until_waiting(desk)
        # In this same transaction, which holds the root: nobody else could get past it.
        await holder.execute("select afterturn.move_erase($1)", CHAT_1.stored_path)
        await transaction.commit()
    assert (await staging).verdict == "stale"


async def test_a_zombie_chunk_deletes_nothing_of_the_scopes_new_life(desk: Desk) -> None:
    """A worker that lost its lease and wakes after the receipt is fenced in every chunk."""
    await desk.stage(CHAT_1, "old")
    erase = await desk.enqueue_forget(CHAT_1)
    zombie = await desk.claim_job(erase)
    await desk.expire_lease(erase)
    assert await desk.run(erase) == "forgot 1"
    await desk.record(await desk.stage(CHAT_1, "new"))
    for function in ("forget_turns", "forget_memories", "forget_sources", "forget_said"):
        rows = await desk.value(
            f"select rows from afterturn.{function}($1, $2, $3, 100, '30s', '', '')",
            *fence(zombie),
        )
        assert rows is None
    for function in ("forget_flushes", "forget_turn_jobs"):
        ended = await desk.value(
            f"select afterturn.{function}($1, $2, $3, 100, '30s')", *fence(zombie)
        )
        assert ended is None
    assert await desk.value(FINAL, *fence(zombie)) == "lost"
    assert len(await desk.texts()) == 4


async def test_a_job_id_that_means_another_job_after_a_failover_is_fenced(desk: Desk) -> None:
    """Id, kind, path and random token make the fence: a reused id alone erases nothing."""
    await desk.record(await desk.stage(CHAT_2, "kept"))
    old = await desk.claim_job(await desk.enqueue_forget(CHAT_1))
    assert old is not None
    # The failed-over database drew the same id for an erase of another scope.
    await desk.value(
        "update afterturn.jobs set path=$1 where id=$2", CHAT_2.stored_path, old.lease.job_id
    )
    assert await desk.value(FINAL, *fence(old)) == "lost"
    assert len(await desk.texts()) == 4


async def test_a_second_final_of_one_erase_is_lost(desk: Desk) -> None:
    """Two workers that both believe they hold the erase: one completes it, once."""
    erase = await desk.enqueue_forget(CHAT_1)
    first = await desk.claim_job(erase)
    await desk.expire_lease(erase)
    second = await desk.claim_job(erase)
    assert await desk.value(FINAL, *fence(first)) == "lost"
    assert await desk.value(FINAL, *fence(second)) == "done"
    assert await desk.value("select count(*) from afterturn.erase_log") == 1


async def test_a_scope_outside_that_stays_busy_is_marked_until_the_final_has_had_its_turn(
    desk: Desk, database: Database
) -> None:
    """Writers at the user's scope cannot starve the erase of a conversation."""
    turn = await desk.extract_job(CHAT_1, "t1")
    sources = [Source(turn_id="t1", turn_path=CHAT_1.path)]
    await desk.extract(turn, fact(ALICE, "f", "promoted", sources))
    erase = await desk.enqueue_forget(CHAT_1)
    async with database.connection() as writer:
        transaction = writer.transaction()
        await transaction.start()
        await writer.execute("select afterturn.lock_shared($1)", [ALICE.stored_path])
        running = asyncio.create_task(desk.run(erase))
        async with asyncio.timeout(20):
            marked = "select exists (select from afterturn.erase_intents where path = $1)"
            while not await desk.value(marked, ALICE.stored_path):
                await asyncio.sleep(0.01)
        assert (await desk.stage(CHAT_2, "t", token=())).verdict == "erasing"
        await transaction.commit()
    assert await running == "forgot 1"
    assert await desk.value("select count(*) from afterturn.erase_intents") == 0
    assert (await desk.stage(CHAT_2, "t")).verdict == "staged"


async def test_a_flush_beside_an_erase_of_a_scope_below_publishes_nothing_of_it(
    desk: Desk,
) -> None:
    """Rows published while the intent stands are unreadable, and gone with the receipt."""
    await desk.stage(CHAT_1, "t1")
    await desk.stage(CHAT_2, "t2")
    erase = await desk.claim_job(await desk.enqueue_forget(CHAT_1))
    assert erase is not None
    # The flush of the user waits for the erase of the conversation: order is kept.
    flush = await desk.enqueue("flush", ALICE)
    assert await desk.claim_job(flush) is None
    tally = Tally()
    await desk.lifecycle.run(erase, tally)
    await desk.ledger.unblock(erase.lease.job_id)
    await desk.run(flush)
    assert {path for path, _ in await desk.texts()} == {CHAT_2.stored_path}


async def test_a_zombie_of_a_named_erase_takes_nothing_of_the_sessions_new_life(
    desk: Desk,
) -> None:
    """Its job keeps its path, as the scope goes on: the lease and the end of the job refuse it."""
    await desk.stage(CHAT_1, "old", session="s")
    named = {"record_ids": [], "turn_ids": [], "session": "s"}
    erase = await desk.enqueue_forget(CHAT_1, named=named)
    zombie = await desk.claim_job(erase)
    await desk.expire_lease(erase)
    assert await desk.run(erase) == "forgot 1"
    await desk.record(await desk.stage(CHAT_1, "new", session="s"))
    assert await desk.value(FINAL, *fence(zombie)) == "lost"
    assert len(await desk.texts()) == 4


async def test_an_enqueue_that_overlaps_an_open_one_waits_and_stands_behind_it(
    desk: Desk, database: Database
) -> None:
    """Without the wait it would not see the other one, and both would run at once."""
    async with database.connection() as conn, conn.transaction():
        first = await conn.fetchval(
            "select job_id from afterturn.enqueue_lifecycle('forget', $1, $2, '1s')",
            ALICE.stored_path,
            {"derived": "keep"},
        )
        second = asyncio.create_task(desk.enqueue("flush", CHAT_1))
        async with asyncio.timeout(20):
            while not second.done() and not await desk.value(WAITS_FOR_LOCK):
                await asyncio.sleep(0)
        assert not second.done()
    behind = await desk.value("select blocked_by from afterturn.jobs where id = $1", await second)
    assert behind == first


async def test_an_enqueue_beside_the_end_of_its_blocker_waits_for_it_and_is_free(
    desk: Desk, database: Database
) -> None:
    """Else it would stand behind a job that has ended and looked for waiting ones already."""
    flush = await desk.enqueue("flush", ALICE)
    async with database.connection() as conn, conn.transaction():
        await conn.execute("select afterturn.end_lifecycle($1, 'done', '{}')", flush)
        erase = asyncio.create_task(desk.enqueue_forget(CHAT_1))
        async with asyncio.timeout(20):
            while not erase.done() and not await desk.value(WAITS_FOR_LOCK):
                await asyncio.sleep(0)
        assert not erase.done()
    behind = await desk.value("select blocked_by from afterturn.jobs where id = $1", await erase)
    assert behind is None
