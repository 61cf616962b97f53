"""Where two parts meet beside an erase: what each does alone is not enough."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from afterturn.extraction.facts import fact_id
from afterturn.pipeline.rows import record_row
from afterturn.records import MemoryLayer, MemoryRecord, Source
from afterturn.retrieval.cache import RetrievalCache
from afterturn.retrieval.reader import Reader, named_rows
from afterturn.scope import MemoryScope
from afterturn.writes import WriteRequest
from afterturn.writing import PostgresWriting
from tests.pipeline.conftest import ALICE, CHAT_1, CHAT_2, Desk
from tests.pipeline.conftest import desk as desk
from tests.pipeline.test_facts import HOME, about, current, learn, say
from tests.pipeline.test_interleavings import FINAL, fence, until_waiting

_NAMES_OF = """
select 'jobs ' || kind as what from afterturn.jobs where path like $1
union all select 'memories' from afterturn.memories where path like $1 or turn_path like $1
union all select 'sources' from afterturn.memory_sources where path like $1 or turn_path like $1
union all select 'schedules' from afterturn.schedules where path like $1
union all select 'turns' from afterturn.turns where path like $1
"""


async def left_of(desk: Desk, scope: MemoryScope) -> list[str]:
    """Where the scope is still named."""
    return [row["what"] for row in await desk.rows(_NAMES_OF, scope.stored_path + "%")]


def written(scope: MemoryScope, *sources: Source) -> WriteRequest:
    """A write of one fact."""
    record = MemoryRecord(
        record_id="w",
        text="lives in Oslo",
        layer=MemoryLayer.SEMANTIC,
        scope_path=scope.path,
        origin="app",
        sources=sources,
    )
    return WriteRequest(scope=scope, records=(record,), token=None)


async def test_a_write_learned_elsewhere_is_seen_by_the_erase_there(desk: Desk) -> None:
    """A write with a source elsewhere that commits while that scope is erased goes with it."""
    await desk.record(await desk.stage(CHAT_1, "t1"))
    request = written(ALICE, Source(turn_id="t1", turn_path=CHAT_1.path))
    held = asyncio.Event()
    go_on = asyncio.Event()

    async def write() -> None:
        async with desk.database.connection() as conn, conn.transaction():
            await conn.fetch(
                "select * from afterturn.write_records($1, null, $2::jsonb)",
                ALICE.stored_path,
                [record_row(request.records[0])],
            )
            held.set()
            await go_on.wait()

    writing = asyncio.create_task(write())
    await held.wait()
    erase = asyncio.create_task(desk.forget(CHAT_1))
    await asyncio.wait({erase}, timeout=0.3)
    go_on.set()
    await writing
    assert await erase == "forgot 1"
    assert await left_of(desk, CHAT_1) == []


async def test_a_write_cannot_name_what_was_erased(desk: Desk) -> None:
    """A source that an erase took refuses its record, alone: the turn's name is not kept again."""
    writing = PostgresWriting(desk.database, desk.settings)
    for turn_id in ("t1", "t2"):
        await desk.record(await desk.stage(CHAT_1, turn_id))
    await desk.forget(CHAT_1, named={"turn_ids": ["t1"]})
    gone, there = (Source(turn_id=turn_id, turn_path=CHAT_1.path) for turn_id in ("t1", "t2"))
    (bad,) = written(ALICE, there, gone).records
    good = bad.model_copy(update={"record_id": "good", "sources": (there,)})
    receipt = await writing.write(WriteRequest(scope=ALICE, records=(bad, good)))
    assert [(each.record_id, each.status) for each in receipt.outcomes] == [
        ("w", "refused"),
        ("good", "pending"),
    ]
    assert "source" in receipt.outcomes[0].reason
    await desk.forget(CHAT_1)
    receipt = await writing.write(
        WriteRequest(scope=ALICE, records=(bad, good), token=await desk.token(ALICE))
    )
    assert [each.status for each in receipt.outcomes] == ["refused", "refused"]
    assert await left_of(desk, CHAT_1) == []


async def test_a_write_that_waited_for_an_erase_of_its_source_is_refused(desk: Desk) -> None:
    """It is judged by what holds after the wait."""
    await desk.record(await desk.stage(CHAT_1, "t1"))
    job = await desk.claim_job(await desk.enqueue_forget(CHAT_1))
    async with desk.database.connection() as conn, conn.transaction():
        assert await conn.fetchval(FINAL, *fence(job)) == "done"
        source = Source(turn_id="t1", turn_path=CHAT_1.path)
        writing = asyncio.create_task(
            PostgresWriting(desk.database, desk.settings).write(written(ALICE, source))
        )
        await until_waiting(desk)
    assert [each.status for each in (await writing).outcomes] == ["refused"]
    assert await left_of(desk, CHAT_1) == []


async def test_a_turn_under_way_may_be_named_before_it_is_finished(desk: Desk) -> None:
    """Its token says that it began after the erase; so does a scope that never had one."""
    await desk.forget(ALICE)
    writing = PostgresWriting(desk.database, desk.settings)
    own = Source(turn_id="t1", turn_path=ALICE.path)
    below = Source(turn_id="t1", turn_path=CHAT_1.path)
    (record,) = written(ALICE, own, below).records
    receipt = await writing.write(
        WriteRequest(scope=ALICE, records=(record,), token=await desk.token(ALICE))
    )
    assert [each.status for each in receipt.outcomes] == ["pending"]


async def test_a_flush_that_gives_way_leaves_no_name(desk: Desk) -> None:
    """An erase of all it covers ends a failing flush for good: nothing is queued behind."""
    await desk.stage(CHAT_1, "t1")
    flush = await desk.claim_job(await desk.enqueue("flush", CHAT_1))
    assert flush is not None
    erase = await desk.enqueue_forget(CHAT_1)
    assert await desk.ledger.fail_lifecycle(flush.lease, "x") == ("superseded", None)
    await desk.ledger.unblock(flush.lease.job_id)
    assert await desk.run(erase) == "forgot 1"
    assert await left_of(desk, CHAT_1) == []


async def test_a_rule_looked_at_before_an_erase_makes_no_job_after_it(desk: Desk) -> None:
    """What was to expire has gone; a job would only name the scope."""
    await desk.record(await desk.stage(CHAT_1, "t1"))
    rule = await desk.value(
        "select id from afterturn.add_rule($1, 'working', 1, null, null)", ALICE.stored_path
    )
    await desk.forget(CHAT_1)
    await desk.rows(
        "select * from afterturn.enqueue_expire($1, $2, 'working', $3, '5s')",
        rule,
        CHAT_1.stored_path,
        datetime.now(UTC) + timedelta(hours=1),
    )
    assert await left_of(desk, CHAT_1) == []


async def test_a_streamed_read_shows_no_links(desk: Desk) -> None:
    """What a kept fact was learned from is no source that a reader may see."""
    await say(desk, CHAT_1, "t1")
    await learn(desk, CHAT_1, "t1", about("lives in Oslo", (CHAT_1, "t1"), at=ALICE))
    await desk.forget(CHAT_1, derived="keep")
    reader = Reader(desk.database, RetrievalCache(1_000_000), model_id="", dim=0)
    async with reader.snapshot(["v1/acme/", ALICE.stored_path]) as (conn, _):
        (row,) = await named_rows(conn, [(ALICE.stored_path, fact_id("lives in Oslo", HOME))])
    assert row.sources == ()


async def test_a_kept_fact_is_not_replaced_by_an_earlier_one(desk: Desk) -> None:
    """Its statement went with the erased turn; when it was said still counts."""
    await say(desk, CHAT_2, "t0", 0)
    await say(desk, CHAT_1, "t1", 1)
    await learn(desk, CHAT_1, "t1", about("lives in Bergen", (CHAT_1, "t1"), at=ALICE))
    await desk.forget(CHAT_1, derived="keep")
    await learn(desk, CHAT_2, "t0", about("lives in Oslo", (CHAT_2, "t0"), at=ALICE))
    assert [text for text, _ in await current(desk)] == ["lives in Bergen"]


async def test_a_forgotten_record_does_not_come_back_by_a_statement(desk: Desk) -> None:
    """A record that stands for facts of the same words takes them with it."""
    await PostgresWriting(desk.database, desk.settings).write(written(ALICE))
    await desk.flush(ALICE)
    for number in range(2):
        await say(desk, ALICE, f"t{number}", number)
        await learn(desk, ALICE, f"t{number}", about("lives in Oslo", (ALICE, f"t{number}")))
    await desk.forget(ALICE, named={"record_ids": ["w"]})
    await say(desk, ALICE, "before", -5)
    await learn(desk, ALICE, "before", about("lives in Bergen", (ALICE, "before")))
    assert "lives in Oslo" not in [text for text, _ in await current(desk)]


async def test_a_failing_flush_does_not_wait_for_who_waits_for_it(desk: Desk) -> None:
    """An enqueuer holds the lane and will look at the flush's row: no deadlock. The flush waits a
    moment, and says so: it has not ended."""
    flush = await desk.claim_job(await desk.enqueue("flush", ALICE))
    assert flush is not None
    await desk.enqueue_forget(CHAT_1)
    async with desk.database.connection() as conn, conn.transaction():
        await conn.execute("select afterturn.lock_lane($1)", CHAT_2.stored_path)
        failing = asyncio.create_task(desk.ledger.fail_lifecycle(flush.lease, "x"))
        await asyncio.wait({failing}, timeout=0.3)
        await conn.fetch(
            "select * from afterturn.enqueue_lifecycle('forget', $1, '{}', '5s')",
            CHAT_2.stored_path,
        )
    assert await failing == ("retry", None)
    assert await desk.outcome(flush.lease.job_id) == (None, "x")


async def test_leases_are_renewed_in_the_order_of_jobs(desk: Desk) -> None:
    """Whatever the order of the rows on disk: who locks by id never waits in a circle."""
    for number in range(3):
        await desk.stage(CHAT_1, f"t{number}")
    ids = [row["id"] for row in await desk.rows("select id from afterturn.jobs order by id")]
    first, second, _ = leases = [
        turn.lease for turn in await desk.ledger.claim_turns("record", ids, limit=3)
    ]
    await desk.ledger.renew([first])  # its row moves behind the others
    locked = "select 1 from afterturn.jobs where id = $1 for update"
    async with desk.database.connection() as conn, conn.transaction():
        await conn.execute(locked, first.job_id)
        renewing = asyncio.create_task(desk.ledger.renew(leases))
        await until_waiting(desk)
        await conn.execute(locked, second.job_id)
    await renewing


async def test_a_schedule_made_beside_an_erase_goes_with_it(desk: Desk) -> None:
    """Begun before and committed after the erase: it is seen, or it is not made."""
    async with desk.database.connection() as conn, conn.transaction():
        await conn.fetchrow(
            "select * from afterturn.schedule_forget($1, now() + interval '1 day', '{}')",
            CHAT_1.stored_path,
        )
        erase = asyncio.create_task(desk.forget(CHAT_1))
        await asyncio.wait({erase}, timeout=0.3)
    await erase
    assert await left_of(desk, CHAT_1) == []
