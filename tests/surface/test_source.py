"""A source of one's own in the place of retrieval: gated, fenced, and never trusted to be well."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from afterturn.errors import ErasePending, MemoryUnavailable, ScopeViolation
from afterturn.memory import Memory
from afterturn.queries import MemoryQuery, RetrievalResult
from afterturn.records import MemoryLayer, MemoryRecord
from afterturn.retrieved import RetrievedMemory
from afterturn.scope import MemoryScope
from afterturn.settings import Settings

ALICE = MemoryScope.of("acme", "alice")
SECRET = "alice-takes-insulin"


class Own:
    """A source whose answer the test decides."""

    def __init__(self) -> None:
        self.answer: Callable[[MemoryQuery], Any] = lambda _: RetrievalResult()
        self.asked = 0

    async def scan_candidates(self, query: MemoryQuery) -> RetrievalResult:
        self.asked += 1
        answer: RetrievalResult = self.answer(query)
        return answer

    async def retrieve(self, query: MemoryQuery) -> RetrievalResult:
        raise AssertionError("the limit is applied by the caller, after its gates")

    def holds(self, *scopes: MemoryScope) -> None:
        """Answer with a record of each scope, whatever is asked."""
        memories = tuple(
            RetrievedMemory(
                record=MemoryRecord(
                    record_id=f"r-{at}",
                    text=f"memory {at}",
                    scope_path=scope.path,
                    layer=MemoryLayer.SEMANTIC,
                    origin="own",
                ),
                score=1.0 - at / 100,
            )
            for at, scope in enumerate(scopes)
        )
        self.answer = lambda _: RetrievalResult(memories=memories, degraded=("its own reason",))


@pytest.fixture
def own() -> Own:
    return Own()


@pytest.fixture
async def memory(settings: Settings, own: Own) -> AsyncIterator[Memory]:
    async with Memory(settings, source=own) as opened:
        yield opened


async def test_it_is_what_a_turn_reads(memory: Memory, own: Own) -> None:
    """In its order, capped here, with its reasons; also through the narrow port."""
    own.holds(*[ALICE] * 5, ALICE.root)
    async with memory.turn(ALICE) as turn:
        found = await turn.retrieve("anything", limit=2)
    assert [m.record.record_id for m in found.memories] == ["r-0", "r-1"]
    assert [(d.record_id, d.reason) for d in found.dropped][:2] == [
        ("r-2", "limit"),
        ("r-3", "limit"),
    ]
    assert found.degraded == ("its own reason",)
    query = MemoryQuery(scope=ALICE, text="anything", limit=1)
    assert len((await memory.retrieval.retrieve(query)).memories) == 1


@pytest.mark.parametrize(
    "foreign", [ALICE.root.child("bob"), ALICE.child("chat"), MemoryScope.of("other", "alice")]
)
async def test_a_foreign_row_is_refused_whatever_its_rank(
    memory: Memory, own: Own, foreign: MemoryScope
) -> None:
    """A sibling's, a descendant's, another tenant's: nothing is served."""
    own.holds(*[ALICE] * 5, foreign)
    async with memory.turn(ALICE, on_unavailable="degrade") as turn:
        with pytest.raises(ScopeViolation, match="r-5"):
            await turn.retrieve("anything", limit=1)


async def test_nothing_is_read_from_it_under_a_standing_erase(
    memory: Memory, own: Own, settings: Settings
) -> None:
    """It cannot know of the erase, so it is not even asked; afterwards it is named."""
    own.holds(ALICE)
    ticket = await memory.enqueue_forget(ALICE)
    with pytest.raises(ErasePending):
        await memory.retrieve(MemoryQuery(scope=ALICE, text="anything"))
    assert own.asked == 0
    assert (await ticket.wait()).not_covered == ("Own",)
    assert (await memory.retrieve(MemoryQuery(scope=ALICE, text="anything"))).memories


@pytest.mark.parametrize("error", [RuntimeError(SECRET), KeyError(SECRET), OSError(SECRET)])
async def test_one_that_fails_is_out_of_reach(memory: Memory, own: Own, error: Exception) -> None:
    """Never an empty answer, never its text; a degrading turn goes on."""

    def fail(_query: MemoryQuery) -> Any:
        raise error

    own.answer = fail
    with pytest.raises(MemoryUnavailable, match=type(error).__name__) as raised:
        await memory.retrieve(MemoryQuery(scope=ALICE, text="anything"))
    assert SECRET not in str(raised.value)
    async with memory.turn(ALICE, on_unavailable="degrade") as turn:
        assert (await turn.retrieve("anything")).degraded == ("memory unavailable",)
        assert (await turn.finish("a", "b")).status == "staged"


@pytest.mark.parametrize("answer", [None, [], "text", RetrievalResult])
async def test_one_that_answers_something_else_is_out_of_reach(
    memory: Memory, own: Own, answer: Any
) -> None:
    """Said by its type."""
    own.answer = lambda _: answer
    with pytest.raises(MemoryUnavailable, match="something else"):
        await memory.retrieve(MemoryQuery(scope=ALICE, text="anything"))
