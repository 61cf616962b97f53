"""A memory on a database of its own, and what it takes to write and publish with few words."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import hypothesis
import numpy as np
import pytest
from numpy.typing import NDArray

from afterturn import Memory
from afterturn.database import Database
from afterturn.ports import EmbeddingProvider
from afterturn.queries import MemoryQuery, RetrievalResult
from afterturn.records import MemoryLayer, MemoryRecord
from afterturn.retrieval.cache import RetrievalCache
from afterturn.retrieval.service import PostgresRetrieval
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from afterturn.writes import WriteRequest

# Examples take as long as a busy machine makes them take; a failure prints how to repeat it.
hypothesis.settings.register_profile("unhurried", deadline=None, print_blob=True)
hypothesis.settings.load_profile("unhurried")


class WordVectors:
    """An embedder of five words: a vector counts them, and any other text is the sixth."""

    model_id = "test-words-1"
    dim = 6
    words = ("tea", "beverage", "train", "locomotive", "cat")
    meanings = (0, 0, 1, 1, 2)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for at, text in enumerate(texts):
            for word, meaning in zip(self.words, self.meanings, strict=True):
                vectors[at, meaning] += word in text
            vectors[at, 5] = not vectors[at].any()
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


class Library:
    """Writes, publishes and asks."""

    def __init__(self, memory: Memory, database: Database, settings: Settings) -> None:
        self.memory = memory
        self.database = database
        self.settings = settings

    def retrieval(
        self, embedder: EmbeddingProvider | None = None, cache: RetrievalCache | None = None
    ) -> PostgresRetrieval:
        """A retrieval with a cache of its own unless one is given."""
        return PostgresRetrieval(self.database, self.settings, embedder, cache)

    async def write(self, scope: MemoryScope, texts: dict[str, str], **fields: Any) -> None:
        """Keep records as pending: text by record id, all with the same further fields."""
        records = tuple(
            MemoryRecord.model_validate(
                {
                    "record_id": record_id,
                    "text": text,
                    "scope_path": scope.path,
                    "layer": MemoryLayer.SEMANTIC,
                    "origin": "test",
                    **fields,
                }
            )
            for record_id, text in texts.items()
        )
        async with self.memory.turn(scope) as turn:
            receipt = await self.memory.write(
                WriteRequest(scope=scope, records=records, token=turn.token)
            )
        assert {outcome.status for outcome in receipt.outcomes} <= {"pending", "updated"}

    async def keep(self, scope: MemoryScope, texts: dict[str, str], **fields: Any) -> None:
        """Write and publish."""
        await self.write(scope, texts, **fields)
        await self.memory.flush(scope)

    async def value(self, sql: str, *args: Any) -> Any:
        async with self.database.connection() as connection:
            return await connection.fetchval(sql, *args)


def ask(scope: MemoryScope, text: str = "tea", **fields: Any) -> MemoryQuery:
    """A query that returns everything unless it says otherwise."""
    return MemoryQuery.model_validate({"scope": scope, "text": text, "limit": 1_000, **fields})


def ids(result: RetrievalResult) -> set[str]:
    """The record ids of an answer."""
    return {memory.record.record_id for memory in result.memories}


@pytest.fixture
async def library(settings: Settings, database: Database) -> AsyncIterator[Library]:
    async with Memory(settings) as memory:
        yield Library(memory, database, settings)


@pytest.fixture
async def embedding_library(settings: Settings, database: Database) -> AsyncIterator[Library]:
    """The same with an embedder; `memory.drain(..., in_process=True)` makes the vectors."""
    async with Memory(settings, embedder=WordVectors()) as memory:
        yield Library(memory, database, settings)
