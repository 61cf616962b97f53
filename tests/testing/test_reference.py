"""The reference in memory: it passes the contracts, and it is a `Memory` to unit tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from afterturn.scope import MemoryScope
from afterturn.testing.contracts import (
    StoreContract,
    StorePorts,
    StoreReadingContract,
)
from afterturn.testing.ports import ReferenceLifecycle, ReferenceRetrieval, ReferenceWriting
from afterturn.testing.store import ReferenceStore
from afterturn.writes import Token


@asynccontextmanager
async def reference_ports() -> AsyncIterator[StorePorts]:
    """The reference's ports over a new store."""
    store = ReferenceStore()

    async def capture(scope: MemoryScope) -> Token:
        return store.token(scope.path)

    yield StorePorts(
        retrieval=ReferenceRetrieval(store),
        writing=ReferenceWriting(store),
        lifecycle=ReferenceLifecycle(store),
        capture=capture,
        unreachable=ReferenceRetrieval(ReferenceStore(reachable=False)),
    )


class TestStore(StoreContract):
    ports = staticmethod(reference_ports)


class TestReading(StoreReadingContract):
    store = staticmethod(reference_ports)
