"""What an adopter's own erase moves: the numbers, the log, and the keys under which it locks."""

from __future__ import annotations

from itertools import pairwise

import asyncpg
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from afterturn.errors import MemoryContractError
from afterturn.generations import advance, capture, covering_paths, lock
from afterturn.scope import MemoryScope
from tests.foundation.adopter import ACME, ALICE, BOB, CHAT, Connection, erase
from tests.foundation.scopes import related_scopes, scopes


async def test_advancing_needs_the_exclusive_lock(conn: Connection, other: Connection) -> None:
    """Of this scope, in this transaction: not a shared one, an ancestor's, or somebody else's."""
    async with other.transaction():
        await lock(other, [CHAT.path], exclusive=True)
        async with conn.transaction():
            with pytest.raises(MemoryContractError, match="exclusive lock of the scope is not"):
                await advance(conn, CHAT)
    async with conn.transaction():
        await lock(conn, [CHAT.path, BOB.path])
        await lock(conn, [ALICE.path], exclusive=True)
        for scope in (CHAT, BOB, ACME):
            with pytest.raises(MemoryContractError, match="exclusive=True"):
                await advance(conn, scope)
        await advance(conn, ALICE)


async def test_advancing_moves_the_number_and_writes_the_log_together(
    conn: Connection, other: Connection
) -> None:
    """Both appear with the commit, and neither after a rollback."""
    transaction = conn.transaction()
    await transaction.start()
    await lock(conn, [ALICE.path], exclusive=True)
    number = await advance(conn, ALICE, requested_by="alice", reason="ticket 7")
    assert await capture(conn, ALICE.path) == ((ALICE.path, number),)
    assert await capture(other, ALICE.path) == ()
    assert await log(other) == []
    await transaction.rollback()
    assert await capture(conn, ALICE.path) == ()
    number = await erase(conn, ALICE)
    assert await capture(other, ALICE.path) == ((ALICE.path, number),)
    assert [row["generation"] for row in await log(other)] == [number]


async def test_numbers_only_grow(conn: Connection) -> None:
    """Also past one that a clock of the future has drawn."""
    numbers = [await erase(conn, ALICE) for _ in range(5)]
    assert numbers == sorted(set(numbers))
    future = await conn.fetchval("""
        update afterturn.scope_generations set erase = erase * 2, content = content * 2
        returning erase
    """)
    later = [await erase(conn, ALICE) for _ in range(5)]
    assert later == sorted({*later})
    assert later[0] > future
    assert future + 5 * 2_048 > later[-1]


async def test_advancing_moves_what_readers_go_by(conn: Connection) -> None:
    """The content number moves too, and says that rows went: caches must not serve them."""
    state = "select * from afterturn.read_state($1)"
    before = await conn.fetchrow(state, CHAT.stored_path)
    await erase(conn, ALICE)
    after = await conn.fetchrow(state, CHAT.stored_path)
    assert before is not None
    assert after is not None
    for number in ("erase", "content", "removed"):
        assert before[number] == [0, 0, 0]
        assert [n > 0 for n in after[number]] == [False, True, False]


async def test_the_log_is_chained_per_root_and_names_no_path(conn: Connection) -> None:
    """Each entry holds the hash of the one before; who knows a path can find its entries."""
    first = MemoryScope.of("zebra", "yak")
    for scope, why in [(ALICE, "a"), (first, "b"), (CHAT, "c"), (ALICE, "d"), (first, "e")]:
        async with conn.transaction():
            await lock(conn, [scope.path], exclusive=True)
            await advance(conn, scope, requested_by=f"by {why}\x00", reason=why)
    entries = await log(conn)
    assert [(e["requested_by"], e["reason"]) for e in entries] == [
        (f"by {why}\ufffd", why) for why in "abcde"
    ]
    for mine in ([0, 2, 3], [1, 4]):
        chain = [entries[at] for at in mine]
        assert len({e["root_key"] for e in chain}) == 1
        for earlier, entry in pairwise(chain):
            assert entry["previous_hash"] == earlier["hash"]
        head = "select hash from afterturn.erase_log_heads where root_key = $1"
        assert await conn.fetchval(head, chain[0]["root_key"]) == chain[-1]["hash"]
    assert entries[0]["scope_key"] == entries[3]["scope_key"] != entries[2]["scope_key"]
    key = await conn.fetchval("select afterturn.scope_key($1)", ALICE.stored_path)
    assert entries[0]["scope_key"] == key
    written = await conn.fetchval("select string_agg(l::text, '') from afterturn.erase_log l")
    assert not any(name in written for name in ("alice", "acme", "zebra", "yak", "chat"))
    recomputed = await conn.fetchval("""
        select bool_and(hash = afterturn.erase_log_hash(previous_hash, root_key, scope_key,
            generation, job_id, requested_by, reason, requested_at, completed_at, counts,
            what, detail))
        from afterturn.erase_log
    """)
    assert recomputed is True


@pytest.mark.parametrize(
    "column",
    ["root_key", "scope_key", "generation", "requested_by", "reason", "counts", "what", "detail"],
)
async def test_a_changed_entry_no_longer_has_its_hash(conn: Connection, column: str) -> None:
    """Every field counts, and text cannot move from one field to the next."""
    async with conn.transaction():
        await lock(conn, [ALICE.path], exclusive=True)
        await advance(conn, ALICE, requested_by="ab", reason="cd")
    change = {
        "root_key": "sha256('x')",
        "scope_key": "sha256('x')",
        "generation": "generation + 1",
        "requested_by": "'abc'",
        "reason": "'bcd'",
        "counts": "'{\"turns\": 1}'",
        "what": "'scope'",
        "detail": "'{\"turns\": 1}'",
    }
    changed = ", ".join(change[f] if f == column else f for f in change)
    same = await conn.fetchval(f"""
        select l.hash = afterturn.erase_log_hash(l.previous_hash, c.root_key, c.scope_key,
            c.generation, l.job_id, c.requested_by, c.reason, l.requested_at, l.completed_at,
            c.counts::jsonb, c.what, c.detail::jsonb)
        from afterturn.erase_log l, lateral (select {changed}) c({", ".join(change)})
    """)
    assert same is False


async def log(conn: Connection) -> list[asyncpg.Record]:
    return await conn.fetch("select * from afterturn.erase_log order by id")


# -- keys

with_database = hypothesis_settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@with_database
@given(scope=scopes, space=st.sampled_from([0, 1]))
async def test_lock_keys_ascend_by_depth(conn: Connection, scope: MemoryScope, space: int) -> None:
    """So ascending keys are one order for everybody, and no path meets its own ancestor's key."""
    keys = await conn.fetchval(
        "select array_agg(afterturn.lock_key($1, p || '/')) from unnest($2::text[]) p",
        space,
        list(covering_paths(scope.path)),
    )
    assert keys == sorted(set(keys))
    assert {key < 0 for key in keys} == {space == 1}


@with_database
@given(related_scopes, related_scopes)
async def test_scopes_of_different_depth_or_path_have_different_keys(
    conn: Connection, one: MemoryScope, other: MemoryScope
) -> None:
    """Names that look alike included; the two spaces never meet."""
    mine, theirs, lane = await conn.fetchval(
        "select array[afterturn.lock_key(0, $1), afterturn.lock_key(0, $2), "
        "afterturn.lock_key(1, $1)]",
        one.stored_path,
        other.stored_path,
    )
    assert (mine == theirs) == (one == other)
    assert (mine < theirs) or one.depth >= other.depth
    assert lane != mine
