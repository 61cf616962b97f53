"""The erase fence as adopters use it: on their own connections, for their own tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any, TypeAlias

import asyncpg
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from afterturn.errors import (
    AfterturnError,
    ErasedScope,
    ErasePending,
    MemoryContractError,
    MemoryUnavailable,
    NotMigrated,
    StaleTurn,
)
from afterturn.generations import (
    Token,
    advance,
    capture,
    covering_paths,
    lock,
    observe,
    require,
    require_accounted,
    require_installed,
    require_on,
)
from afterturn.scope import MemoryScope
from tests.foundation.scopes import related_scopes, scopes

Connection: TypeAlias = "asyncpg.Connection[Any]"
Connect: TypeAlias = Callable[[], Awaitable[Connection]]

ACME = MemoryScope.of("acme")
ALICE = ACME.child("alice")
CHAT = ALICE.child("chat-4")
BOB = ACME.child("bob")


@pytest.fixture
async def connect(database_url: str) -> AsyncIterator[Connect]:
    """Opens an adopter's plain connections to a database that has a table of theirs."""
    opened: list[Connection] = []

    async def open_one() -> Connection:
        opened.append(await asyncpg.connect(database_url))
        return opened[-1]

    first = await open_one()
    await first.execute("create table notes (path text, body text)")
    yield open_one
    for connection in opened:
        await connection.close()


@pytest.fixture
async def conn(connect: Connect) -> Connection:
    return await connect()


@pytest.fixture
async def other(connect: Connect) -> Connection:
    return await connect()


@pytest.fixture
async def bare(empty_url: str) -> AsyncIterator[Connection]:
    """A connection to a database where afterturn never was."""
    connection = await asyncpg.connect(empty_url)
    await connection.execute("create table notes (path text, body text)")
    yield connection
    await connection.close()


async def erase(conn: Connection, scope: MemoryScope) -> int:
    """An adopter's own erase: lock, delete, advance."""
    async with conn.transaction():
        await lock(conn, [scope.path], exclusive=True)
        await conn.execute("delete from notes where path = $1", scope.path)
        return await advance(conn, scope)


async def stand(conn: Connection, scope: MemoryScope) -> int:
    """Request a forget that nobody runs."""
    job: int = await conn.fetchval(
        "select job_id from afterturn.request_forget($1, '{\"derived\": \"keep\"}', '5s')",
        scope.stored_path,
    )
    return job


async def refusal(call: Awaitable[Any]) -> type[AfterturnError] | None:
    try:
        await call
    except AfterturnError as error:
        return type(error)
    return None


async def can_lock(conn: Connection, scope: MemoryScope, *, exclusive: bool = False) -> bool:
    """Whether the lock is free for another transaction; nothing is kept."""
    transaction = conn.transaction()
    await transaction.start()
    try:
        await conn.execute("set local lock_timeout = '60ms'")
        await lock(conn, [scope.path], exclusive=exclusive)
    except MemoryUnavailable as error:
        if error.detail != "SQLSTATE 55P03":
            raise
        return False
    else:
        return True
    finally:
        await transaction.rollback()


async def wait_until_blocked(watcher: Connection, conn: Connection) -> None:
    """Until `conn` waits for somebody's lock."""
    async with asyncio.timeout(20):
        while not await watcher.fetchval(
            "select cardinality(pg_blocking_pids($1)) > 0", conn.get_server_pid()
        ):
            await asyncio.sleep(0.005)


# -- tokens


async def test_nothing_was_erased_so_the_token_is_empty(conn: Connection) -> None:
    """It vouches for scopes without an erase, and stays exact while that is so."""
    assert await capture(conn, CHAT.path) == ()
    await require(conn, CHAT.path, ())


async def test_a_token_is_the_numbers_that_cover_the_scope_root_first(conn: Connection) -> None:
    """Of the scope and its ancestors; erases beside and below it do not count."""
    numbers = {scope: await erase(conn, scope) for scope in (CHAT, BOB, ACME)}
    assert await capture(conn, CHAT.path) == (
        (ACME.path, numbers[ACME]),
        (CHAT.path, numbers[CHAT]),
    )
    assert await capture(conn, ALICE.path) == ((ACME.path, numbers[ACME]),)
    assert await capture(conn, "v1/other") == ()


async def test_an_exact_token_passes_and_a_stale_one_does_not(conn: Connection) -> None:
    """Whichever covering scope was erased; a token of later is exact again."""
    for erased in (CHAT, ALICE, ACME):
        token = await capture(conn, CHAT.path)
        await require(conn, CHAT.path, token)
        await erase(conn, BOB)
        await require(conn, CHAT.path, token)
        await erase(conn, erased)
        with pytest.raises(StaleTurn):
            await require(conn, CHAT.path, token)
        await require(conn, CHAT.path, await capture(conn, CHAT.path))


async def test_exact_means_no_number_more_and_none_less(conn: Connection) -> None:
    """A number that was never drawn is as stale as one that is missing."""
    await erase(conn, ALICE)
    ((path, number),) = await capture(conn, CHAT.path)
    for wrong in ((), ((path, number - 1),), ((path, number + 1),)):
        with pytest.raises(StaleTurn):
            await require(conn, CHAT.path, wrong)
    with pytest.raises(StaleTurn):
        await require(conn, CHAT.path, ((path, number), (CHAT.path, 7)))


async def test_a_token_of_another_scope_is_a_mistake_of_the_caller(conn: Connection) -> None:
    """It is refused as such, also while an erase stands and also for a scope below."""
    await erase(conn, BOB)
    await erase(conn, CHAT)
    foreign = await capture(conn, BOB.path)
    below = await capture(conn, CHAT.path)
    await stand(conn, ALICE)
    for token in (foreign, below):
        with pytest.raises(MemoryContractError, match="another scope") as raised:
            await require(conn, ALICE.path, token)
        assert type(raised.value) is MemoryContractError


@pytest.mark.parametrize("path", ["", "acme/alice", "v1/acme/", "v1/a%2fb", "v1/\ud800", "v2/a"])
async def test_a_path_that_is_not_canonical_is_refused(conn: Connection, path: str) -> None:
    """By every function that takes one, before anything is asked or locked."""
    async with conn.transaction():
        for call in (
            capture(conn, path),
            observe(conn, path, tolerant=False),
            observe(conn, path, tolerant=True),
            lock(conn, [ALICE.path, path]),
            require(conn, path, ()),
            require_on(conn, path, ()),
            require_accounted(conn, path, ()),
        ):
            assert await refusal(call) is MemoryContractError
        assert await conn.fetchval("select count(*) from pg_locks where locktype='advisory'") == 0


# -- standing erases


async def test_a_standing_erase_comes_first(conn: Connection) -> None:
    """Before a token that is stale, before numbers that are not accounted for."""
    token = await capture(conn, CHAT.path)
    await erase(conn, CHAT)
    fresh = await capture(conn, CHAT.path)
    job = await stand(conn, ALICE)
    for path in (ALICE.path, CHAT.path):
        assert await refusal(capture(conn, path)) is ErasePending
        assert await refusal(observe(conn, path, tolerant=True)) is ErasePending
        assert await refusal(require_accounted(conn, path, ())) is ErasePending
        assert await refusal(require_accounted(conn, path, (), admitted=True)) is ErasePending
    for each in (token, fresh):
        assert await refusal(require(conn, CHAT.path, each)) is ErasePending
    for path in (ACME.path, BOB.path):
        assert await capture(conn, path) == ()
        await require(conn, path, ())
    await conn.execute("delete from afterturn.erase_intents where job_id = $1", job)
    assert await refusal(require(conn, CHAT.path, token)) is StaleTurn
    await require(conn, CHAT.path, fresh)


# -- writes that vouch for more than one scope


async def test_a_write_accounts_for_every_erase_that_covers_its_path(conn: Connection) -> None:
    """`ErasedScope` for one who vouches for none, `StaleTurn` for an admitted turn."""
    await require_accounted(conn, CHAT.path, ())
    await erase(conn, ACME)
    before = await capture(conn, CHAT.path)
    await require_accounted(conn, CHAT.path, before)
    await erase(conn, ALICE)
    for accounted in ((), before):
        assert await refusal(require_accounted(conn, CHAT.path, accounted)) is ErasedScope
        call = require_accounted(conn, CHAT.path, accounted, admitted=True)
        assert await refusal(call) is StaleTurn
    token = await capture(conn, CHAT.path)
    for admitted in (False, True):
        await require_accounted(conn, CHAT.path, token, admitted=admitted)
        await require_accounted(conn, ACME.path, token, admitted=admitted)
        await require_accounted(conn, BOB.path, token, admitted=admitted)


async def test_more_may_be_accounted_for_than_the_path_needs(conn: Connection) -> None:
    """A turn may promote to its ancestors with the token it has."""
    await erase(conn, ALICE)
    await erase(conn, CHAT)
    token = await capture(conn, CHAT.path)
    await require_accounted(conn, ALICE.path, token, admitted=True)
    await erase(conn, CHAT)
    await require_accounted(conn, ALICE.path, token, admitted=True)
    assert await refusal(require_accounted(conn, CHAT.path, token, admitted=True)) is StaleTurn


# -- an adopter's own transaction


async def test_what_was_fenced_is_either_erased_or_refused(
    conn: Connection, other: Connection
) -> None:
    """A write that was required commits before the erase, which then deletes it."""
    token = await capture(conn, CHAT.path)
    async with conn.transaction():
        await require(conn, CHAT.path, token)
        await conn.execute("insert into notes values ($1, 'before')", CHAT.path)
        erasing = asyncio.create_task(erase(other, CHAT))
        await wait_until_blocked(conn, other)
    await erasing
    assert await conn.fetchval("select count(*) from notes") == 0
    async with conn.transaction():
        await lock(conn, [CHAT.path])
        assert await refusal(require_on(conn, CHAT.path, token)) is StaleTurn
    fresh = await capture(conn, CHAT.path)
    async with conn.transaction():
        await lock(conn, [CHAT.path])
        await require_on(conn, CHAT.path, fresh)
        await conn.execute("insert into notes values ($1, 'after')", CHAT.path)
    assert await conn.fetchval("select body from notes") == "after"


@pytest.mark.parametrize("erased", [CHAT, ALICE, ACME])
async def test_who_waited_for_an_erase_sees_it(
    conn: Connection, other: Connection, connect: Connect, erased: MemoryScope
) -> None:
    """The check looks with a snapshot of after the wait, so that no erased turn slips through."""
    token = await capture(conn, CHAT.path)
    watcher = await connect()
    async with other.transaction():
        await lock(other, [erased.path], exclusive=True)
        waiting = [asyncio.create_task(require(conn, CHAT.path, token))]
        await wait_until_blocked(watcher, conn)
        await advance(other, erased)
    with pytest.raises(StaleTurn):
        await asyncio.gather(*waiting)


async def test_locks_of_require_last_until_the_transaction_ends(
    conn: Connection, other: Connection
) -> None:
    """On a connection inside a transaction; on one outside, and on a pool, they are gone."""
    async with conn.transaction():
        await require(conn, CHAT.path, ())
        assert not await can_lock(other, CHAT, exclusive=True)
        assert not await can_lock(other, ACME, exclusive=True)
        assert await can_lock(other, BOB, exclusive=True)
        assert await can_lock(other, CHAT)
    assert await can_lock(other, ACME, exclusive=True)
    await require(conn, CHAT.path, ())
    await require_accounted(conn, CHAT.path, ())
    assert await can_lock(other, CHAT, exclusive=True)
    async with conn.transaction():
        await require_accounted(conn, CHAT.path, ())
        assert not await can_lock(other, CHAT, exclusive=True)


async def test_an_exclusive_lock_shuts_out_the_scope_and_all_below(
    conn: Connection, other: Connection
) -> None:
    """Readers of the fence beside and above it go on; nobody may take an ancestor exclusively."""
    async with conn.transaction():
        await lock(conn, [ALICE.path], exclusive=True)
        for shut in (ALICE, CHAT, CHAT.child("deep")):
            assert not await can_lock(other, shut)
            assert not await can_lock(other, shut, exclusive=True)
        assert not await can_lock(other, ACME, exclusive=True)
        for free in (ACME, BOB, ACME.child("al"), ACME.child("alice2"), MemoryScope.of("alice")):
            assert await can_lock(other, free), free
        assert await can_lock(other, BOB, exclusive=True)
    assert await can_lock(other, ALICE, exclusive=True)


async def test_many_paths_are_locked_in_one_call(conn: Connection, other: Connection) -> None:
    """Shared or exclusive, overlapping or not, in any order; none at all is fine."""
    await other.execute("set lock_timeout = '60ms'")
    async with conn.transaction():
        await lock(conn, [])
        await lock(conn, [CHAT.path, ALICE.path, BOB.path, CHAT.path])
        assert await can_lock(other, BOB)
        assert not await can_lock(other, BOB, exclusive=True)
        await lock(conn, ["v1/z/b", "v1/z/a"], exclusive=True)
        for path in ("a", "b"):
            assert not await can_lock(other, MemoryScope.of("z", path))
        assert await can_lock(other, MemoryScope.of("z", "c"))


async def test_outside_a_transaction_nothing_is_locked_in_vain(conn: Connection) -> None:
    """The locks would be gone with the statement, so the call is refused."""
    for call in (
        lock(conn, [ALICE.path]),
        lock(conn, [ALICE.path], exclusive=True),
        require_on(conn, ALICE.path, ()),
        advance(conn, ALICE),
    ):
        with pytest.raises(MemoryContractError, match="not inside a transaction"):
            await call


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_another_isolation_than_read_committed_is_refused_with_the_reason(
    conn: Connection, isolation: Any
) -> None:
    """Its snapshot may be older than the erase that the check is to see."""
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: lock(conn, [ALICE.path]),
        lambda: lock(conn, [ALICE.path], exclusive=True),
        lambda: require(conn, ALICE.path, ()),
        lambda: require_on(conn, ALICE.path, ()),
        lambda: require_accounted(conn, ALICE.path, ()),
        lambda: advance(conn, ALICE),
    ]
    for call in calls:
        transaction = conn.transaction(isolation=isolation)
        await transaction.start()
        with pytest.raises(MemoryContractError, match="must be READ COMMITTED") as raised:
            await call()
        assert type(raised.value) is MemoryContractError
        assert "READ COMMITTED" in raised.value.hint
        await transaction.rollback()


async def test_an_old_snapshot_gives_at_most_a_stale_token(
    conn: Connection, other: Connection
) -> None:
    """`capture` is one look: in REPEATABLE READ it may miss an erase, and the turn is refused."""
    async with conn.transaction(isolation="repeatable_read"):
        assert await capture(conn, ALICE.path) == ()
        await erase(other, ALICE)
        token = await capture(conn, ALICE.path)
    with pytest.raises(StaleTurn):
        await require(conn, ALICE.path, token)


async def test_the_default_isolation_of_a_role_does_not_matter(conn: Connection) -> None:
    """Where the transaction is ours."""
    await conn.execute("set default_transaction_isolation = 'serializable'")
    await require(conn, ALICE.path, ())
    await require_accounted(conn, ALICE.path, ())


async def test_a_pool_serves_as_well_as_a_connection(database_url: str) -> None:
    """Each call takes a connection of it and gives it back."""
    async with asyncpg.create_pool(database_url, min_size=0, max_size=1) as pool:
        assert await capture(pool, CHAT.path) == ()
        assert await observe(pool, CHAT.path, tolerant=True) == ()
        await require_installed(pool)
        await require(pool, CHAT.path, ())
        await require_accounted(pool, CHAT.path, ())
        async with pool.acquire() as conn, conn.transaction():
            await lock(conn, [CHAT.path], exclusive=True)
            await advance(conn, CHAT)
        assert await refusal(require(pool, CHAT.path, ())) is StaleTurn


async def test_what_else_goes_wrong_is_unavailable_without_details(
    conn: Connection, other: Connection
) -> None:
    """A transaction that has failed already, and a connection that is gone."""
    transaction = conn.transaction()
    await transaction.start()
    with pytest.raises(asyncpg.DivisionByZeroError):
        await conn.execute("select 1/0")
    for call in (capture(conn, ALICE.path), require(conn, ALICE.path, ())):
        with pytest.raises(MemoryUnavailable) as raised:
            await call
        assert raised.value.detail == "SQLSTATE 25P02"
        assert raised.value.__cause__ is None
    await transaction.rollback()
    await other.fetchval("select pg_terminate_backend($1, 5000)", conn.get_server_pid())
    for call in (capture(conn, ALICE.path), require_installed(conn)):
        assert await refusal(call) is MemoryUnavailable


# -- without afterturn


async def test_a_tolerant_caller_goes_on_where_afterturn_never_was(bare: Connection) -> None:
    """Inside its own transaction, which stays usable; nothing else is tolerated."""
    async with bare.transaction():
        assert await observe(bare, CHAT.path, tolerant=True) == ()
        await require(bare, CHAT.path, (), tolerant=True)
        await require_accounted(bare, CHAT.path, (), tolerant=True, admitted=True)
        await bare.execute("insert into notes values ('p', 'kept')")
    assert await bare.fetchval("select body from notes") == "kept"
    some: Token = ((CHAT.path, 7),)
    for call in (
        capture(bare, CHAT.path),
        observe(bare, CHAT.path, tolerant=False),
        require(bare, CHAT.path, ()),
        require(bare, CHAT.path, some, tolerant=True),
        require_accounted(bare, CHAT.path, ()),
        require_installed(bare),
    ):
        with pytest.raises(NotMigrated, match="afterturn migrate"):
            await call
    async with bare.transaction():
        with pytest.raises(NotMigrated, match="afterturn migrate"):
            await advance(bare, CHAT)


async def test_half_an_installation_is_not_tolerated(bare: Connection) -> None:
    """Where the schema stands without its tables nobody can know what was erased."""
    await bare.execute("create schema afterturn")
    for call in (
        observe(bare, CHAT.path, tolerant=True),
        require(bare, CHAT.path, (), tolerant=True),
        require_accounted(bare, CHAT.path, (), tolerant=True),
        require_installed(bare),
    ):
        with pytest.raises(NotMigrated):
            await call


async def test_the_search_path_hides_nothing(conn: Connection) -> None:
    """Tables and functions of the same names elsewhere are not mistaken for afterturn's."""
    await erase(conn, ALICE)
    token = await capture(conn, ALICE.path)
    await conn.execute("""
        create schema decoy;
        create table decoy.scope_generations (scope_key bytea, erase bigint);
        create table decoy.erase_intents (path text, job_id bigint);
        create table decoy.installation (hash_key bytea);
        create function decoy.covering(path text) returns text[] language sql
        as 'select null::text[]';
        create function decoy.capture(path text) returns bigint[] language sql
        as 'select null::bigint[]';
        set search_path = decoy, afterturn, public
    """)
    await require_installed(conn)
    assert await capture(conn, ALICE.path) == token
    await require(conn, ALICE.path, token)
    assert await refusal(require(conn, ALICE.path, ())) is StaleTurn


# -- advancing


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
            generation, job_id, requested_by, reason, requested_at, completed_at, counts))
        from afterturn.erase_log
    """)
    assert recomputed is True


@pytest.mark.parametrize(
    "column", ["root_key", "scope_key", "generation", "requested_by", "reason", "counts"]
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
    }
    fields = ["root_key", "scope_key", "generation", "requested_by", "reason", "counts"]
    changed = ", ".join(change[f] if f == column else f for f in fields)
    same = await conn.fetchval(f"""
        select l.hash = afterturn.erase_log_hash(l.previous_hash, c.root_key, c.scope_key,
            c.generation, l.job_id, c.requested_by, c.reason, l.requested_at, l.completed_at,
            c.counts::jsonb)
        from afterturn.erase_log l, lateral (select {changed}) c({", ".join(fields)})
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
