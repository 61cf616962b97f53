"""What stands between candidates and the answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterturn.errors import ScopeViolation
from afterturn.queries import MemoryQuery, RetrievalResult
from afterturn.records import MemoryLayer
from afterturn.retrieval.gates import DropReason, admit
from afterturn.retrieved import RetrievedMemory
from afterturn.scope import MemoryScope

from .building import retrieved

ALICE = MemoryScope.of("acme", "alice")


def ask(scope: MemoryScope = ALICE, **fields: object) -> MemoryQuery:
    return MemoryQuery.model_validate({"scope": scope, "text": "q", **fields})


def ids(result: RetrievalResult) -> list[str]:
    return [memory.record.record_id for memory in result.memories]


def reasons(result: RetrievalResult) -> dict[str, str]:
    return {dropped.record_id: dropped.reason for dropped in result.dropped}


def said(turn: str, speaker: str, layer: MemoryLayer, text: str) -> RetrievedMemory:
    return retrieved(
        f"{turn}:{speaker}:{layer.value}",
        text,
        layer=layer,
        metadata={"turn_id": turn, "speaker": speaker},
    )


def test_the_limit_is_kept_and_told() -> None:
    """The best come back, the others are dropped for the limit."""
    result = admit([retrieved(f"r{i}", f"text {i}") for i in range(4)], ask(limit=2))
    assert ids(result) == ["r0", "r1"]
    assert reasons(result) == {"r2": "limit", "r3": "limit"}


@pytest.mark.parametrize("limit", [0, -1, -100])
def test_a_limit_of_nothing_returns_nothing(limit: int) -> None:
    """All candidates stand in `dropped`."""
    result = admit([retrieved("a", "x"), retrieved("b", "y")], ask(limit=limit))
    assert ids(result) == []
    assert reasons(result) == {"a": "limit", "b": "limit"}


@pytest.mark.parametrize(
    "path",
    ["v1/acme/bob", "v1/acme/alice/chat", "v1/acme/alicea", "v1/acme/al", "v1/other", "v1/acme2"],
)
def test_a_row_of_another_scope_is_a_violation(path: str) -> None:
    """Siblings', descendants' and strangers' rows raise, even far beyond the limit."""
    rows = [retrieved(f"r{i}", f"text {i}") for i in range(5)]
    leaked = retrieved("leaked", "the secret of another", scope_path=path)
    with pytest.raises(ScopeViolation) as caught:
        admit([*rows, leaked], ask(limit=1))
    assert "leaked" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_rows_of_the_scope_and_its_ancestors_are_visible() -> None:
    """A reader sees what its own and the covering scopes hold."""
    paths = ["v1/acme", "v1/acme/alice"]
    result = admit([retrieved(p[-3:], p, scope_path=p) for p in paths], ask())
    assert len(result.memories) == 2


@pytest.mark.parametrize("first", [MemoryLayer.WORKING, MemoryLayer.EPISODIC])
def test_the_two_layers_of_a_message_count_once(first: MemoryLayer) -> None:
    """Whichever comes first stays, also where a later write changed the text of one."""
    second = MemoryLayer.EPISODIC if first is MemoryLayer.WORKING else MemoryLayer.WORKING
    pair = [said("t1", "user", first, "tea"), said("t1", "user", second, "green tea")]
    result = admit([*pair, said("t1", "assistant", first, "noted")], ask())
    assert ids(result) == [f"t1:user:{first.value}", f"t1:assistant:{first.value}"]
    assert reasons(result) == {f"t1:user:{second.value}": "duplicate"}


def test_pieces_of_one_message_in_one_layer_are_no_duplicates() -> None:
    """Only the two layers are one message; a message kept in pieces stays whole."""
    pieces = [
        retrieved(
            f"p{i}",
            f"piece {i}",
            layer=MemoryLayer.EPISODIC,
            metadata={"turn_id": "t1", "speaker": "user"},
        )
        for i in range(3)
    ]
    assert len(admit(pieces, ask()).memories) == 3


def test_equal_text_in_one_scope_counts_once() -> None:
    """The better one stays; the same text of another scope or speaker is a memory of its own."""
    rows = [
        retrieved("a", "likes tea"),
        retrieved("b", "likes tea"),
        retrieved("c", "likes tea", scope_path="v1/acme"),
    ]
    result = admit(rows, ask())
    assert ids(result) == ["a", "c"]
    speakers = [
        retrieved(name, "I like tea", metadata={"speaker_name": name}) for name in ("Ann", "Ben")
    ]
    assert ids(admit([*speakers, retrieved("x", "I like tea")], ask())) == ["Ann", "Ben"]


def test_a_copy_that_is_turned_away_does_not_hide_the_other() -> None:
    """A duplicate is one of something that is returned."""
    rows = [retrieved("a", "tea", importance=0.1), retrieved("b", "tea", importance=0.9)]
    result = admit(rows, ask(min_importance=0.5))
    assert ids(result) == ["b"]
    assert reasons(result) == {"a": "importance"}


def test_importance_and_relevance_are_bounds() -> None:
    """At the bound a candidate passes, below it does not, and it takes no place."""
    rows = [
        retrieved("low", "a", importance=0.4, score=3),
        retrieved("at", "b", importance=0.5, score=1),
        retrieved("far", "c", importance=0.9, score=0.99),
        retrieved("nan", "d", importance=0.9, score=float("nan")),
    ]
    result = admit(rows, ask(min_importance=0.5, min_relevance=1.0, limit=1))
    assert ids(result) == ["at"]
    assert reasons(result) == {"low": "importance", "far": "relevance", "nan": "relevance"}


def test_characters_are_capped_without_costing_a_place() -> None:
    """A text that does not fit is passed over, a shorter one behind it may fit."""
    rows = [retrieved("a", "x" * 6), retrieved("b", "y" * 6), retrieved("c", "z" * 4)]
    result = admit(rows, ask(max_chars=10, limit=2))
    assert ids(result) == ["a", "c"]
    assert reasons(result) == {"b": "max_chars"}


candidates = st.lists(
    st.builds(
        retrieved,
        st.uuids().map(lambda u: u.hex),
        st.sampled_from(["a", "bb", "ccc", "dddd"]),
        score=st.floats(-3, 3),
        importance=st.floats(0, 1),
        scope_path=st.sampled_from(["v1/acme", "v1/acme/alice"]),
        layer=st.sampled_from(MemoryLayer),
        metadata=st.fixed_dictionaries(
            {},
            optional={
                "turn_id": st.sampled_from(["t1", "t2"]),
                "speaker": st.sampled_from(["user", "assistant"]),
                "speaker_name": st.sampled_from(["Ann", "Ben"]),
            },
        ),
    ),
    max_size=15,
)


@given(
    candidates,
    st.integers(-1, 6),
    st.none() | st.floats(0, 1),
    st.none() | st.floats(-3, 3),
    st.none() | st.integers(0, 12),
)
def test_every_candidate_is_returned_or_dropped_with_a_reason(
    rows: list[RetrievedMemory],
    limit: int,
    importance: float | None,
    relevance: float | None,
    chars: int | None,
) -> None:
    """Nothing vanishes, order is kept, and no bound is broken."""
    result = admit(
        rows,
        ask(limit=limit, min_importance=importance, min_relevance=relevance, max_chars=chars),
    )
    given_ids = [memory.record.record_id for memory in rows]
    assert sorted(ids(result) + [d.record_id for d in result.dropped]) == sorted(given_ids)
    assert ids(result) == [i for i in given_ids if i in set(ids(result))]
    assert {d.reason for d in result.dropped} <= set(DropReason)
    assert len(result.memories) <= max(limit, 0)
    kept = result.memories
    assert chars is None or sum(len(m.record.text) for m in kept) <= chars
    assert importance is None or all(m.record.importance >= importance for m in kept)
    assert relevance is None or all(m.score >= relevance for m in kept)
