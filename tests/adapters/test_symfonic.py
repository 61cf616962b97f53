"""The legacy port over the real engine of symfonic-core 9.12, on its in-memory backends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from afterturn.adapters.legacy_port import NO_VECTORS, LegacyRetrievalPort, first_page
from afterturn.adapters.symfonic import KINDS, TenantScopes
from afterturn.errors import ConfigurationError, MemoryContractError, ScopeViolation
from afterturn.memory import Memory
from afterturn.queries import MemoryQuery
from afterturn.records import MemoryRecord
from afterturn.scope import MemoryScope, scope_from_path
from afterturn.settings import Settings
from afterturn.testing.contracts import ReadPorts, RetrievalContract

from .engines import Scripted, WordCounts

pytest.importorskip("symfonic.memory", reason="the extra `symfonic` is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SCOPES = TenantScopes()
ALICE = MemoryScope.of("acme", "alice")


class Symfonic:
    """A real engine, and a way to put memories into it."""

    def __init__(self) -> None:
        from symfonic.memory import InMemoryGraphBackend, InMemoryVectorBackend
        from symfonic.memory.graph.scoring import RetrievalScorer
        from symfonic.memory.graph.store import GraphMemoryStore
        from symfonic.memory.graph.traversal import GraphTraversal
        from symfonic.memory.orchestrator.config import OrchestratorConfig
        from symfonic.memory.retrieval.engine import RetrievalEngine

        config = OrchestratorConfig()
        self.kept = 0
        self.graph = GraphMemoryStore(InMemoryGraphBackend())
        self.vectors = InMemoryVectorBackend()
        self.engine: Any = RetrievalEngine(
            self.graph,
            self.vectors,
            RetrievalScorer(config.scoring_weights),
            GraphTraversal(self.graph),
            config,
        )

    async def keep(self, record: MemoryRecord, scope: MemoryScope, *, vector: bool = False) -> None:
        """One memory in the engine's graph and, with `vector`, in its vectors, too."""
        from symfonic.memory.models.node import MemoryNode
        from symfonic.memory.types import MemoryLayer

        embedding = [float(n) for n in WordCounts().embed([record.text])[0]]
        node = MemoryNode(
            id=record.record_id,
            layer=MemoryLayer(record.layer.value),
            tenant_id=scope.segments[0],
            label=record.text[:50],
            properties={"content": record.text},
            embedding=embedding if vector else None,
            importance=1 + 9 * record.importance,
            # Hours apart: of equals the engine prefers now this one and now that one.
            updated_at=datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=self.kept),
        )
        self.kept += 1
        await self.graph.add_node(SCOPES.scope_of(scope), node)
        if vector:
            metadata = {"layer": record.layer.value, "importance": node.importance}
            await self.vectors.add(
                SCOPES.scope_of(scope), [node.id], [embedding], [metadata], [record.text]
            )


def _record(record_id: str, text: str, importance: float = 0.5) -> MemoryRecord:
    return MemoryRecord.model_validate(
        {
            "record_id": record_id,
            "text": text,
            "scope_path": ALICE.path,
            "layer": "semantic",
            "origin": "test",
            "importance": importance,
        }
    )


@pytest.fixture
async def symfonic() -> Symfonic:
    """An engine with a hundred memories of alice."""
    made = Symfonic()
    things = ("boat", "cat", "tea", "train", "harbour")
    for at in range(100):
        record = _record(f"n-{at}", f"memory {at} of a {things[at % 5]}", importance=at / 100)
        await made.keep(record, ALICE, vector=True)
    return made


@pytest.mark.parametrize("embedder", [None, WordCounts()], ids=["graph", "vectors"])
@pytest.mark.parametrize("limit", [1, 5, 20, 200])
async def test_it_returns_what_the_engine_returns_in_its_order(
    symfonic: Symfonic, embedder: WordCounts | None, limit: int
) -> None:
    """The engine's own answer, admitted and cut at the limit; scores are the engine's."""
    port = LegacyRetrievalPort(symfonic.engine, SCOPES.scope_of, embedder, path_of=SCOPES.path_of)
    found = await port.retrieve(MemoryQuery(scope=ALICE, text="where is the boat?", limit=limit))
    own = await symfonic.engine.retrieve(
        SCOPES.scope_of(ALICE),
        "where is the boat?",
        top_k=first_page(limit),
        embedding_provider=_Wrapped() if embedder else None,
    )
    assert [memory.record.record_id for memory in found.memories] == [
        str(row.node_id) for row in own[:limit]
    ]
    assert [memory.score for memory in found.memories] == pytest.approx(
        [row.score for row in own[:limit]]
    )
    assert len(found.memories) == min(limit, 100)
    assert found.degraded == (() if embedder else (NO_VECTORS,))
    if embedder and limit == 5:
        assert all("boat" in memory.record.text for memory in found.memories)


async def test_rows_are_of_the_root_of_their_tenant(symfonic: Symfonic) -> None:
    """The engine's rows carry no path; importance comes back on our scale."""
    port = LegacyRetrievalPort(symfonic.engine, SCOPES.scope_of)
    found = await port.scan_candidates(MemoryQuery(scope=ALICE, text="boat"))
    assert {memory.record.scope_path for memory in found.memories} == {"v1/acme"}
    by_id = {memory.record.record_id: memory.record for memory in found.memories}
    assert by_id["n-75"].importance == pytest.approx(0.75)
    assert len(by_id) == 100


async def test_a_foreign_row_of_the_real_engine_is_refused(symfonic: Symfonic) -> None:
    """A `scope_of` that names the wrong tenant leaks, and is found out at the first row."""
    wrong = LegacyRetrievalPort(symfonic.engine, lambda _scope: SCOPES.scope_of(ALICE))
    for call in (wrong.retrieve, wrong.scan_candidates):
        with pytest.raises(ScopeViolation):
            await call(MemoryQuery(scope=MemoryScope.of("other", "alice"), text="boat"))


async def test_a_memory_reads_through_it(symfonic: Symfonic, settings: Settings) -> None:
    """As `source=`: the facade's turn retrieves from the engine, and a forget names it."""
    port = LegacyRetrievalPort(symfonic.engine, SCOPES.scope_of, WordCounts())
    async with Memory(settings, source=port) as memory:
        async with memory.turn(ALICE) as turn:
            found = await turn.retrieve("the cat", limit=3)
            assert all("cat" in each.record.text for each in found.memories)
            assert len(found.memories) == 3
            await turn.abandon()
        assert (await memory.forget(ALICE)).not_covered == ("LegacyRetrievalPort",)


class _Wrapped:
    async def embed(self, text: str) -> list[float]:
        return [float(number) for number in WordCounts().embed([text])[0]]


# -- scopes


@pytest.mark.parametrize(
    "scope",
    [
        MemoryScope.of("acme"),
        ALICE,
        MemoryScope.of("acme", "a/b %", "港", "🌍", "..", "f", "g", "h"),
    ],
)
def test_scopes_come_back_from_their_paths(scope: MemoryScope) -> None:
    """`path_of` is the inverse of `scope_of`."""
    assert SCOPES.path_of(SCOPES.scope_of(scope).scope_path) == scope


def test_the_first_levels_are_those_of_flat_scopes() -> None:
    """A memory written with tenant_id and sub_tenant_id is found."""
    from symfonic.core.scope import TenantScope

    flat = TenantScope.from_request("acme", sub_tenant_id="alice")
    assert flat.scope_path == SCOPES.scope_of(ALICE).scope_path
    assert flat.ancestor_prefix_paths() == SCOPES.scope_of(ALICE).ancestor_prefix_paths()


def test_kinds_may_be_the_adopters_own() -> None:
    """Paths of other kinds are refused, as is a scope with more levels than kinds."""
    own = TenantScopes(("org", "brand"))
    scope = own.scope_of(ALICE)
    assert [level.kind for level in scope.path] == ["org", "brand"]
    assert own.path_of(scope.scope_path) == ALICE
    with pytest.raises(MemoryContractError, match="these kinds"):
        own.path_of(SCOPES.scope_of(ALICE).scope_path)
    with pytest.raises(MemoryContractError, match="deeper"):
        own.scope_of(ALICE.child("chat"))
    with pytest.raises(MemoryContractError, match="these kinds"):
        SCOPES.path_of("tenant\x1facme\x1fsub_tenant")
    with pytest.raises(MemoryContractError, match="blank"):
        SCOPES.scope_of(MemoryScope.of("acme", " "))
    for kinds in ((), ("a", "a"), ("a\x1fb",)):
        with pytest.raises(ConfigurationError, match="kinds"):
            TenantScopes(kinds)
    assert len(set(KINDS)) == 8


# -- the contract


class _OnSymfonic(RetrievalContract):
    embedder: WordCounts | None = None
    examples = 15

    @asynccontextmanager
    async def ports(self) -> AsyncIterator[ReadPorts]:
        symfonic = Symfonic()

        async def keep(records: Sequence[MemoryRecord]) -> None:
            for record in records:
                await symfonic.keep(
                    record, scope_from_path(record.scope_path), vector=self.embedder is not None
                )

        def fail(_top_k: int) -> Any:
            raise ConnectionError

        yield ReadPorts(
            LegacyRetrievalPort(
                symfonic.engine, SCOPES.scope_of, self.embedder, path_of=SCOPES.path_of
            ),
            keep,
            unreachable=LegacyRetrievalPort(Scripted(fail), SCOPES.scope_of),
        )


class TestGraph(_OnSymfonic):
    pass


class TestVectors(_OnSymfonic):
    embedder = WordCounts()
