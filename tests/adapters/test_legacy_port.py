"""The legacy port over scripted engines: admission, pages, and what engines do wrong."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterturn.adapters.legacy_port import (
    NO_VECTORS,
    PAGE_FACTOR,
    PAGE_MINIMUM,
    SCAN_BUDGET,
    LegacyRetrievalPort,
    first_page,
)
from afterturn.errors import (
    AfterturnError,
    MemoryContractError,
    MemoryUnavailable,
    ScopeViolation,
)
from afterturn.parts import check_source
from afterturn.queries import MemoryQuery, RetrievalResult
from afterturn.records import MemoryLayer
from afterturn.scope import MemoryScope

from .engines import Broken, Row, Scripted, WordCounts, holding, rows

ACME = MemoryScope.of("acme")
ALICE = ACME.child("alice")


def _port(engine: Any, **fields: Any) -> LegacyRetrievalPort:
    return LegacyRetrievalPort(engine, lambda scope: scope.path, **fields)


def _query(scope: MemoryScope = ALICE, **bounds: Any) -> MemoryQuery:
    return MemoryQuery.model_validate({"scope": scope, "text": "the harbour", **bounds})


def _ids(found: RetrievalResult) -> list[str]:
    return [memory.record.record_id for memory in found.memories]


def _reasons(found: RetrievalResult) -> dict[str, str]:
    return {each.record_id: each.reason for each in found.dropped}


def test_it_is_a_source() -> None:
    """Both ports, so the facade takes it."""
    check_source(_port(holding()))


async def test_the_engine_is_called_as_it_wants_to_be() -> None:
    """Our scope translated, the question, its layers, and the page."""
    engine = holding()
    await _port(engine).retrieve(_query(limit=5, layers=[MemoryLayer.SEMANTIC]))
    assert engine.asked == [
        {
            "scope": "v1/acme/alice",
            "query": "the harbour",
            "layers": {"semantic"},
            "top_k": 64,
            "embedding_provider": None,
        }
    ]
    await _port(engine).retrieve(_query(text="a\x00b\ud83d"))
    assert engine.asked[-1]["query"] == "a\ufffdb\ufffd"
    assert engine.asked[-1]["layers"] is None


# -- admission


async def test_a_row_is_of_the_scope_in_its_metadata_else_of_its_tenant() -> None:
    """The explicit path wins over the tenant; both are visible from below."""
    explicit = Row("explicit", metadata={"scope_path": ALICE.path}, content="x")
    found = await _port(holding(explicit, Row("tenant", content="y"))).retrieve(_query())
    assert {memory.record.record_id: memory.record.scope_path for memory in found.memories} == {
        "explicit": "v1/acme/alice",
        "tenant": "v1/acme",
    }


@pytest.mark.parametrize("gives_path", [True, False])
async def test_an_explicit_path_is_translated(gives_path: bool) -> None:
    """By `path_of`, which may give a scope or its path."""

    def path_of(path: str) -> Any:
        scope = MemoryScope.of(*path.split(">"))
        return scope.path if gives_path else scope

    row = Row("r", metadata={"scope_path": "acme>alice"})
    found = await _port(holding(row), path_of=path_of).retrieve(_query())
    assert [memory.record.scope_path for memory in found.memories] == [ALICE.path]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (Row("r", tenant_id=None), "no provenance"),
        (Row("r", tenant_id=""), "no provenance"),
        (Row("r", tenant_id=7), "its tenant cannot be a scope"),
        (Row("r", tenant_id="a\x00b"), "its tenant cannot be a scope"),
        (Row("r", metadata={"scope_path": "elsewhere"}), "its scope_path is not understood"),
        (Row("r", metadata={"scope_path": 7}), "its scope_path is not understood"),
        (Row("r", metadata={"scope_path": "v1/acme/"}), "its scope_path is not understood"),
        (Row("r", content=None), "no text"),
        (Row("r", content=" \n"), "no text"),
        (Row("r", content=b"bytes"), "no text"),
        (Row("r", layer="cache"), "unknown layer"),
        (Row("r", layer=None), "unknown layer"),
        (Row("r", layer="episodic"), "layer"),
    ],
)
async def test_a_row_that_cannot_be_admitted_is_dropped_with_its_reason(
    row: Row, reason: str
) -> None:
    """Each exclusion is reported; the good row beside it is served."""
    good = Row("good")
    query = _query(layers=[MemoryLayer.SEMANTIC])
    for found in (
        await _port(holding(row, good)).retrieve(query),
        await _port(holding(row, good)).scan_candidates(query),
    ):
        assert (_ids(found), _reasons(found)) == (["good"], {"r": reason})


async def test_a_row_without_an_id_is_dropped() -> None:
    """Nobody could refer to it."""
    found = await _port(holding(Row(None, id=""), Row("good"))).retrieve(_query())
    assert _ids(found) == ["good"]
    assert list(_reasons(found).values()) == ["no id"]


async def test_a_row_that_raises_is_dropped() -> None:
    """Its error does not reach the caller, nor does its text."""

    class Hostile(Row):
        @property
        def metadata(self) -> Any:
            raise RuntimeError("secret")

        @metadata.setter
        def metadata(self, value: Any) -> None:
            pass

    found = await _port(holding(Hostile("r"), Row("good"))).retrieve(_query())
    assert (_ids(found), _reasons(found)) == (["good"], {"r": "unreadable (RuntimeError)"})


@pytest.mark.parametrize(
    "foreign",
    [
        Row("foreign", tenant_id="other"),
        Row("foreign", tenant_id="ACME"),
        Row("foreign", tenant_id="acme", metadata={"scope_path": "v1/acme/bob"}),
        Row("foreign", metadata={"scope_path": "v1/acme/alice/chat"}),
        Row("foreign", metadata={"scope_path": "v1/acme/al"}),
    ],
)
@pytest.mark.parametrize("place", [0, 3, 40])
async def test_a_foreign_row_is_refused_wherever_it_stands(foreign: Row, place: int) -> None:
    """Before any cap: also far beyond the limit, also behind every gate; nothing is served."""
    held = rows(40)
    held.insert(place, foreign)
    for call in (
        _port(holding(*held)).retrieve(_query(limit=1)),
        _port(holding(*held)).retrieve(_query(limit=2, min_importance=1.0)),
        _port(holding(*held)).scan_candidates(_query()),
    ):
        with pytest.raises(ScopeViolation, match="foreign"):
            await call


async def test_what_is_kept_of_a_row() -> None:
    """Text, layer, times, metadata that is JSON, importance on our scale, the engine's score."""
    row = Row(
        "r",
        content="a\x00b",
        score=0.25,
        importance=10,
        created_at=datetime(2024, 1, 1),  # noqa: DTZ001 - as old rows have it
        metadata={"k": [1], "odd": object(), "text": "a\ud83d", 7: 1},
    )
    (memory,) = (await _port(holding(row)).retrieve(_query())).memories
    record = memory.record
    assert (record.text, record.layer, record.origin) == ("a\ufffdb", "semantic", "legacy")
    assert record.metadata == {"k": [1], "text": "a\ufffd"}
    assert record.recorded_at == datetime(2024, 1, 1, tzinfo=UTC)
    assert (memory.score, record.importance) == (0.25, 1.0)


@pytest.mark.parametrize(
    ("importance", "expected"),
    [(1, 0.0), (5.5, 0.5), (10, 1.0), (0, 0.0), (11, 1.0), (None, 0.5), (float("nan"), 0.5)],
)
async def test_importance_is_mapped(importance: Any, expected: float) -> None:
    """From 1 to 10 onto 0 to 1; what lies outside is held within, what is no number is 0.5."""
    found = await _port(holding(Row("r", importance=importance))).retrieve(_query())
    assert found.memories[0].record.importance == pytest.approx(expected)


async def test_an_id_that_ours_cannot_be_stands_as_its_hash() -> None:
    """The same each time, different for different ids; the entry's id where there is no node."""
    held = [Row("Entity: a"), Row("Entity: b", content="b"), Row(None, id="e-1", content="c")]
    first, second = [_ids(await _port(holding(*held)).retrieve(_query())) for _ in range(2)]
    assert first == second
    assert len(set(first)) == 3
    assert first[2] == "e-1"
    assert all(each.startswith("legacy:") for each in first[:2])


# -- pages


def test_the_first_page() -> None:
    """The whole budget without a limit, else eight times the limit between 64 and the budget."""
    assert (SCAN_BUDGET, PAGE_FACTOR, PAGE_MINIMUM) == (1000, 8, 64)
    assert [first_page(limit) for limit in (-1, 0, 1, 8, 9, 100, 125, 126, 5000)] == [
        1000, 1000, 64, 64, 72, 800, 1000, 1000, 1000,
    ]  # fmt: skip


async def test_the_limit_is_applied_to_what_was_admitted() -> None:
    """A first page full of rows of nobody does not shorten the answer."""
    held = [*rows(100, tenant_id=None), *(Row(f"good-{at}", content=f"{at}") for at in range(9))]
    engine = holding(*held)
    found = await _port(engine).retrieve(_query(limit=5))
    assert _ids(found) == [f"good-{at}" for at in range(5)]
    assert engine.pages == [64, 512]
    assert len(found.dropped) == 104
    assert _reasons(found)["good-5"] == "limit"


async def test_retrieve_stops_as_soon_as_the_limit_is_met() -> None:
    """One page suffices here; a scan of the same goes on to the budget."""
    engine = holding(*rows(5000))
    assert len((await _port(engine).retrieve(_query(limit=3))).memories) == 3
    assert engine.pages == [64]
    engine = holding(*rows(5000))
    assert len((await _port(engine).scan_candidates(_query(limit=3))).memories) == 1000
    assert engine.pages == [64, 512, 1000]


async def test_reading_ends_with_a_dry_engine() -> None:
    """Fewer rows than asked for: that was all."""
    engine = holding(*rows(70))
    found = await _port(engine).retrieve(_query(limit=9, min_importance=1.0))
    assert found.memories == ()
    assert engine.pages == [72]
    engine = holding(*rows(500))
    assert len((await _port(engine).scan_candidates(_query())).memories) == 500
    assert engine.pages == [64, 512]


async def test_rows_repeated_across_pages_count_once() -> None:
    """Also within a page; the first of them stands."""
    twice = [row for row in rows(300) for _ in range(2)]
    engine = holding(*twice)
    found = await _port(engine).scan_candidates(_query())
    assert _ids(found) == [f"n-{at}" for at in range(300)]
    assert found.dropped == ()


async def test_an_engine_that_repeats_itself_for_ever_is_dry() -> None:
    """However much it is asked for, it says the same."""
    engine = Scripted(lambda top_k: (rows(3) * top_k)[:top_k])
    found = await _port(engine).retrieve(_query(limit=10))
    assert _ids(found) == ["n-0", "n-1", "n-2"]
    assert len(engine.pages) <= 2


async def test_an_engine_that_returns_more_than_asked_is_cut_at_the_budget() -> None:
    """All of it is judged: a foreign row far behind is refused all the same."""
    engine = Scripted(lambda _top_k: rows(3000))
    assert len((await _port(engine).scan_candidates(_query())).memories) == 1000
    found = await _port(engine).retrieve(_query(limit=5))
    assert (len(found.memories), len(found.dropped)) == (5, 995)
    leaking = Scripted(lambda _top_k: [*rows(3000), Row("foreign", tenant_id="other")])
    with pytest.raises(ScopeViolation):
        await _port(leaking).retrieve(_query(limit=5))


async def test_the_order_is_that_of_the_engines_last_answer() -> None:
    """One that ranks anew when it looks further is followed."""
    engine = Scripted(lambda top_k: list(reversed(rows(200)[:top_k])))
    found = await _port(engine).scan_candidates(_query())
    assert _ids(found) == [f"n-{at}" for at in reversed(range(200))]


@given(
    admitted=st.lists(st.booleans(), max_size=150),
    limit=st.integers(0, 30),
)
def test_any_mixture_is_admitted_in_order_and_accounted_for(
    admitted: list[bool], limit: int
) -> None:
    """What comes back is a prefix of the admitted; everything read is returned or dropped."""
    held = [
        Row(f"n-{at}", content=f"text {at}", tenant_id="acme" if good else None)
        for at, good in enumerate(admitted)
    ]
    good = [f"n-{at}" for at, is_good in enumerate(admitted) if is_good]
    engine = holding(*held)
    found = asyncio.run(_port(engine).retrieve(_query(limit=limit)))
    assert _ids(found) == good[:limit]
    read = min(len(held), engine.pages[-1])
    assert sorted([*_ids(found), *_reasons(found)]) == sorted(f"n-{at}" for at in range(read))
    scanned = asyncio.run(_port(holding(*held)).scan_candidates(_query()))
    assert _ids(scanned) == good


# -- faults


@pytest.mark.parametrize(
    "error", [RuntimeError("secret"), ConnectionError("secret"), MemoryContractError("secret")]
)
async def test_an_engine_that_raises_is_unavailable(error: Exception) -> None:
    """Whatever it raises, and nothing of what it says."""

    def fail(_top_k: int) -> Any:
        raise error

    for call in (
        _port(Scripted(fail)).retrieve(_query()),
        _port(Scripted(fail)).scan_candidates(_query()),
    ):
        with pytest.raises(MemoryUnavailable) as raised:
            await call
        assert "secret" not in str(raised.value)
        assert type(error).__name__ in str(raised.value)


@pytest.mark.parametrize("answer", [None, 7])
async def test_an_engine_that_returns_no_rows_is_unavailable(answer: Any) -> None:
    """That is no empty answer."""
    with pytest.raises(MemoryUnavailable, match="returned"):
        await _port(Scripted(lambda _: answer)).retrieve(_query())


async def test_an_engine_that_fails_on_a_later_page_is_unavailable() -> None:
    """Half an answer would look like a whole one."""

    def fail(top_k: int) -> Any:
        if top_k > 64:
            raise OSError
        return rows(64, tenant_id=None)

    with pytest.raises(MemoryUnavailable):
        await _port(Scripted(fail)).retrieve(_query())


async def test_a_slow_engine_holds_up_only_who_asked_it() -> None:
    """Others go on meanwhile, and whoever waits may give up."""
    may_answer = asyncio.Event()

    async def slowly() -> list[Row]:
        await may_answer.wait()
        return rows(1)

    slow = asyncio.create_task(_port(Scripted(lambda _: slowly())).retrieve(_query()))
    given_up = asyncio.create_task(_port(Scripted(lambda _: slowly())).retrieve(_query()))
    assert _ids(await _port(holding(*rows(2))).retrieve(_query())) == ["n-0", "n-1"]
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    may_answer.set()
    assert _ids(await slow) == ["n-0"]


async def test_a_scope_that_the_engine_does_not_have_is_refused() -> None:
    """`scope_of` is the adopter's: its own errors pass, others are named by their type."""

    def raising(error: Exception) -> LegacyRetrievalPort:
        def scope_of(_scope: MemoryScope) -> Any:
            raise error

        return LegacyRetrievalPort(holding(), scope_of)

    with pytest.raises(MemoryContractError, match="KeyError"):
        await raising(KeyError("secret")).retrieve(_query())
    with pytest.raises(AfterturnError, match="mine"):
        await raising(AfterturnError("mine")).retrieve(_query())


# -- embedding


async def test_without_an_embedder_the_answer_says_so() -> None:
    """The engine's vector half is empty, and it would never tell."""
    engine = holding(*rows(1))
    for found in (
        await _port(engine).retrieve(_query()),
        await _port(engine).scan_candidates(_query()),
    ):
        assert found.degraded == (NO_VECTORS,)


async def test_our_embedder_is_wrapped_to_the_engines() -> None:
    """`embed(text)` gives the cue's vector as plain numbers; the answer is whole."""
    engine = holding(*rows(1))
    found = await _port(engine, embedding_provider=WordCounts()).retrieve(_query())
    assert found.degraded == ()
    vector = await engine.asked[0]["embedding_provider"].embed("the harbour")
    assert vector == pytest.approx(list(WordCounts().embed(["the harbour"])[0]))
    assert {type(number) for number in vector} == {float}


async def test_an_embedder_that_fails_leaves_the_graph() -> None:
    """An answer marked `degraded`, not an error and not silence; nothing of the error's text."""
    engine = holding(*rows(1))
    found = await _port(engine, embedding_provider=Broken()).retrieve(_query())
    assert _ids(found) == ["n-0"]
    assert found.degraded == ("vectors: the embedder failed (ConnectionError)",)
    assert engine.asked[0]["embedding_provider"] is None
