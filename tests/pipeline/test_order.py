"""Lifecycle jobs: order where scopes overlap, side by side elsewhere, erases never starve."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from afterturn.database import Database
from afterturn.embedded.urls import redis_client_url
from afterturn.jobs.names import LIFECYCLE_QUEUE, TASKS
from afterturn.jobs.rings import RingPublisher
from afterturn.jobs.tally import Tally
from afterturn.pipeline.runner import Runner
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from tests.pipeline.conftest import ALICE, CHAT_1, CHAT_2, Desk

BOB = MemoryScope.of("acme", "bob")
ACME = MemoryScope.of("acme")


async def test_overlapping_jobs_run_in_order_of_enqueuing(desk: Desk) -> None:
    """A flush enqueued after a forget of its ancestor waits for it."""
    erase = await desk.enqueue_forget(ALICE)
    flush = await desk.enqueue("flush", CHAT_1)
    assert await desk.claim_job(flush) is None
    await desk.run(erase)
    assert await desk.run(flush) == "flushed 1"


async def test_scopes_that_do_not_overlap_run_side_by_side(desk: Desk) -> None:
    """A user's erase does not hold up another user's."""
    first = await desk.enqueue_forget(ALICE)
    second = await desk.enqueue_forget(BOB)
    assert await desk.claim_job(first) is not None
    assert await desk.claim_job(second) is not None


async def test_an_erase_that_takes_long_holds_up_none_rung_with_it(
    desk: Desk, database: Database, settings: Settings, quiet: RingPublisher
) -> None:
    """One message may name jobs of many scopes: they run side by side in the process it reaches."""
    slow, quick = await desk.enqueue_forget(ALICE), await desk.enqueue_forget(BOB)
    runner = Runner(database, settings, quiet, None, None)
    async with desk.database.connection() as writer:
        transaction = writer.transaction()
        await transaction.start()
        await writer.execute("select afterturn.lock_shared(array[$1])", CHAT_1.stored_path)
        running = asyncio.create_task(runner.run("forget", [slow, quick]))
        while (await desk.outcome(quick))[0] is None:
            await asyncio.sleep(0.01)
        assert (await desk.outcome(slow))[0] is None
        await transaction.commit()
    assert await running == "forgot 2"


async def test_a_job_behind_several_is_free_when_the_last_of_them_ends(desk: Desk) -> None:
    """The blocker is looked for anew each time one ends."""
    one = await desk.enqueue_forget(CHAT_1)
    two = await desk.enqueue_forget(CHAT_2)
    above = await desk.enqueue_forget(ACME)
    assert await desk.run(two)
    assert await desk.claim_job(above) is None
    assert await desk.run(one)
    assert await desk.run(above)


async def test_two_waiting_flushes_of_a_scope_are_one(desk: Desk) -> None:
    """A flush that waits last in its lane and is unclaimed is reused."""
    first = await desk.enqueue("flush", ALICE)
    assert await desk.enqueue("flush", ALICE) == first
    assert await desk.claim_job(first) is not None
    assert await desk.enqueue("flush", ALICE) != first


async def test_a_flush_with_something_between_is_not_reused(desk: Desk) -> None:
    """Flush, forget, flush are three jobs."""
    first = await desk.enqueue("flush", ALICE)
    await desk.enqueue_forget(CHAT_1)
    assert await desk.enqueue("flush", ALICE) != first


async def test_an_erase_supersedes_the_flushes_it_covers(desk: Desk) -> None:
    """Nobody waits for a flush whose rows will be gone."""
    covered = [await desk.enqueue("flush", scope) for scope in (CHAT_1, CHAT_2, ALICE)]
    assert await desk.forget(ALICE) == "forgot 1"
    for job_id in covered:
        assert (await desk.outcome(job_id))[0] == "superseded"


async def test_a_running_flush_meets_the_erase_that_covers_it(desk: Desk) -> None:
    """A flush that was claimed before sees the intent and ends as superseded."""
    flush = await desk.enqueue("flush", CHAT_1)
    job = await desk.claim_job(flush)
    assert job is not None
    erase = await desk.enqueue_forget(ALICE)
    from afterturn.jobs.tally import Tally

    tally = Tally()
    await desk.lifecycle.run(job, tally)
    assert str(tally) == "superseded 1"
    assert await desk.run(erase) == "forgot 1"


async def test_a_failing_flush_yields_to_an_erase_that_waits(desk: Desk) -> None:
    """It goes to the tail, and the erase runs."""
    flush = await desk.enqueue("flush", ALICE)
    job = await desk.claim_job(flush)
    assert job is not None
    erase = await desk.enqueue_forget(CHAT_1)
    assert await desk.claim_job(erase) is None
    verdict, successor = await desk.ledger.fail_lifecycle(job.lease, "MemoryUnavailable")
    assert verdict == "requeued"
    assert successor is not None
    await desk.ledger.unblock(flush)
    assert await desk.run(erase) == "forgot 1"
    assert await desk.run(successor) == "flushed 1"


async def test_a_lost_flush_whose_erase_takes_all_of_it_ends_for_good(
    desk: Desk, database: Database, settings: Settings, quiet: RingPublisher
) -> None:
    """And says so: nothing of it is behind the erase."""
    runner = Runner(database, settings, quiet, None, None)
    flush = await desk.enqueue("flush", CHAT_1)
    assert await desk.claim_job(flush) is not None
    erase = await desk.enqueue_forget(ALICE)
    await desk.expire_lease(flush)
    assert await runner.run("flush", [flush]) == "superseded 1"
    assert await desk.run(erase) == "forgot 1"


async def test_a_flush_whose_worker_was_lost_yields_to_an_erase_that_waits(desk: Desk) -> None:
    """Taking over its lease finds the erase and puts the flush behind it."""
    flush = await desk.enqueue("flush", ALICE)
    assert await desk.claim_job(flush) is not None
    erase = await desk.enqueue_forget(CHAT_1)
    await desk.expire_lease(flush)
    assert await desk.ledger.claim_lifecycle(flush) == ("requeued", None)
    await desk.ledger.unblock(flush)
    assert await desk.run(erase) == "forgot 1"


async def test_what_yields_is_rung_as_what_it_is_once_the_erase_is_done(
    desk: Desk, database: Database, settings: Settings
) -> None:
    """An expiry that went to the tail waits there; its ring is one for an expiry."""
    broker = redis.Redis.from_url(redis_client_url(str(settings.broker_url)))
    broker.delete(f"afterturn:{LIFECYCLE_QUEUE}")
    rings = RingPublisher(str(settings.broker_url), settings)
    runner = Runner(database, settings, rings, None, None)
    request = {"rule": 1, "layer": "working", "before": datetime.now(UTC).isoformat()}
    expiry = await desk.enqueue("expire", ALICE, request)
    assert await desk.claim_job(expiry) is not None
    erase = await desk.enqueue_forget(ALICE, named={"turn_ids": ["t"]})
    await desk.expire_lease(expiry)
    assert await runner.run("expire", [expiry]) == "requeued 1"
    receipt = await desk.value("select receipt from afterturn.jobs where id = $1", expiry)
    assert await runner.run("forget", [erase]) == "forgot 1"
    await asyncio.to_thread(rings.close, 10.0)
    sent = [json.loads(each) for each in broker.lrange(f"afterturn:{LIFECYCLE_QUEUE}", 0, -1)]
    broker.close()
    told = [(each["headers"]["task"], _ids(each)) for each in sent]
    assert [task for task, ids in told if receipt["successor"] in ids] == [TASKS["expire"]]


def _ids(message: dict[str, Any]) -> list[int]:
    args, _, _ = json.loads(base64.b64decode(message["body"]))
    ids: list[int] = args[0]
    return ids


async def test_a_failing_erase_never_dies_and_stays_in_front(desk: Desk) -> None:
    """It is put back with a backoff, and what was enqueued after it waits on."""
    erase = await desk.enqueue_forget(ALICE)
    job = await desk.claim_job(erase)
    assert job is not None
    flush = await desk.enqueue("flush", CHAT_1)
    for _ in range(desk.settings.max_attempts + 2):
        assert (await desk.ledger.fail_lifecycle(job.lease, "MemoryUnavailable"))[0] == "retry"
        assert await desk.claim_job(flush) is None
        await desk.expire_lease(erase)
        job = await desk.claim_job(erase)
        assert job is not None


async def test_numbers_are_commit_order_where_scopes_overlap(desk: Desk) -> None:
    """An open enqueue holds back the ones that overlap, so no smaller number appears later."""
    async with desk.database.connection() as conn:
        transaction = conn.transaction()
        await transaction.start()
        first = await conn.fetchval(
            "select job_id from afterturn.enqueue_lifecycle('flush', $1, '{}', '1s')",
            ALICE.stored_path,
        )
        waiting = asyncio.create_task(desk.enqueue("flush", CHAT_1))
        # A scope beside it does not wait.
        await desk.enqueue("flush", BOB)
        assert not waiting.done()
        await transaction.commit()
    assert await waiting > first


async def test_a_wake_up_is_not_lost_to_a_blocker_that_ends_meanwhile(desk: Desk) -> None:
    """Enqueuing beside an open end of the blocker waits for it, and is then free."""
    flush = await desk.enqueue("flush", ALICE)
    async with desk.database.connection() as conn:
        transaction = conn.transaction()
        await transaction.start()
        await conn.execute("select afterturn.end_lifecycle($1, 'done', '{}')", flush)
        waiting = asyncio.create_task(desk.enqueue_forget(CHAT_1))
        await desk.value("select 1")
        await transaction.commit()
    erase = await waiting
    await desk.ledger.unblock(flush)
    assert await desk.run(erase) == "forgot 1"


async def test_a_coalesced_flush_is_not_claimed_before_the_caller_commits(desk: Desk) -> None:
    """Reusing a waiting flush locks its row: what the open transaction wrote is published."""
    first = await desk.enqueue("flush", ALICE)
    async with desk.database.connection() as conn, conn.transaction():
        again = await conn.fetchval(
            "select job_id from afterturn.enqueue_lifecycle('flush', $1, '{}', '1s')",
            ALICE.stored_path,
        )
        assert again == first
        assert await desk.claim_job(first) is None
    assert await desk.run(first) == "flushed 1"


async def test_waiting_behind_one_erase_costs_the_sweep_nothing(desk: Desk) -> None:
    """Blocked jobs are no candidates of the sweep, however many."""
    erase = await desk.enqueue_forget(ACME)
    for n in range(20):
        await desk.enqueue("flush", ACME.child(f"u{n}"))
    await desk.value("update afterturn.jobs set ring_at = afterturn.clock() - interval '1 s'")
    rung = await desk.rows("select * from afterturn.sweep(100, '1s') where job_id is not null")
    assert [row["job_id"] for row in rung] == [erase]
    await desk.run(erase)
    await desk.value("update afterturn.jobs set ring_at = afterturn.clock() - interval '1 s'")
    rung = await desk.rows("select * from afterturn.sweep(100, '1s') where job_id is not null")
    assert len(rung) == 20


@pytest.mark.parametrize("flushed", [CHAT_1, ACME])
@pytest.mark.parametrize("state", ["staged", "held", "left", "to be repeated"])
async def test_a_flush_publishes_what_was_acknowledged_before(
    desk: Desk, flushed: MemoryScope, state: str
) -> None:
    """A turn that nobody has begun, that a worker holds, that a lost one left, that has failed and
    waits for its time: when the flush has ended it can be read, and only once."""
    staged = await desk.stage(CHAT_1, "t")
    held = None if state == "staged" else await desk.claim("record", staged.record_job)
    if state == "left":
        await desk.expire_lease(staged.record_job)
    if state == "to be repeated":
        assert held is not None
        assert await desk.ledger.fail_turn(held.lease, "no space") == "retry"
    assert await desk.flush(flushed) == "recorded 1, flushed 1"
    assert len(await desk.texts()) == 4
    if held is not None:
        tally = Tally()
        await desk.recorder.record([held], tally)
        assert str(tally).startswith("refused")
    assert (len(await desk.texts()), await desk.texts(pending=True)) == (4, [])


async def test_a_named_erase_waits_for_the_flushes_before_it(desk: Desk) -> None:
    """It does not take a flush's rows as a whole, so it neither supersedes nor overtakes it."""
    flush = await desk.enqueue("flush", CHAT_1)
    erase = await desk.enqueue_forget(CHAT_1, named={"record_ids": ["r"], "turn_ids": []})
    assert await desk.claim_job(erase) is None
    assert await desk.run(flush) == "flushed 1"
    assert await desk.run(erase) == "forgot 1"


async def test_a_flush_of_turns_that_a_named_erase_holds_back_goes_behind_it(desk: Desk) -> None:
    """It does not say done without a turn that was acknowledged before it."""
    await desk.stage(CHAT_1, "t1")
    flush = await desk.enqueue("flush", CHAT_1)
    erase = await desk.enqueue_forget(CHAT_1, named={"record_ids": ["r"], "turn_ids": []})
    assert await desk.run(flush) == "erasing 1, requeued 1"
    assert await desk.run(erase) == "forgot 1"
    receipt = await desk.value("select receipt from afterturn.jobs where id = $1", flush)
    assert await desk.run(receipt["successor"]) == "recorded 1, flushed 1"
    assert len(await desk.texts()) == 4


async def test_a_flush_records_a_turn_whose_lease_an_erase_took_meanwhile(desk: Desk) -> None:
    """One pass over the waiting turns is not enough when an erase elsewhere puts one back."""
    staged = await desk.stage(CHAT_1, "t1")
    flush = await desk.enqueue("flush", CHAT_1)
    record = desk.recorder.record
    passes = 0

    async def record_after_an_erase(turns: object, tally: object) -> None:
        nonlocal passes
        passes += 1
        if passes == 1:
            await desk.value("select afterturn.refresh_tokens($1)", CHAT_1.stored_path)
        await record(turns, tally)  # type: ignore[arg-type] # the step's own arguments

    desk.recorder.record = record_after_an_erase  # type: ignore[method-assign]
    assert await desk.run(flush) == "recorded 1, flushed 1, refused: lease lost"
    assert staged.verdict == "staged"
    assert len(await desk.texts()) == 4
