"""symfonic-core's `RetrievalEngine` (9.12) behind `MemoryRetrievalPort` and `CandidateScan`.

The engine is never imported here: anything will do that has

    await engine.retrieve(scope, cue, layers=…, top_k=…, embedding_provider=…)

and returns rows with `content`, `layer`, `tenant_id`, `node_id` or `id`, `score`, `importance`
(1 to 10), `created_at` and `metadata`. What an engine returns is hearsay until it is admitted:

    row ── has it an id, a text, a layer? ──▶ whose is it? ──▶ may this query see it? ──▶ gates, cap
                 │ no: dropped                   │ nobody's: dropped     │ no: ScopeViolation

A row is of the scope whose path stands in its metadata (`scope_path`), else of the root scope of
its own tenant, else of nobody. The engine has no pages: it is asked again for more, and the order
is that of its last answer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, Protocol

from afterturn.errors import AfterturnError, MemoryContractError, MemoryUnavailable
from afterturn.intake import RECORD_ID_CHARACTERS_MAX, checked_id, checked_metadata, clean_text
from afterturn.ports import EmbeddingProvider
from afterturn.queries import Dropped, MemoryQuery, RetrievalResult
from afterturn.records import MemoryLayer, MemoryRecord
from afterturn.retrieval import gates
from afterturn.retrieved import RetrievedMemory
from afterturn.scope import MemoryScope, scope_from_path

SCAN_BUDGET: Final = 1_000
"""The most rows that the engine is asked for on behalf of one question."""
PAGE_FACTOR: Final = 8
PAGE_MINIMUM: Final = 64

LEGACY_ORIGIN: Final = "legacy"
NO_VECTORS: Final = "vectors: no embedder, so the engine searched its graph alone"

_IMPORTANCE_MIN, _IMPORTANCE_MAX = 1.0, 10.0


def first_page(limit: int) -> int:
    """How many rows the engine is asked for first.

    More than the limit, since some will not be admitted; the whole budget where there is none.
    """
    if limit <= 0:
        return SCAN_BUDGET
    return min(max(limit * PAGE_FACTOR, PAGE_MINIMUM), SCAN_BUDGET)


class LegacyEngine(Protocol):
    """What is used of a `RetrievalEngine`."""

    async def retrieve(
        self,
        scope: Any,
        query: str,
        layers: Any = None,
        top_k: int | None = None,
        embedding_provider: Any = None,
    ) -> Sequence[Any]:
        """Rows, best first."""


class LegacyRetrievalPort:
    """Reads from a legacy engine and lets through only what the query may see.

    `scope_of` gives the engine's scope for ours; `path_of` is its inverse for the paths that stand
    in the rows' metadata and gives a scope or its path; without it these must be afterturn's own.
    `afterturn.adapters.symfonic.TenantScopes` has both for symfonic's `TenantScope`. Without an
    `embedding_provider` the engine's vector half is silently empty, so results say `degraded`.
    """

    SCAN_BUDGET: Final = SCAN_BUDGET

    def __init__(
        self,
        engine: LegacyEngine,
        scope_of: Callable[[MemoryScope], Any],
        embedding_provider: EmbeddingProvider | None = None,
        *,
        path_of: Callable[[str], MemoryScope | str] | None = None,
    ) -> None:
        self._engine = engine
        self._scope_of = scope_of
        self._embedder = embedding_provider
        self._path_of = path_of

    async def retrieve(self, query: MemoryQuery) -> RetrievalResult:
        """The admitted rows that pass the gates, in the engine's order, at most the limit.

        Reads on until the limit is met, the engine has no more, or the budget is spent. `dropped`
        names what was read and not returned. Raises `ScopeViolation` when any admitted row is of a
        scope that the query may not see, `MemoryUnavailable` when the engine fails.
        """
        reading = await self._begin(query)
        while True:
            result = reading.result(gates.admit(reading.admitted, query))
            if 0 < query.limit <= len(result.memories) or not await reading.more():
                return result

    async def scan_candidates(self, query: MemoryQuery) -> RetrievalResult:
        """Every admitted row within the budget, in the engine's order, before any gate."""
        reading = await self._begin(query)
        while await reading.more():
            pass
        return reading.result(RetrievalResult(memories=tuple(reading.admitted)))

    async def _begin(self, query: MemoryQuery) -> _Reading:
        embedder, degraded = await self._embedding(query.text)
        reading = _Reading(
            query=query,
            engine=self._engine,
            scope=self._engine_scope(query.scope),
            path_of=self._path_of,
            embedder=embedder,
            degraded=degraded,
            page=first_page(query.limit),
        )
        await reading.read()
        return reading

    def _engine_scope(self, scope: MemoryScope) -> Any:
        try:
            return self._scope_of(scope)
        except AfterturnError:
            raise
        except Exception as error:  # noqa: BLE001 - the adopter's code may raise anything
            raise MemoryContractError(
                "The scope has no counterpart in the engine",
                detail=f"{scope.path}, scope_of raised {type(error).__name__}",
            ) from None

    async def _embedding(self, text: str) -> tuple[_CueEmbedding | None, tuple[str, ...]]:
        """The cue's vector for the engine, or why there is none."""
        if self._embedder is None:
            return None, (NO_VECTORS,)
        try:
            vectors = await asyncio.to_thread(self._embedder.embed, [clean_text(text)])
            vector = [float(number) for number in vectors[0]]
        except Exception as error:  # noqa: BLE001 - a provider raises what it must
            return None, (f"vectors: the embedder failed ({type(error).__name__})",)
        if len(vector) != self._embedder.dim or not all(map(math.isfinite, vector)):
            return None, ("vectors: the embedder returned no usable vector",)
        return _CueEmbedding(vector), ()


class _CueEmbedding:
    """The engine's `EmbeddingProvider` for one cue, whose vector is known already."""

    def __init__(self, vector: list[float]) -> None:
        self._vector = vector

    async def embed(self, _text: str) -> list[float]:
        """The cue's vector; the engine embeds nothing else while it reads."""
        return list(self._vector)


@dataclass(slots=True)
class _Reading:
    """One question to the engine, and what it has given so far."""

    query: MemoryQuery
    engine: LegacyEngine
    scope: Any
    path_of: Callable[[str], MemoryScope | str] | None
    embedder: _CueEmbedding | None
    degraded: tuple[str, ...]
    page: int
    judged: dict[str, RetrievedMemory | Dropped] = field(default_factory=dict)
    is_dry: bool = False

    @property
    def admitted(self) -> list[RetrievedMemory]:
        """The rows that were let in, in the engine's order."""
        return [each for each in self._within if isinstance(each, RetrievedMemory)]

    @property
    def _within(self) -> list[RetrievedMemory | Dropped]:
        """What was read, without what an engine gave beyond the budget."""
        return list(self.judged.values())[:SCAN_BUDGET]

    async def more(self) -> bool:
        """Ask for a larger page; False when there is nothing more to be had."""
        if self.is_dry or self.page >= SCAN_BUDGET:
            return False
        self.page = min(self.page * PAGE_FACTOR, SCAN_BUDGET)
        await self.read()
        return True

    async def read(self) -> None:
        """Judge what the engine gives for the page."""
        rows = await self._rows()
        before = len(self.judged)
        given: dict[str, RetrievedMemory | Dropped] = {}
        for at, row in enumerate(rows, start=1):
            record_id = _record_id(row) or f"row-{at}-without-an-id"
            if record_id not in given:
                given[record_id] = self._judge(row, record_id)
        self.judged = {**given, **{k: v for k, v in self.judged.items() if k not in given}}
        # Also of an engine that says the same again, however much it is asked for.
        self.is_dry = len(rows) < self.page or len(self.judged) == before
        # All of them, also those beyond the budget: one that leaks is not to be trusted with any.
        gates.require_visible_memories(
            self.query.scope,
            [each for each in self.judged.values() if isinstance(each, RetrievedMemory)],
        )

    def result(self, found: RetrievalResult) -> RetrievalResult:
        """The memories of `found`, and everything that was left out on the way there."""
        excluded = (each for each in self._within if isinstance(each, Dropped))
        return RetrievalResult(
            memories=found.memories,
            dropped=(*excluded, *found.dropped),
            degraded=self.degraded,
        )

    async def _rows(self) -> list[Any]:
        layers = self.query.layers
        try:
            rows: object = await self.engine.retrieve(
                self.scope,
                clean_text(self.query.text),
                layers=None if layers is None else set(layers),
                top_k=self.page,
                embedding_provider=self.embedder,
            )
        except Exception as error:  # noqa: BLE001 - an engine may raise anything
            raise MemoryUnavailable(
                "The legacy engine failed",
                detail=f"{type(self.engine).__name__} raised {type(error).__name__}",
                hint="Nothing was served. Its own log tells more.",
            ) from None
        if not isinstance(rows, Iterable):
            raise MemoryUnavailable(
                "The legacy engine returned no rows",
                detail=f"{type(self.engine).__name__} returned {type(rows).__name__}",
            )
        return list(rows)

    def _judge(self, row: Any, record_id: str) -> RetrievedMemory | Dropped:
        try:
            return _Row(row, record_id, self.path_of).admitted(self.query.layers)
        except _Excluded as excluded:
            return Dropped(record_id=record_id, reason=excluded.reason)
        except Exception as error:  # noqa: BLE001 - a row's attributes are foreign code, too
            return Dropped(record_id=record_id, reason=f"unreadable ({type(error).__name__})")


class _Excluded(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of the engine, on its way to being a memory."""

    row: Any
    record_id: str
    path_of: Callable[[str], MemoryScope | str] | None

    def admitted(self, layers: Sequence[MemoryLayer] | None) -> RetrievedMemory:
        if not _given_id(self.row):
            raise _Excluded("no id")
        text = getattr(self.row, "content", None)
        if not isinstance(text, str) or not text.strip():
            raise _Excluded("no text")
        layer = self._layer()
        if layers is not None and layer not in layers:
            raise _Excluded("layer")
        metadata = getattr(self.row, "metadata", None)
        metadata = metadata if isinstance(metadata, Mapping) else {}
        record = MemoryRecord(
            record_id=self.record_id,
            text=text,
            scope_path=self._scope(metadata).path,
            layer=layer,
            origin=LEGACY_ORIGIN,
            metadata=_storable(metadata),
            importance=self._importance(),
            recorded_at=self._created_at(),
        )
        score = _finite(getattr(self.row, "score", None)) or 0.0
        return RetrievedMemory(record=record, score=score, signals={"engine": score})

    def _layer(self) -> MemoryLayer:
        layer: Any = getattr(self.row, "layer", None)
        try:
            return MemoryLayer(getattr(layer, "value", layer))
        except ValueError:
            raise _Excluded("unknown layer") from None

    def _scope(self, metadata: Mapping[Any, Any]) -> MemoryScope:
        explicit = metadata.get("scope_path")
        if explicit:
            return self._translated(explicit)
        tenant_id = getattr(self.row, "tenant_id", None)
        if not tenant_id:
            raise _Excluded("no provenance")
        try:
            return MemoryScope.of(tenant_id)
        except MemoryContractError:
            raise _Excluded("its tenant cannot be a scope") from None

    def _translated(self, explicit: Any) -> MemoryScope:
        # Never the tenant instead: the row says that it is of a narrower scope.
        try:
            scope = self.path_of(explicit) if self.path_of else explicit
            return scope if isinstance(scope, MemoryScope) else scope_from_path(scope)
        except Exception:  # noqa: BLE001 - the adopter's code may raise anything
            raise _Excluded("its scope_path is not understood") from None

    def _importance(self) -> float:
        given = _finite(getattr(self.row, "importance", None))
        if given is None:
            return 0.5
        bounded = min(max(given, _IMPORTANCE_MIN), _IMPORTANCE_MAX)
        return (bounded - _IMPORTANCE_MIN) / (_IMPORTANCE_MAX - _IMPORTANCE_MIN)

    def _created_at(self) -> datetime | None:
        created = getattr(self.row, "created_at", None)
        if not isinstance(created, datetime):
            return None
        return created.replace(tzinfo=UTC) if created.tzinfo is None else created


def _given_id(row: Any) -> str:
    """The row's `node_id`, else its `id`; empty where it has neither."""
    for name in ("node_id", "id"):
        value = getattr(row, name, None)
        if value is not None and str(value):
            return str(value)
    return ""


def _record_id(row: Any) -> str:
    """The row's id as afterturn's ids are written; one that cannot be stands as its hash."""
    given = _given_id(row)
    if not given:
        return ""
    try:
        return checked_id(given, what="record_id", characters_max=RECORD_ID_CHARACTERS_MAX)
    except MemoryContractError:
        return f"legacy:{sha256(given.encode(errors='surrogatepass')).hexdigest()}"


def _storable(metadata: Mapping[Any, Any]) -> dict[str, Any]:
    """The metadata that is JSON; what is not was of use to the engine alone."""
    kept: dict[str, Any] = {}
    for key, value in metadata.items():
        try:
            kept = checked_metadata({**kept, key: value})
        except MemoryContractError:
            continue
    return kept


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None
