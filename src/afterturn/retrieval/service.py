"""Retrieval from PostgreSQL, completed in the calling process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from afterturn import metrics
from afterturn.database import Database
from afterturn.embedding.checked import CheckedEmbedder
from afterturn.errors import AfterturnError
from afterturn.ports import EmbeddingProvider
from afterturn.queries import Dropped, MemoryQuery, RetrievalResult, checked_query
from afterturn.retrieval import gates
from afterturn.retrieval.begun import Begun
from afterturn.retrieval.cache import RetrievalCache
from afterturn.retrieval.entries import Entry, Layers
from afterturn.retrieval.question import Cue, Question
from afterturn.retrieval.ranking import Ranking, rank
from afterturn.retrieval.reader import BeyondCache, Reader, named_rows
from afterturn.retrieval.rows import Row
from afterturn.retrieval.streaming import scan
from afterturn.retrieval.view import View
from afterturn.retrieval.weights import DEFAULT_WEIGHTS, Weights
from afterturn.retrieved import RetrievedMemory
from afterturn.scope import covering_paths
from afterturn.settings import Settings

SCAN_BUDGET: Final = 1_000
"""The most candidates that are scanned, or accounted for in `dropped`."""
PAGE_FACTOR: Final = 3
PAGE_MINIMUM: Final = 32

INLINE_ROWS_MAX: Final = 30_000
"""More records than this are ranked in a thread, so that the event loop goes on meanwhile: they
take two milliseconds or more."""
ARRANGED_ROWS_MAX: Final = 2_000
"""The same for records that were not ranked before, and so must be arranged first."""


INSTANT_CHARACTERS_MAX: Final = 1_000
"""Up to so many an embedder that says it is instant is called on the event loop: another thread
would take longer to begin than it to end."""

WIDENING: Final = 4
"""How many times further is looked when gates left the answer short."""


@dataclass(frozen=True, slots=True)
class _Vector:
    """The question's vector, or why there is none."""

    values: NDArray[np.float32] | None = None
    missing: str = ""


@dataclass(slots=True)
class _Call:
    """One question on its way; its vector is computed once, when there is something to compare."""

    query: MemoryQuery
    paths: Sequence[str]
    layers: Layers | None
    gated: bool
    vector: _Vector | None = None


T = TypeVar("T")

# An enum's `value` is looked up through a descriptor: for dozens of dropped ones it shows.
_REASONS: Final = {reason: reason.value for reason in gates.DropReason}


@dataclass(slots=True)
class _Found(Generic[T]):
    """The best records, best first: rows (or their names), places in the ranking, scores."""

    rows: list[T]
    places: list[int]
    scores: list[float]


class PostgresRetrieval:
    """`MemoryRetrievalPort` and `CandidateScan` over the published records.

    Without an embedder ranking is lexical and whole. With one, `degraded` says when it failed or
    when records have no vector yet; ranking goes on with what there is. Safe for any number of
    tasks of one event loop.
    """

    SCAN_BUDGET: Final = SCAN_BUDGET

    def __init__(
        self,
        database: Database,
        settings: Settings,
        embedder: EmbeddingProvider | None,
        cache: RetrievalCache | None = None,
        *,
        weights: Weights = DEFAULT_WEIGHTS,
    ) -> None:
        if embedder is not None and not isinstance(embedder, CheckedEmbedder):
            embedder = CheckedEmbedder(embedder)
        self._embedder = embedder
        self._weights = weights
        self.cache = cache if cache is not None else RetrievalCache(settings.cache_bytes)
        self._reader = Reader(
            database,
            self.cache,
            model_id=embedder.model_id if embedder else "",
            dim=embedder.dim if embedder else 0,
        )

    async def retrieve(self, query: MemoryQuery) -> RetrievalResult:
        """The records visible from the query's scope, best first, at most its limit.

        `dropped` accounts for all other records that were looked at: the best `first_page(limit)`,
        and more, up to `SCAN_BUDGET`, where gates left the answer short of them. Raises
        `ErasePending` under a standing erase, else `MemoryUnavailable` without a database.
        """
        with metrics.RETRIEVE_SECONDS.time():
            return await self._answer(query, gated=True)

    async def scan_candidates(self, query: MemoryQuery) -> RetrievalResult:
        """The best `SCAN_BUDGET` records before any gate but visibility; no limit is applied."""
        return await self._answer(query, gated=False)

    async def _answer(self, query: MemoryQuery, *, gated: bool) -> RetrievalResult:
        paths = [f"{path}/" for path in covering_paths(checked_query(query).scope.path)]
        layers = None if query.layers is None else frozenset(layer.value for layer in query.layers)
        call = _Call(query, paths, layers, gated)
        held = self._reader.held(paths)
        try:
            if held is None or _is_large(held, layers):
                return await self._ranked(call, await self._reader.entries(paths))
            return await self._foreseen(call, held)
        except BeyondCache:
            return await self._streamed(call)

    async def _foreseen(self, call: _Call, held: Sequence[Entry]) -> RetrievalResult:
        """Rank what is held while the database is asked whether it is still what is published.

        Nothing of it is served unless the answer, to a question asked after the call began, is
        that it is; then the wait for it has cost nothing.
        """
        asked = Begun(self._reader.entries(call.paths))
        try:
            result = await self._ranked(call, held)
        except BaseException:
            await asked.abandon()
            raise
        entries = await asked
        if all(one is other for one, other in zip(entries, held, strict=True)):
            return result
        return await self._ranked(call, entries)

    async def _ranked(self, call: _Call, entries: Sequence[Entry]) -> RetrievalResult:
        if call.vector is None and any(entry.count for entry in entries):
            call.vector = await self._vector(call.query.text)
        vector = call.vector or _Vector()
        cue, weights = _cue(call.query, vector.values), _weighted(self._weights, call.query)

        def ranked_first() -> tuple[View, Ranking]:
            view = View(entries, call.layers)
            return view, rank(view, cue, weights, reach=SCAN_BUDGET)

        large = _is_large(entries, call.layers)
        view, ranking = await asyncio.to_thread(ranked_first) if large else ranked_first()

        async def further(reach: int) -> Ranking:
            return await asyncio.to_thread(rank, view, cue, weights, reach=reach)

        async def best(ranking: Ranking, count: int) -> _Found[Row]:
            return _best(view.rows_of, ranking, count)

        return await _gated(call, ranking, further, best, self._degraded(view, vector))

    async def _streamed(self, call: _Call) -> RetrievalResult:
        """The same for a scope beyond the cache limit, in one snapshot."""
        query = call.query
        vector = call.vector or await self._vector(query.text)
        async with self._reader.snapshot(call.paths) as (connection, usable):
            values = vector.values if usable else None
            words = frozenset(Question.of(_cue(query, None)).terms)
            scanned = await scan(connection, call.paths, call.layers, words, values)
            cue = _cue(query, None if values is None else scanned.plane.T @ values)

            async def further(reach: int) -> Ranking:
                weights = _weighted(self._weights, query)
                return await asyncio.to_thread(rank, scanned.view, cue, weights, reach=reach)

            async def best(ranking: Ranking, count: int) -> _Found[Row]:
                found: _Found[tuple[str, str]] = _best(
                    lambda positions: [scanned.places(at) for at in positions], ranking, count
                )
                rows = await named_rows(connection, found.rows)
                return _Found(rows, found.places, found.scores)

            degraded = self._degraded(scanned.view, vector)
            return await _gated(call, await further(SCAN_BUDGET), further, best, degraded)

    async def _vector(self, text: str) -> _Vector:
        if self._embedder is None or not text.strip():
            return _Vector()
        try:
            if self._embedder.is_instant and len(text) <= INSTANT_CHARACTERS_MAX:
                vectors = self._embedder.embed([text])
            else:
                vectors = await asyncio.to_thread(self._embedder.embed, [text])
        except AfterturnError as error:
            return _Vector(missing=f"vectors: {error.message}")  # lexical goes on
        return _Vector(vectors[0] if vectors[0].any() else None)

    def _degraded(self, view: View, vector: _Vector) -> tuple[str, ...]:
        if self._embedder is None or (vector.values is None and not vector.missing):
            return ()  # none was wanted: there is nothing to compare with
        reasons = [vector.missing] if vector.missing else []
        without = len(view) - view.vectors
        if without:
            reasons.append(
                f"vectors: {without} of {len(view)} records have none of this embedder yet"
            )
        return tuple(reasons)


async def _gated(
    call: _Call,
    ranking: Ranking,
    further: Callable[[int], Awaitable[Ranking]],
    best: Callable[[Ranking, int], Awaitable[_Found[Row]]],
    degraded: tuple[str, ...],
) -> RetrievalResult:
    """Take the best through the gates, looking further where they left the answer short."""
    query = call.query
    if not call.gated:
        found = await best(ranking, SCAN_BUDGET)
        gates.require_visible(query.scope, found.rows)
        memories = _memories(found, range(len(found.rows)), ranking)
        return RetrievalResult(memories=memories, degraded=degraded)
    page = first_page(query.limit)
    found = await best(ranking, page)
    passage = gates.passage(found.rows, found.scores, query)
    while len(found.rows) == page and _may_go_on(passage, found, query):
        page *= WIDENING
        if page > SCAN_BUDGET:
            ranking = await further(page)
        found = await best(ranking, page)
        passage = gates.passage(found.rows, found.scores, query)
    return RetrievalResult(
        memories=_memories(found, passage.passed, ranking),
        dropped=tuple(
            [
                Dropped.trusted(record_id=found.rows[at].record_id, reason=_REASONS[reason])
                for at, reason in passage.dropped
                if at < SCAN_BUDGET
            ]
        ),
        degraded=degraded,
    )


def _memories(
    found: _Found[Row], places: Sequence[int], ranking: Ranking
) -> tuple[RetrievedMemory, ...]:
    """The records at these places, as they are returned."""
    signals = ranking.explained([found.places[at] for at in places])
    return tuple(
        [
            RetrievedMemory.trusted(
                record=found.rows[at].record(), score=found.scores[at], signals=parts
            )
            for at, parts in zip(places, signals, strict=True)
        ]
    )


def _is_large(entries: Sequence[Entry], layers: Layers | None) -> bool:
    count = sum(entry.count for entry in entries)
    if count <= ARRANGED_ROWS_MAX:
        return False
    return count > INLINE_ROWS_MAX or not all(entry.is_arranged(layers) for entry in entries)


def _cue(query: MemoryQuery, vector: NDArray[np.float32] | None) -> Cue:
    return Cue(query.text, vector, (query.now or datetime.now(UTC)).timestamp())


def first_page(limit: int) -> int:
    """How many candidates are looked at before the gates have left an answer short.

    A limit of 0 or less asks for the account alone: the whole budget.
    """
    if limit <= 0:
        return SCAN_BUDGET
    return min(max(limit * PAGE_FACTOR, PAGE_MINIMUM), SCAN_BUDGET)


def _weighted(weights: Weights, query: MemoryQuery) -> Weights:
    if not query.recency_weight and not query.importance_weight:
        return weights
    return replace(weights, recency=query.recency_weight, importance=query.importance_weight)


def _may_go_on(passage: gates.Passage, found: _Found[Row], query: MemoryQuery) -> bool:
    """Whether the answer is short and a lower rank could still fill it."""
    if len(passage.passed) >= query.limit:
        return False
    if query.min_relevance is not None and found.scores[-1] < query.min_relevance:
        return False
    return all(reason is not gates.DropReason.MAX_CHARS for _, reason in passage.dropped)


def _best(
    rows_of: Callable[[Sequence[int]], Sequence[Sequence[T]]], ranking: Ranking, count: int
) -> _Found[T]:
    """The best `count` records, the other layer of a message right behind the one ranked."""
    best = ranking.best(count)
    groups = rows_of(ranking.positions.take(best).tolist())
    places, scores = best.tolist(), ranking.scores.take(best).tolist()
    found = _Found([row for rows in groups for row in rows], places, scores)
    if len(found.rows) > len(places):
        repeats = [len(rows) for rows in groups]
        found.places = np.repeat(places, repeats).tolist()
        found.scores = np.repeat(scores, repeats).tolist()
        del found.rows[count:], found.places[count:], found.scores[count:]
    return found
