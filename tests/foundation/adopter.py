"""An adopter with a table of notes of its own, fenced by afterturn's generations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import asyncpg

from afterturn.generations import advance, lock
from afterturn.scope import MemoryScope

Connection: TypeAlias = "asyncpg.Connection[Any]"
Connect: TypeAlias = Callable[[], Awaitable[Connection]]

ACME: Final = MemoryScope.of("acme")
ALICE: Final = ACME.child("alice")
CHAT: Final = ALICE.child("chat-4")
BOB: Final = ACME.child("bob")


async def erase(conn: Connection, scope: MemoryScope) -> int:
    """An adopter's own erase: lock, delete, advance."""
    async with conn.transaction():
        await lock(conn, [scope.path], exclusive=True)
        await conn.execute("delete from notes where path = $1", scope.path)
        return await advance(conn, scope)
