"""The real engine on its in-memory backends, and scripted ones that misbehave."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray


class WordCounts:
    """An embedder of a few words, and of the whole text a little, so that no two are equal."""

    model_id = "test-words-1"
    words = ("harbour", "boat", "cat", "tea", "train")
    dim = len(words) + 1

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.array(
            [
                [*(text.lower().count(word) for word in self.words), 0.1 + _trace(text)]
                for text in texts
            ],
            dtype=np.float32,
        )
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def _trace(text: str) -> float:
    return zlib.crc32(text.encode()) % 9973 / 99730


class Broken:
    """An embedder that is out of reach."""

    model_id, dim = "broken", 3

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise ConnectionError("secret")


@dataclass
class Row:
    """What an engine returns."""

    node_id: str | None
    tenant_id: Any = "acme"
    content: Any = "about the harbour"
    layer: Any = "semantic"
    score: Any = 1.0
    importance: Any = 5.5
    created_at: Any = datetime(2024, 1, 1, tzinfo=UTC)
    metadata: Any = field(default_factory=dict)
    id: str = "entry"


class Scripted:
    """An engine that answers what it is told, and remembers what it was asked for."""

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    async def retrieve(
        self,
        scope: Any,
        query: str,
        layers: Any = None,
        top_k: int | None = None,
        embedding_provider: Any = None,
    ) -> Any:
        self.asked.append(
            {
                "scope": scope,
                "query": query,
                "layers": layers,
                "top_k": top_k,
                "embedding_provider": embedding_provider,
            }
        )
        assert top_k is not None
        answer = self.answer(top_k)
        return await answer if asyncio.iscoroutine(answer) else answer

    @property
    def pages(self) -> list[int]:
        """How many rows it was asked for, each time."""
        return [each["top_k"] for each in self.asked]


def rows(count: int, **fields: Any) -> list[Row]:
    """So many rows of the root scope of acme."""
    return [Row(f"n-{at}", content=f"n-{at} about the harbour", **fields) for at in range(count)]


def holding(*held: Row) -> Scripted:
    """An engine that holds these rows and gives as many as it is asked for."""
    return Scripted(lambda top_k: list(held[:top_k]))
