"""The narrow ports, so that a reader holds nothing it can write with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from afterturn.queries import MemoryQuery, RetrievalResult
from afterturn.receipts import LifecycleReceipt
from afterturn.scope import MemoryScope
from afterturn.turns import ExtractionRequest, ExtractionResult
from afterturn.writes import WriteReceipt, WriteRequest


@runtime_checkable
class MemoryRetrievalPort(Protocol):
    """Reading."""

    async def retrieve(self, query: MemoryQuery) -> RetrievalResult:
        """The records visible from the query's scope, best first, at most its limit.

        Raises `MemoryUnavailable` when the store cannot be reached; an empty answer means that
        nothing is remembered.
        """


@runtime_checkable
class CandidateScan(Protocol):
    """Reading before gates: the caller applies the limit."""

    async def scan_candidates(self, query: MemoryQuery) -> RetrievalResult:
        """All candidates up to the store's scan budget, best first."""


@runtime_checkable
class MemoryWritePort(Protocol):
    """Writing."""

    async def write(self, request: WriteRequest) -> WriteReceipt:
        """Keep records as pending until a flush; the same id in the same scope replaces.

        A record that names a source which was erased is refused, alone: a turn that is not there,
        of a scope below or beside `request.scope` that has had an erase.
        """


@runtime_checkable
class MemoryLifecyclePort(Protocol):
    """Publishing and erasing, as ordered jobs."""

    async def flush(self, scope: MemoryScope) -> LifecycleReceipt:
        """Publish everything that waits in the subtree."""

    async def forget(self, scope: MemoryScope) -> LifecycleReceipt:
        """Erase the whole subtree in every state, and nothing beyond it."""


@runtime_checkable
class MemoryExtractorPort(Protocol):
    """Learning from finished turns."""

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        """Facts of the request's turns; one turn a request unless the extractor sets `batch`."""


@runtime_checkable
class EmbeddingProvider(Protocol):
    """Vectors for texts. `model_id` and `dim` are stored with the vectors."""

    @property
    def model_id(self) -> str:
        """Names the model and its version: vectors of two ids are never compared."""

    @property
    def dim(self) -> int:
        """The length of a vector."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 of shape [n, dim], rows of unit length. Blocking; raises what it must."""
