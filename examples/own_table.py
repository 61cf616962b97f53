"""A table of your own that an erase reaches, and that no turn under way can fill again.

    python examples/own_table.py

An agent keeps drafts of letters in a table beside afterturn's. Writing one takes a model a while.
Here a user is erased in the middle: the draft is refused, as afterturn's own records are. Uses the
database of AFTERTURN_DATABASE_URL, else the embedded one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg

from afterturn import Memory, MemoryScope, embedded, generations
from afterturn.errors import StaleTurn
from afterturn.settings import Settings

# --8<-- [start:table]
TABLE = """
create table if not exists drafts (
    scope text collate "C" not null,  -- scope.path
    body text not null
);
create index if not exists drafts_scope on drafts (scope);
"""
# --8<-- [end:table]


# --8<-- [start:write]
async def write_draft(
    pool: asyncpg.Pool, scope: MemoryScope, ask_model: Callable[[], Awaitable[str]]
) -> None:
    """Keep what the model writes, unless the scope is erased meanwhile."""
    token = await generations.capture(pool, scope.path)  # before anything is read
    body = await ask_model()  # takes as long as it takes, outside any transaction
    async with pool.acquire() as conn, conn.transaction():
        # Raises StaleTurn or ErasePending; its locks last until the commit.
        await generations.require(conn, scope.path, token)
        await conn.execute("insert into drafts values ($1, $2)", scope.path, body)


# --8<-- [end:write]


# --8<-- [start:erase]
async def erase(memory: Memory, pool: asyncpg.Pool, scope: MemoryScope) -> None:
    """Erase a scope from afterturn's tables and from ours."""
    ticket = await memory.enqueue_forget(scope, reason="ticket 7")  # nobody writes from here on
    async with pool.acquire() as conn, conn.transaction():
        # Waits for those that had passed `require` before; their rows are deleted here.
        await generations.lock(conn, [scope.path], exclusive=True)
        # The scope and all below it, as a range ('0' follows '/').
        await conn.execute(
            "delete from drafts where scope = $1 or scope >= $1 || '/' and scope < $1 || '0'",
            scope.path,
        )
    await ticket.wait()


# --8<-- [end:erase]


# --8<-- [start:own]
async def erase_drafts_only(pool: asyncpg.Pool, scope: MemoryScope) -> int:
    """The same for our table alone: turns that had begun before cannot write it again."""
    async with pool.acquire() as conn, conn.transaction():
        await generations.lock(conn, [scope.path], exclusive=True)
        await conn.execute("delete from drafts where scope = $1", scope.path)
        return await generations.advance(conn, scope, reason="ticket 8")


# --8<-- [end:own]


async def main() -> None:
    """A draft is on its way while its user is erased, twice."""
    settings = Settings.load()
    async with Memory(settings) as memory:
        url = settings.database_url or embedded.ensure(settings.home).database_url
        scope = MemoryScope.of("acme", "alice")
        async with asyncpg.create_pool(url, min_size=0) as pool:
            await pool.execute(TABLE)
            begun, may_answer = asyncio.Event(), asyncio.Event()

            async def slow_model() -> str:
                begun.set()
                await may_answer.wait()
                return "Dear aunt, the blood test came back"

            async def quick_model() -> str:
                return "Dear uncle, the garden is green"

            for erasing in (
                lambda: erase(memory, pool, scope),
                lambda: erase_drafts_only(pool, scope),
            ):
                begun.clear()
                may_answer.clear()
                await write_draft(pool, scope, quick_model)
                writing = asyncio.create_task(write_draft(pool, scope, slow_model))
                await begun.wait()  # the model is at work …
                await erasing()  # … while its user is erased
                may_answer.set()
                try:
                    await writing
                except StaleTurn as refused:
                    print(f"refused: {refused.message}")
                left = await pool.fetchval("select count(*) from drafts")
                print(f"drafts left: {left}")
                assert left == 0, "an erased draft is back"
            await write_draft(pool, scope, quick_model)  # the scope is of use at once
            kept = await pool.fetchval("select count(*) from drafts")
            print(f"new drafts: {kept}")
            await pool.execute("drop table drafts")
        if settings.database_url is None:
            embedded.release(settings.home)


if __name__ == "__main__":
    asyncio.run(main())
