"""The ports on PostgreSQL pass the same contracts as the reference."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from afterturn.database import Database
from afterturn.memory import Memory
from afterturn.retrieval.service import PostgresRetrieval
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from afterturn.testing.contracts import StoreContract, StorePorts, StoreReadingContract
from afterturn.writes import Token

from .shared import shared_database


@pytest.fixture(scope="module")
def shared(home: Path, server_url: str, template_url: str, broker_url: str) -> Iterator[Settings]:
    """One database for all: every test of a contract has a root scope of its own."""
    with shared_database(home, server_url, broker_url) as settings:
        yield settings


class _OnPostgres:
    """Opens a memory on the test's database for each test of a contract."""

    settings: Settings

    @pytest.fixture(autouse=True)
    def _use(self, shared: Settings) -> None:
        self.settings = shared

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[StorePorts]:
        nowhere = Database("postgresql://nobody@127.0.0.1:1/x", self.settings, pool_size=1)
        async with Memory(self.settings) as memory:

            async def capture(scope: MemoryScope) -> Token:
                return (await memory.begin_turn(scope)).token

            source = memory.retrieval
            assert isinstance(source, PostgresRetrieval)
            yield StorePorts(
                retrieval=source,
                writing=memory.writing,
                lifecycle=memory.lifecycle,
                capture=capture,
                unreachable=PostgresRetrieval(nowhere, self.settings, None),
            )


class TestStore(_OnPostgres, StoreContract):
    examples = 5
    ports = _OnPostgres.opened


class TestReading(_OnPostgres, StoreReadingContract):
    examples = 5
    store = _OnPostgres.opened
