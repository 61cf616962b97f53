"""The erase fence as adopters use it: on their own connections, for their own tables."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

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
    lock,
    observe,
    require,
    require_accounted,
    require_installed,
    require_on,
)
from afterturn.scope import MemoryScope
from tests.foundation.adopter import ACME, ALICE, BOB, CHAT, Connect, Connection, erase


async def stand(conn: Connection, scope: MemoryScope) -> int:
    """Request a forget that nobody runs."""
    job: int = await conn.fetchval(
        "select job_id from afterturn.enqueue_lifecycle("
        "'forget', $1, '{\"derived\": \"keep\"}', '5s')",
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
