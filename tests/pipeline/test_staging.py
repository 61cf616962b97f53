"""Staging: durable, known again, refused when stale or under an erase."""

from __future__ import annotations

import asyncio

import pytest

from afterturn.errors import MemoryContractError
from tests.pipeline.conftest import ALICE, CHAT_1, CHAT_2, Desk

# In a transaction of the test's own; its argument is the stored path.
STAGE_AT = """
select afterturn.stage_turn(
    afterturn.covering($1), 't1', '{0,0,0}', null, 'q', 'a', null, '{}', null, '1s')
"""


async def test_a_turn_is_staged_with_its_job_and_extracted_after_it_is_recorded(
    desk: Desk,
) -> None:
    """Staging enqueues the recording, recording enqueues the extraction."""
    kinds = "select kind, turn_id from afterturn.jobs where kind <> 'embed'"
    staged = await desk.stage(CHAT_1, "t1")
    assert staged.verdict == "staged"
    assert await desk.rows(kinds) == [{"kind": "record", "turn_id": "t1"}]
    await desk.record(staged)
    assert await desk.rows(kinds) == [{"kind": "extract", "turn_id": "t1"}]


async def test_a_repeated_stage_is_the_same_turn_even_after_it_was_processed(desk: Desk) -> None:
    """The same scope and id is known, whatever became of the jobs: a retry is answered alike."""
    staged = await desk.stage(CHAT_1, "t1")
    assert (await desk.stage(CHAT_1, "t1", query="another")).verdict == "known"
    await desk.record(staged)
    await desk.extract(await desk.claim_extract(CHAT_1, "t1"))
    assert (await desk.stage(CHAT_1, "t1")).verdict == "known"
    assert await desk.value("select count(*) from afterturn.turns") == 1
    assert await desk.value("select count(*) from afterturn.memories") == 4


async def test_the_same_id_staged_at_once_is_one_turn(desk: Desk) -> None:
    """Concurrent stages of one id give one turn, and every caller is acknowledged."""
    results = await asyncio.gather(*(desk.stage(CHAT_1, "t1") for _ in range(8)))
    verdicts = sorted(result.verdict for result in results)
    assert verdicts == ["known"] * 7 + ["staged"]
    assert await desk.value("select count(*) from afterturn.jobs") == 1


async def test_the_same_id_elsewhere_is_another_turn(desk: Desk) -> None:
    """Turn ids are the scope's own."""
    assert (await desk.stage(CHAT_1, "t1")).verdict == "staged"
    assert (await desk.stage(CHAT_2, "t1")).verdict == "staged"


async def test_a_turn_begun_before_an_erase_is_stale_and_its_text_never_lands(desk: Desk) -> None:
    """After a completed forget the old token is refused, the new one passes."""
    old = await desk.token(CHAT_1)
    await desk.forget(ALICE)
    assert (await desk.stage(CHAT_1, "t1", token=old)).verdict == "stale"
    assert await desk.value("select count(*) from afterturn.turns") == 0
    assert (await desk.stage(CHAT_1, "t1")).verdict == "staged"


async def test_an_acknowledged_turn_is_known_after_an_erase_of_a_sibling_scope_moved_numbers(
    desk: Desk,
) -> None:
    """Known comes before the verdict: a retry of an acknowledged turn is not answered "stale"."""
    old = await desk.token(CHAT_1)
    staged = await desk.stage(CHAT_1, "t1", token=old)
    await desk.record(staged)
    named = {"record_ids": [], "turn_ids": ["other"]}
    await desk.forget(CHAT_1, named=named)
    assert (await desk.stage(CHAT_1, "t2", token=old)).verdict == "stale"
    assert (await desk.stage(CHAT_1, "t1", token=old)).verdict == "known"


async def test_nothing_is_staged_while_an_erase_stands(desk: Desk) -> None:
    """From the request on, in the scope and everything below it, and nowhere else."""
    token = await desk.token(CHAT_1)
    await desk.enqueue_forget(ALICE)
    assert (await desk.stage(CHAT_1, "t1", token=token)).verdict == "erasing"
    other = ALICE.ancestor(1).child("alice2")
    assert (await desk.stage(other, "t1")).verdict == "staged"


async def test_an_acknowledgement_is_on_disk_whatever_the_role_says(desk: Desk) -> None:
    """A session with synchronous_commit off still stages durably."""
    async with desk.database.connection() as conn, conn.transaction():
        await conn.execute("set local synchronous_commit = off")
        await conn.execute(
            STAGE_AT,
            CHAT_1.stored_path,
        )
        assert await conn.fetchval("show synchronous_commit") == "on"


async def test_a_repeatable_read_transaction_is_refused(desk: Desk) -> None:
    """A snapshot from before an erase could not see it, so such a transaction cannot stage."""
    async with desk.database.connection() as conn:
        with pytest.raises(MemoryContractError, match="READ COMMITTED"):
            await _stage_repeatable(desk)
        assert not conn.is_in_transaction()


async def _stage_repeatable(desk: Desk) -> None:
    async with (
        desk.database.connection() as conn,
        conn.transaction(isolation="repeatable_read"),
    ):
        await conn.execute(
            STAGE_AT,
            CHAT_1.stored_path,
        )
