"""Hot statements touch few rows in a database that is full of other scopes' rows.

Measured, not read off a plan: the functions hide their plans, so the counters of the transaction
tell whether a large table was read from end to end, and EXPLAIN how many buffers a call touched,
everything inside functions included. Plans are generic, as they are after some calls.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import asyncpg
import pytest

from afterturn.scope import MemoryScope
from tests.conftest import TEMPLATE, database_named

Connection: TypeAlias = "asyncpg.Connection[Any]"

SCOPE: Final = MemoryScope.of("acme", "alice", "chat")
PATH: Final = SCOPE.stored_path
COVERING: Final = [SCOPE.ancestor(level).stored_path for level in (1, 2, 3)]
LARGE: Final = [
    "erase_intents",
    "fact_statements",
    "jobs",
    "memories",
    "memory_sources",
    "schedules",
    "scope_generations",
    "turns",
]

_FILL = """
insert into afterturn.scope_generations (scope_key, erase, content)
select afterturn.keyed(i.hash_key, 'v1/other/u' || n || '/'), n, n
from afterturn.installation i, generate_series(1, 200000) n;
select afterturn.move_erase(p) from unnest(afterturn.covering('v1/acme/alice/chat/')) p;

insert into afterturn.memories (path, record_id, pending, turn_path, turn_id, session, layer,
    origin, text, metadata, importance, recorded_at, content, revision, embedding)
select 'v1/other/u' || n % 500 || '/', 'r' || n, false, 'v1/other/u' || n % 500 || '/', 't' || n,
    's', 'semantic', 'turn', 'text ' || n, '{}', 0.5, now(), n, n, '\\x00'
from generate_series(1, 50000) n;
insert into afterturn.memory_sources
select path, record_id, pending, turn_path, turn_id from afterturn.memories;
insert into afterturn.turns (path, turn_id, query, metadata, happened_at, staged_at, token)
select 'v1/other/u' || n % 500 || '/', 't' || n, 'text', '{}', now(), now(), '{0,0}'
from generate_series(1, 20000) n;
insert into afterturn.erase_intents
select 'v1/other/erased' || n || '/', n from generate_series(1, 2000) n;
insert into afterturn.schedules (kind, path, due_at, created_at)
select 'forget', 'v1/other/u' || n || '/', now() + interval '1 day', now()
from generate_series(1, 20000) n;

-- Ended: lifecycle jobs, and turns that were given up.
insert into afterturn.jobs (kind, path, turn_id, ready_at, ring_at, created_at, finished_at,
    outcome)
select case when n % 20 = 0 then 'extract' else 'flush' end, 'v1/other/u' || n % 500 || '/',
    case when n % 20 = 0 then 't' || n end, now(), now(), now(), now() - interval '1 hour',
    case when n % 20 = 0 then 'dead' else 'done' end
from generate_series(1, 20000) n;
-- Under way: held by workers, or put back after a failure.
insert into afterturn.jobs (kind, path, turn_id, attempts, lease_token, ready_at, ring_at,
    created_at)
select case when n % 2 = 0 then 'record' else 'extract' end, 'v1/other/u' || n % 500 || '/',
    'w' || n, 1, case when n % 3 = 0 then gen_random_uuid() end,
    now() + interval '1 minute', now() + interval '1 minute', now()
from generate_series(1, 5000) n;
-- One tenant's erase, and what waits for it.
insert into afterturn.jobs (kind, path, ready_at, ring_at, created_at)
values ('forget', 'v1/other/', now(), now() + interval '1 minute', now());
insert into afterturn.jobs (kind, path, blocked_by, ready_at, ring_at, created_at)
select 'flush', 'v1/other/u' || n || '/', j.id, now(), now() - interval '1 minute', now()
from generate_series(1, 10000) n, (select max(id) as id from afterturn.jobs) j;

-- A scope of which much is waiting to be extracted, and much was stated.
insert into afterturn.jobs (kind, path, turn_id, ready_at, ring_at, created_at)
select 'extract', 'v1/busy/', 'b' || n, now(), now() + interval '1 minute', now()
from generate_series(1, 2000) n;
insert into afterturn.fact_statements (path, record_id, turn_path, turn_id, said_at, staged_at,
    digest, layer, origin, text, metadata, importance, recorded_at)
select 'v1/busy/', 'about:' || n % 5000, 'v1/busy/', 'b' || n, now(), now(),
    decode(md5(n::text), 'hex'), 'semantic', 'extracted', 'text', '{}', 0.5, now()
from generate_series(1, 20000) n;

-- Ours: little, and all of it of this moment.
insert into afterturn.turns (path, turn_id, query, metadata, happened_at, staged_at, token)
select 'v1/acme/alice/chat/', 't' || n, 'text', '{}', now(), now(),
    afterturn.token_of(afterturn.covering('v1/acme/alice/chat/'))
from generate_series(1, 5) n;
insert into afterturn.jobs (kind, path, turn_id, ready_at, ring_at, created_at)
select 'record', 'v1/acme/alice/chat/', 't' || n, now(), now(), now() from generate_series(1, 5) n;
insert into afterturn.jobs (kind, path, turn_id, ready_at, ring_at, created_at)
select 'extract', 'v1/acme/alice/chat/', 't' || n, now(), now() + interval '1 minute', now()
from generate_series(1, 5) n;
insert into afterturn.memories (path, record_id, pending, turn_path, layer, origin, text, metadata,
    importance, recorded_at, content, revision)
select 'v1/acme/alice/chat/', 'p' || n, true, 'v1/acme/alice/chat/', 'semantic', 'written', 'text',
    '{}', 0.5, now(), 0, n
from generate_series(1, 5) n;
"""

_COUNTERS = """
select relname, seq_scan from pg_stat_xact_user_tables
where schemaname = 'afterturn' and relname = any($1::text[])
"""


@dataclass(frozen=True)
class Cost:
    """What one call touched: `buffers` of 8 KiB, and large tables read from end to end."""

    buffers: int
    scanned: frozenset[str]


@pytest.fixture(scope="module")
def full_url(server_url: str, template_url: str) -> Iterator[str]:
    """A database with many rows of other scopes, and few of ours."""
    name = f"at_full_{os.getpid()}"
    asyncio.run(_administer(server_url, f'create database "{name}" template "{TEMPLATE}"'))
    url = database_named(server_url, name)
    asyncio.run(_administer(url, _FILL, "vacuum analyze"))
    yield url
    asyncio.run(_administer(server_url, f'drop database "{name}" with (force)'))


async def _administer(url: str, *scripts: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for script in scripts:
            await connection.execute(script)
    finally:
        await connection.close()


@pytest.fixture
async def conn(full_url: str) -> AsyncIterator[Connection]:
    """One test's transaction in the full database; nothing of it stays."""
    connection = await asyncpg.connect(full_url)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("set local plan_cache_mode = force_generic_plan")
    yield connection
    await transaction.rollback()
    await connection.close()


async def cost(conn: Connection, call: str) -> Cost:
    """Of the second call in a session: the first one also reads the catalogue to plan."""
    for _ in range(2):
        before = await _counters(conn)
        savepoint = conn.transaction()
        await savepoint.start()
        explained = await conn.fetchval(f"explain (analyze, buffers, format json) {call}")
        after = await _counters(conn)
        await savepoint.rollback()
    (top,) = json.loads(explained)
    plan = top["Plan"]
    return Cost(
        buffers=plan["Shared Hit Blocks"] + plan["Shared Read Blocks"],
        scanned=frozenset(table for table in LARGE if after[table] > before[table]),
    )


async def _counters(conn: Connection) -> dict[str, int]:
    rows = await conn.fetch(_COUNTERS, LARGE)
    return {row["relname"]: row["seq_scan"] for row in rows}


# About twice what was measured; a pass over one of the large tables touches 500 and more.
CALLS: Final[dict[str, tuple[int, str]]] = {
    "read_state": (40, f"select * from afterturn.read_state('{PATH}')"),
    "capture": (40, f"select afterturn.capture('{PATH}')"),
    "token_of": (40, f"select afterturn.token_of(array{COVERING})"),
    "require_exact": (
        60,
        f"select afterturn.require_exact('{PATH}', afterturn.capture('{PATH}'))",
    ),
    "require_accounted": (
        60,
        f"select afterturn.require_accounted('{PATH}', afterturn.capture('{PATH}'), true)",
    ),
    "stage_turn": (
        110,
        f"select afterturn.stage_turn(array{COVERING}, 'new', afterturn.capture('{PATH}'), 's', "
        "'q', 'a', null, '{}', null, '5s')",
    ),
    "claim_turns by id": (
        160,
        "select * from afterturn.claim_turns('record', array(select id from afterturn.jobs "
        f"where path = '{PATH}' and kind = 'record'), 5, true, 5, '30s')",
    ),
    "claim_turns": (160, "select * from afterturn.claim_turns('record', '{}', 5, true, 5, '30s')"),
    # Some fifty turns are leased, each about what `claim_turns` takes for one.
    "claim_extracts by id": (
        3_800,
        "select * from afterturn.claim_extracts(array(select id from afterturn.jobs "
        f"where path = '{PATH}' and kind = 'extract'), 5, 50, 24000, 5, '30s')",
    ),
    "claim_extracts": (
        3_600,
        "select * from afterturn.claim_extracts('{}', 5, 50, 24000, 5, '30s')",
    ),
    "related_facts": (20, f"select * from afterturn.related_facts('{PATH}', 20)"),
    "count_usage": (
        30,
        f"select afterturn.count_usage('{PATH}', array[1::bigint], "
        "array[gen_random_uuid()], 1, 2, 3)",
    ),
    "claim_unrecorded": (
        180,
        f"select * from afterturn.claim_unrecorded('{PATH}', 0, 1000000, 50, 5, '30s')",
    ),
    "sweep": (130, "select * from afterturn.sweep(500, '10s')"),
    "prune_jobs": (20, "select afterturn.prune_jobs('7 days', 1000)"),
    "enqueue flush": (
        60,
        f"select * from afterturn.enqueue_lifecycle('flush', '{PATH}', '{{}}', '5s')",
    ),
    "enqueue forget": (
        60,
        f"select * from afterturn.enqueue_lifecycle('forget', '{PATH}', '{{}}', '5s')",
    ),
    "enqueue behind the erase": (
        40,
        "select * from afterturn.enqueue_lifecycle('flush', 'v1/other/u7/', '{}', '5s')",
    ),
    "write_records": (
        120,
        f"select * from afterturn.write_records('{PATH}', afterturn.capture('{PATH}'), "
        '\'[{"record_id": "n", "layer": "semantic", "origin": "o", "text": "t", '
        '"metadata": {}, "importance": 0.5, "sources": []}]\')',
    ),
    "schedule_is_due": (10, "select afterturn.schedule_is_due()"),
    "run_due_erase": (10, "select * from afterturn.run_due_erase('5s')"),
    "paths_to_expire": (
        60,
        f"select * from afterturn.paths_to_expire('{PATH}', 'semantic', now() - interval '1 day')",
    ),
    "move_content": (60, f"select * from afterturn.move_content(array{COVERING}, false)"),
    "move_erase": (30, f"select afterturn.move_erase('{PATH}')"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_hot_call_touches_few_buffers(conn: Connection, name: str) -> None:
    """No large table is read from end to end, and no more is touched than the call needs."""
    buffers_max, call = CALLS[name]
    found = await cost(conn, call)
    assert found.scanned == frozenset()
    assert found.buffers <= buffers_max


# The steps of a flush and of a forget, as the worker that holds the lease makes them.
STEPS: Final[dict[str, tuple[str, int, str]]] = {
    "flush_chunk": ("flush", 400, "afterturn.flush_chunk({fence}, 2000, true, '30s')"),
    "expire_chunk": (
        "expire",
        150,
        "afterturn.expire_chunk({fence}, 'semantic', now() + interval '1 day', 2000, '30s')",
    ),
    "forget_flushes": ("forget", 40, "afterturn.forget_flushes({fence}, 2000, '30s')"),
    "forget_turn_jobs": ("forget", 80, "afterturn.forget_turn_jobs({fence}, 2000, '30s')"),
    "forget_turns": ("forget", 100, "afterturn.forget_turns({fence}, 2000, '30s', '', '')"),
    "forget_sources": ("forget", 100, "afterturn.forget_sources({fence}, 2000, '30s', '', '')"),
    "forget_memories": ("forget", 100, "afterturn.forget_memories({fence}, 2000, '30s', '', '')"),
    "forget_final": ("forget", 400, "afterturn.forget_final({fence}, '30s')"),
    "forget_insist": ("forget", 60, "afterturn.forget_insist({fence}, '30s')"),
}


@pytest.mark.parametrize("name", STEPS)
async def test_a_step_of_a_lifecycle_job_touches_few_buffers(conn: Connection, name: str) -> None:
    """As many as the few rows of the scope need, whatever else is there."""
    kind, buffers_max, call = STEPS[name]
    request = '{"derived": "erase", "requested_by": "", "reason": ""}'
    job = await conn.fetchval(
        "select job_id from afterturn.enqueue_lifecycle($1, $2, $3::jsonb, '0')",
        kind,
        PATH,
        request,
    )
    lease = await conn.fetchval("select lease from afterturn.claim_lifecycle($1, '30s')", job)
    assert lease is not None
    fence = f"{job}, '{lease}', '{PATH}'"
    found = await cost(conn, f"select * from {call.format(fence=fence)}")
    assert found.scanned == frozenset()
    assert found.buffers <= buffers_max


async def test_the_measure_sees_a_table_that_is_read_from_end_to_end(conn: Connection) -> None:
    """With indexes out of use the same call touches thousands of buffers."""
    good = await cost(conn, CALLS["capture"][1])
    for way in ("indexscan", "indexonlyscan", "bitmapscan"):
        await conn.execute(f"set local enable_{way} = off")
    await conn.execute("discard plans")
    bad = await cost(conn, CALLS["capture"][1])
    assert bad.scanned >= {"scope_generations", "erase_intents"}
    assert bad.buffers > 20 * good.buffers
