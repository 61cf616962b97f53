"""Changing the model whose vectors a database holds, beside an erase."""

from __future__ import annotations

import asyncio

from tests.erase.test_seams import left_of
from tests.pipeline.conftest import CHAT_1, Desk
from tests.pipeline.test_interleavings import FINAL, fence, until_waiting

REEMBED = "select * from afterturn.begin_reembed('letters-5', 5)"
DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"


async def embedded(desk: Desk, *, with_vectors: bool) -> None:
    """A recorded turn, and no embed job that waits."""
    await desk.record(await desk.stage(CHAT_1, "t1"))
    job = await desk.ledger.claim_embed([])
    assert job is not None
    rows = await desk.rows("select record_id, revision from afterturn.memories")
    ids, revisions = ([row[name] for row in rows] for name in ("record_id", "revision"))
    if not with_vectors:
        ids, revisions = [], []
    vectors = [b"\0\0"] * len(ids)
    assert await desk.ledger.apply_embed(job, ids, revisions, vectors, last=True) == "done"


async def test_a_change_of_model_leaves_no_job_of_an_erased_scope(desk: Desk) -> None:
    """The erase waits for it, and takes the jobs that it has made."""
    await embedded(desk, with_vectors=False)
    job = await desk.claim_job(await desk.enqueue_forget(CHAT_1))
    async with desk.database.connection() as conn, conn.transaction():
        await conn.fetch(REEMBED)
        assert await desk.value(FINAL, *fence(job)) == "reembedding"
    assert await desk.value(FINAL, *fence(job)) == "done"
    assert await left_of(desk, CHAT_1) == []


async def test_a_change_of_model_and_an_erase_never_wait_in_a_circle(desk: Desk) -> None:
    """An erase that has moved the numbers, and a change that has taken the jobs, both end."""
    await embedded(desk, with_vectors=True)
    await desk.record(await desk.stage(CHAT_1, "t2"))
    assert await desk.ledger.claim_embed([]) is not None
    job = await desk.claim_job(await desk.enqueue_forget(CHAT_1))
    async with desk.database.connection() as conn, conn.transaction():
        await conn.execute("select from afterturn.turns for update")
        final = asyncio.create_task(desk.value(FINAL, *fence(job)))
        await until_waiting(desk)
        change = asyncio.create_task(desk.rows(REEMBED))
        await until_waiting(desk, 2)
    assert await final == "done"
    await change
    assert await desk.value(DEADLOCKS) == 0
    assert await left_of(desk, CHAT_1) == []
