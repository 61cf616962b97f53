"""Leases: the effect happens once, whoever wakes up, and a poison turn parks alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from afterturn.database import Database
from afterturn.jobs.rings import RingPublisher
from afterturn.jobs.tally import Tally
from afterturn.pipeline.runner import Runner
from afterturn.settings import Settings
from tests.pipeline.conftest import CHAT_1, CHAT_2, Desk, fact
from tests.pipeline.test_interleavings import until_waiting


async def test_a_lost_lease_is_refused_and_the_effect_happens_once(desk: Desk) -> None:
    """A worker that wakes after its lease ran out and another took over writes nothing."""
    staged = await desk.stage(CHAT_1, "t1")
    slow = await desk.claim("record", staged.record_job)
    await desk.expire_lease(staged.record_job)
    await desk.recorder.record([await _retaken(desk, staged.record_job)], Tally())
    tally = Tally()
    await desk.recorder.record([slow], tally)
    assert str(tally) == "refused: stale turn"
    assert await desk.value("select count(*) from afterturn.memories") == 4


async def _retaken(desk: Desk, job_id: int | None):  # type: ignore[no-untyped-def]
    return await desk.claim("record", job_id)


async def test_a_leased_job_is_not_claimed_again(desk: Desk) -> None:
    """Two rings for one job: the second finds nothing to do."""
    staged = await desk.stage(CHAT_1, "t1")
    assert staged.record_job is not None
    await desk.claim("record", staged.record_job)
    ids = [staged.record_job]
    assert await desk.ledger.claim_turns("record", ids, limit=9) == []
    assert await desk.ledger.claim_turns("record", ids, limit=9, lost=True) == []


async def test_one_ring_fetches_what_else_waits(desk: Desk) -> None:
    """A ring for one job takes other waiting ones of its kind along."""
    staged = [await desk.stage(CHAT_1, f"t{n}") for n in range(5)]
    assert staged[3].record_job is not None
    turns = await desk.ledger.claim_turns("record", [staged[3].record_job], limit=50)
    assert sorted(turn.turn_id for turn in turns) == ["t0", "t1", "t2", "t3", "t4"]


async def test_a_job_whose_worker_was_lost_twice_comes_back_alone(desk: Desk) -> None:
    """A turn that kills its process takes no neighbour into the next attempt. After one loss the
    whole batch is tried again together: one of many was the cause, or none."""
    first = await desk.stage(CHAT_1, "t1")
    await desk.claim("record", first.record_job)
    await desk.expire_lease(first.record_job)
    await desk.claim("record", first.record_job)
    await desk.expire_lease(first.record_job)
    second = await desk.stage(CHAT_1, "t2")
    assert first.record_job is not None
    assert second.record_job is not None
    ids = [first.record_job, second.record_job]
    fresh = await desk.ledger.claim_turns("record", ids, limit=9)
    assert [turn.turn_id for turn in fresh] == ["t2"]
    again = await desk.ledger.claim_turns("record", ids, limit=1, lost=True)
    assert [turn.turn_id for turn in again] == ["t1"]


async def test_the_sweep_lets_go_of_a_lost_workers_turns_but_not_of_suspects(
    desk: Desk, database: Database, settings: Settings, quiet: RingPublisher
) -> None:
    """They are taken in batches like any that wait; one that was lost twice is left for a run of
    its own; and the worker, should it wake, is refused."""
    runner = Runner(database, settings, quiet, None, None)
    staged = [await desk.stage(CHAT_1, f"t{n}") for n in range(3)]
    ids = [each.record_job for each in staged if each.record_job is not None]
    for _ in range(2):
        await desk.claim("record", ids[0])
        await desk.expire_lease(ids[0])
    slow = [await desk.claim("record", job_id) for job_id in ids[1:]]
    for job_id in ids[1:]:
        await desk.expire_lease(job_id)
    await runner.sweep()
    tally = Tally()
    await desk.recorder.record(slow, tally)
    assert str(tally) == "refused 2: lease lost"
    turns = await desk.ledger.claim_turns("record", [], limit=9)
    assert sorted(turn.turn_id for turn in turns) == ["t1", "t2"]
    (suspect,) = await desk.ledger.claim_turns("record", ids, limit=9, lost=True)
    assert suspect.turn_id == "t0"


async def test_attempts_are_counted_before_the_work_and_end(desk: Desk) -> None:
    """A job whose worker is lost every time is dead after its attempts, and visible by turn id."""
    staged = await desk.stage(CHAT_1, "t1")
    assert staged.record_job is not None
    ids = [staged.record_job]
    for attempt in range(desk.settings.max_attempts):
        (turn,) = await desk.ledger.claim_turns("record", ids, limit=1, lost=attempt > 1)
        assert turn.lease.attempts == attempt + 1
        await desk.expire_lease(staged.record_job)
    assert await desk.ledger.claim_turns("record", ids, limit=1, lost=True) == []
    assert await desk.outcome(staged.record_job) == ("dead", "worker lost")
    assert await desk.value("select outcome from afterturn.turns where turn_id='t1'") == "dead"


async def test_one_bad_turn_of_a_batch_fails_alone(desk: Desk) -> None:
    """A turn whose rows the database refuses goes back; its neighbours are done."""
    staged = [await desk.stage(CHAT_1, f"t{n}") for n in range(3)]
    await desk.value(
        "alter table afterturn.memories add constraint poison check (text <> 'poison')"
    )
    await desk.value(
        "update afterturn.turns set query = 'poison', answer = null where turn_id = 't1'"
    )
    ids = [each.record_job for each in staged if each.record_job is not None]
    turns = await desk.ledger.claim_turns("record", ids, limit=9)
    tally = Tally()
    await desk.recorder.record(turns, tally)
    assert str(tally) == "recorded 2, retry (MemoryUnavailable SQLSTATE 23514) 1"
    assert await desk.outcome(staged[1].record_job) == (None, "MemoryUnavailable SQLSTATE 23514")


async def test_a_failed_attempt_waits_longer_each_time(desk: Desk) -> None:
    """Backoff doubles up to its cap, with jitter."""
    waits = [desk.ledger.backoff(attempts).total_seconds() for attempts in (1, 2, 3, 60)]
    base, cap = desk.settings.retry_base_seconds, desk.settings.retry_cap_seconds
    for wait, middle in zip(waits, (base, 2 * base, 4 * base, cap), strict=True):
        assert 0.8 * middle <= wait <= 1.2 * middle


async def test_renewed_leases_stay_and_lost_ones_are_named(desk: Desk) -> None:
    """Renewing tells which jobs are still held."""
    one = await desk.claim("record", (await desk.stage(CHAT_1, "t1")).record_job)
    two = await desk.claim("record", (await desk.stage(CHAT_1, "t2")).record_job)
    await desk.recorder.record([two], Tally())
    assert await desk.ledger.renew([one.lease, two.lease]) == {one.lease.job_id}


async def test_released_jobs_are_free_at_once_and_cost_no_attempt(desk: Desk) -> None:
    """A stopping worker gives its jobs back."""
    turn = await desk.claim("record", (await desk.stage(CHAT_1, "t1")).record_job)
    await desk.ledger.release([turn.lease])
    again = await desk.claim("record", turn.lease.job_id)
    assert again.lease.attempts == 1


async def test_waiting_embed_jobs_of_a_path_are_one(desk: Desk) -> None:
    """Many turns of a scope need one embed job; one that was claimed is followed by another."""
    for n in range(3):
        await desk.record(await desk.stage(CHAT_1, f"t{n}"))
    count = "select count(*) from afterturn.jobs where kind = 'embed' and path = $1"
    assert await desk.value(count, CHAT_1.stored_path) == 1
    job_id = await desk.value("select id from afterturn.jobs where kind = 'embed'")
    assert await desk.ledger.claim_embed([job_id]) is not None
    await desk.record(await desk.stage(CHAT_1, "t9"))
    assert await desk.value(count, CHAT_1.stored_path) == 2


async def test_an_embed_job_put_back_beside_another_ends_as_that_one(desk: Desk) -> None:
    """Two waiting embed jobs of one path never stand side by side."""
    await desk.record(await desk.stage(CHAT_1, "t1"))
    job_id = await desk.value("select id from afterturn.jobs where kind = 'embed'")
    job = await desk.ledger.claim_embed([job_id])
    assert job is not None
    await desk.record(await desk.stage(CHAT_1, "t2"))
    assert await desk.ledger.fail_turn(job.lease, "model away") == "retry"
    jobs = await desk.rows("select id from afterturn.jobs where kind = 'embed'")
    assert len(jobs) == 1
    assert jobs[0]["id"] > job_id


async def test_an_embed_job_put_back_while_another_is_added_ends_as_that_one(desk: Desk) -> None:
    """The other one cannot be seen before its transaction commits, and then they collide."""
    await desk.record(await desk.stage(CHAT_1, "t1"))
    job_id = await desk.value("select id from afterturn.jobs where kind = 'embed'")
    job = await desk.ledger.claim_embed([job_id])
    assert job is not None
    async with desk.database.connection() as conn:
        adding = conn.transaction()
        await adding.start()
        await conn.fetch("select e from afterturn.enqueue_embed(array[$1]) e", CHAT_1.stored_path)
        failing = asyncio.create_task(desk.ledger.fail_turn(job.lease, "model away"))
        await until_waiting(desk)
        await adding.commit()
    assert await failing == "retry"
    (left,) = await desk.rows("select id from afterturn.jobs where kind = 'embed'")
    assert left["id"] > job_id


async def test_a_vector_of_replaced_text_is_not_stored(desk: Desk) -> None:
    """Embedding only updates rows that still are what was embedded."""
    await desk.record(await desk.stage(CHAT_1, "t1"))
    rows = await desk.rows("select record_id, revision from afterturn.memories order by 1")
    job_id = await desk.value("select id from afterturn.jobs where kind = 'embed'")
    job = await desk.ledger.claim_embed([job_id])
    assert job is not None
    await desk.value(
        "update afterturn.memories set text = 'new', revision = afterturn.draw_number() "
        "where record_id = $1",
        rows[0]["record_id"],
    )
    verdict = await desk.ledger.apply_embed(
        job,
        [row["record_id"] for row in rows],
        [row["revision"] for row in rows],
        [b"\0\0"] * len(rows),
        last=True,
    )
    assert verdict == "done"
    lacking = await desk.rows("select text from afterturn.memories where embedding is null")
    assert [row["text"] for row in lacking] == ["new"]


async def test_the_same_work_applied_at_once_takes_effect_once(desk: Desk) -> None:
    """One of several simultaneous applies of a job wins; the others are refused."""
    turn = await desk.extract_job(CHAT_1, "t1")
    facts = [fact(CHAT_1, "fact:t1:1", "Rex is a dog")]
    told = await asyncio.gather(*(desk.extract(turn, *facts) for _ in range(6)))
    assert sorted(told) == ["extracted 1"] + ["refused: stale turn"] * 5


async def test_records_outside_the_turns_scope_and_ancestors_are_refused(desk: Desk) -> None:
    """An extraction cannot write to a sibling, whatever the model says."""
    turn = await desk.extract_job(CHAT_1, "t1")
    told = await desk.extract(turn, fact(CHAT_2, "f", "elsewhere"))
    assert told == "refused: record outside the scope"
    assert {path for path, _ in await desk.texts()} == {CHAT_1.stored_path}


async def test_an_embed_job_that_somebody_adds_to_is_waited_for(
    desk: Desk, database: Database, settings: Settings, quiet: RingPublisher
) -> None:
    """Who adds records to a waiting job holds its row and does not ring: the ring that came before
    finds it a moment later, and not only the next sweep."""

    class Flat:
        model_id, dim = "flat", 2

        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            return np.ones((len(texts), 2), dtype=np.float32)

    runner = Runner(database, settings, quiet, None, Flat())
    await desk.record(await desk.stage(CHAT_1, "t1"))
    enqueue = "select e from afterturn.enqueue_embed(array[$1]) e"
    job_id = await desk.value("select id from afterturn.jobs where kind = 'embed'")
    async with desk.database.connection() as conn:
        adding = conn.transaction()
        await adding.start()
        await conn.fetch(enqueue, CHAT_1.stored_path)
        embedding = asyncio.create_task(runner.run("embed", [job_id]))
        await asyncio.wait({embedding}, timeout=0.1)
        assert not embedding.done()
        await adding.commit()
    assert await embedding == "embedded 4"
