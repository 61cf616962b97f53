"""A source that an adopter plugged in, behind the same gates as our own retrieval."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from afterturn.errors import AfterturnError, MemoryUnavailable
from afterturn.ports import CandidateScan
from afterturn.queries import MemoryQuery, RetrievalResult, checked_query
from afterturn.retrieval import gates
from afterturn.scope import MemoryScope


class GatedSource:
    """`MemoryRetrievalPort` and `CandidateScan` over a plugged-in source.

    `retrieve` scans and applies the gates and the limit here, so that a candidate which a gate
    turns away costs no place. `require_open` is awaited before each scan; it raises while an erase
    of the scope stands.
    """

    def __init__(
        self, source: CandidateScan, require_open: Callable[[MemoryScope], Awaitable[object]]
    ) -> None:
        self._source = source
        self._require_open = require_open

    async def retrieve(self, query: MemoryQuery) -> RetrievalResult:
        """The source's candidates that pass, best first, at most the query's limit.

        `dropped` begins with what the source itself left out. Raises `ScopeViolation` when any
        candidate is of a scope that the query may not see, `MemoryUnavailable` when the source
        fails.
        """
        found = await self._scanned(query)
        admitted = gates.admit(found.memories, query, degraded=found.degraded)
        return admitted.model_copy(update={"dropped": (*found.dropped, *admitted.dropped)})

    async def scan_candidates(self, query: MemoryQuery) -> RetrievalResult:
        """The source's candidates, all visible from the query's scope."""
        found = await self._scanned(query)
        gates.require_visible_memories(query.scope, found.memories)
        return found

    async def _scanned(self, query: MemoryQuery) -> RetrievalResult:
        await self._require_open(checked_query(query).scope)
        try:
            found: object = await self._source.scan_candidates(query)
        except AfterturnError:
            raise
        except Exception as error:  # noqa: BLE001 - it may raise anything
            # Only its type is told: the text could be that of a memory.
            raise MemoryUnavailable(
                "The source failed",
                detail=f"{type(self._source).__name__} raised {type(error).__name__}",
                hint="A source that cannot reach its store raises MemoryUnavailable.",
            ) from None
        if not isinstance(found, RetrievalResult):
            raise MemoryUnavailable(
                "The source answered with something else than a RetrievalResult",
                detail=f"{type(self._source).__name__} returned {type(found).__name__}",
            )
        return found
