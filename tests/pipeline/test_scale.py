"""The ledger's hot calls cost the same whatever else it holds.

Measured in buffers of 8 KiB that a call touches, everything inside its function included, on
tables that were never analyzed: the planner knows nothing of what was put there a moment ago.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias

import asyncpg
import pytest

from afterturn.database import Database
from afterturn.jobs.rings import RingPublisher
from afterturn.pipeline.runner import Runner
from afterturn.settings import Settings
from tests.pipeline.conftest import ALICE, Desk
from tests.schema.test_plans import cost

Connection: TypeAlias = "asyncpg.Connection[Any]"

MANY: Final = 100_000

_OURS: Final = """
insert into afterturn.jobs (kind, path, turn_id, ready_at, ring_at, created_at)
select kind, 'v1/acme/alice/', 'ours' || n, now() - interval '1 minute',
    now() + interval '1 minute', now()
from generate_series(1, 5) n, unnest(array['record', 'extract']) kind
"""

# What an outage leaves behind, each of a hundred thousand rows.
_CROWDS: Final = {
    "leased": """
insert into afterturn.jobs (kind, path, turn_id, attempts, lease_token, ready_at, ring_at,
    created_at)
select (array['record', 'extract'])[1 + n % 2], 'v1/acme/u' || n % 500 || '/', 't' || n, 1,
    gen_random_uuid(), now() + interval '1 minute', now() + interval '1 minute', now()
from generate_series(1, $1::integer) n
""",
    "lost with their worker": """
insert into afterturn.jobs (kind, path, turn_id, attempts, lease_token, ready_at, ring_at,
    created_at)
select (array['record', 'extract'])[1 + n % 2], 'v1/acme/u' || n % 500 || '/', 't' || n, 1,
    gen_random_uuid(), now() - interval '1 hour', now() + interval '1 minute', now()
from generate_series(1, $1::integer) n
""",
    "put back for later": """
insert into afterturn.jobs (kind, path, turn_id, attempts, ready_at, ring_at, created_at)
select (array['record', 'extract'])[1 + n % 2], 'v1/acme/u' || n % 500 || '/', 't' || n, 1,
    now() + interval '1 s' * (n % 300 + 60), now() + interval '1 s' * (n % 300 + 60), now()
from generate_series(1, $1::integer) n
""",
    "waiting": """
insert into afterturn.jobs (kind, path, turn_id, ready_at, ring_at, created_at)
select (array['record', 'extract'])[1 + n % 2], 'v1/acme/u' || n % 500 || '/', 't' || n,
    now() - interval '1 s', now() + interval '1 minute', now()
from generate_series(1, $1::integer) n
""",
    "blocked": """
with erase as (
    insert into afterturn.jobs (kind, path, ready_at, ring_at, created_at)
    values ('forget', 'v1/acme/', now(), now() + interval '1 minute', now()) returning id)
insert into afterturn.jobs (kind, path, blocked_by, ready_at, ring_at, created_at)
select 'flush', 'v1/acme/u' || n || '/', erase.id, now(), now() - interval '1 minute', now()
from generate_series(1, $1::integer) n, erase
""",
    "ended": """
insert into afterturn.jobs (kind, path, ready_at, ring_at, created_at, finished_at, outcome)
select 'flush', 'v1/acme/u' || n % 500 || '/', now(), now() - interval '1 hour', now(), now(),
    'done'
from generate_series(1, $1::integer) n
""",
}
SWEEP: Final = "select * from afterturn.sweep(500, '10s')"
CLAIMS: Final = {
    "record": "select * from afterturn.claim_turns('record', '{}', 5, false, 5, '30s')",
    "extract": "select * from afterturn.claim_turns('extract', '{}', 5, false, 5, '30s')",
    "embed": "select * from afterturn.claim_embed('{}', '30s')",
}


@pytest.fixture
async def conn(database_url: str) -> AsyncIterator[Connection]:
    """A transaction in a database with a few jobs of ours."""
    connection = await asyncpg.connect(database_url)
    await connection.execute("alter table afterturn.jobs set (autovacuum_enabled = off)")
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(_OURS)
    yield connection
    await transaction.rollback()
    await connection.close()


@pytest.mark.parametrize("crowd", _CROWDS)
async def test_a_claim_and_a_sweep_cost_the_same_beside_a_crowd(
    conn: Connection, crowd: str
) -> None:
    """With a hundred thousand unfinished jobs a claim touches what it touches without them, but
    for the depth of an index; a sweep at most twice as much as an idle one."""
    calls = {"sweep": SWEEP, **CLAIMS}
    alone = {name: await cost(conn, call) for name, call in calls.items()}
    await conn.execute(_CROWDS[crowd], MANY)
    for name, call in calls.items():
        beside = await cost(conn, call)
        assert beside.scanned == frozenset(), name
        limit = 2 * alone[name].buffers if name == "sweep" else alone[name].buffers + 60
        assert beside.buffers <= limit, (name, alone[name].buffers, beside.buffers)


class _Counting(Database):
    """A database that counts the statements it is asked."""

    asked = 0

    async def rows(self, sql: str, *args: object) -> list[asyncpg.Record]:
        self.asked += 1
        return await super().rows(sql, *args)

    async def value(self, sql: str, *args: object) -> Any:
        self.asked += 1
        return await super().value(sql, *args)


async def test_an_idle_tick_is_one_statement_with_one_probe(
    database_url: str, settings: Settings
) -> None:
    """With nothing to do a sweep asks once, reads one index and finds no row in it."""
    database = _Counting(database_url, settings, pool_size=1)
    rings = RingPublisher(str(settings.broker_url), settings)
    runner = Runner(database, settings, rings, None, None)
    try:
        assert await runner.sweep() == "rang 0"  # the first one of a process prunes, too
        before = database.asked
        for _ in range(3):
            assert await runner.sweep() == "rang 0"
        assert database.asked == before + 3
    finally:
        await database.close()
        rings.close()

    connection = await asyncpg.connect(database_url)
    try:
        async with connection.transaction():
            probes = """
                select indexrelname, pg_stat_get_xact_numscans(indexrelid) as scans,
                    pg_stat_get_xact_tuples_returned(indexrelid) as rows
                from pg_stat_user_indexes where relname = 'jobs'
            """
            await connection.fetch(SWEEP)
            used = {r["indexrelname"]: r for r in await connection.fetch(probes) if r["scans"]}
            assert used.keys() <= {"jobs_swept", "jobs_pkey"}
            assert used["jobs_swept"]["scans"] == 1
            assert sum(row["rows"] for row in used.values()) == 0
    finally:
        await connection.close()


_RECORDS: Final = """
insert into afterturn.memories (path, record_id, pending, turn_path, turn_id, layer, origin, text,
    metadata, importance, recorded_at, content, revision)
select 'v1/acme/alice/', 'r' || md5(n::text), false, 'v1/acme/alice/', 't' || n, 'episodic',
    'turn', 'said', '{}', 0.5, now(), 1, n
from generate_series(1, $1::integer) n
"""


async def test_the_end_of_an_erase_does_not_look_at_each_row_that_its_chunks_deleted(
    desk: Desk,
) -> None:
    """Until a vacuum they lie in every index; the last transaction, which holds the scope, reads
    the pages of the table once."""
    count = 20_000
    desk.lifecycle._settings = desk.settings.model_copy(update={"chunk_rows": 2_000})
    async with desk.database.connection() as connection:
        await connection.execute("alter table afterturn.memories set (autovacuum_enabled = off)")
        await connection.execute(_RECORDS, count)
        pages = await connection.fetchval("select pg_relation_size('afterturn.memories') / 8192")
    job = await desk.claim_job(await desk.enqueue_forget(ALICE))
    assert job is not None
    await desk.lifecycle._forget_in_chunks(job)
    assert await desk.value("select count(*) from afterturn.memories") == 0
    # Once: whoever looks at a dead row marks it in the index, and the next is spared.
    explained = await desk.value(
        "explain (analyze, buffers, format json) select * from afterturn.forget_final("
        f"{job.lease.job_id}, '{job.lease.token}', '{job.stored_path}', '30s')"
    )
    plan = json.loads(explained)[0]["Plan"]
    touched = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    print(f"{touched} buffers, the table has {pages} pages")
    assert touched < count / 2
