"""The records of a turn, exactly: which, in what order, under which ids, with what in them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from afterturn.errors import MemoryContractError
from afterturn.intake import METADATA_BYTES_MAX, clean_text
from afterturn.records import MemoryLayer, MemoryRecord, turn_records
from afterturn.scope import MemoryScope
from afterturn.turns import FinishedTurn

SCOPE = MemoryScope.of("acme", "alice")
sides = st.none() | st.text(alphabet=st.characters(categories=None), max_size=30)


def test_a_turn_gives_four_records() -> None:
    """The user's side before the assistant's, each as `working` then `episodic`."""
    records = turn_records(query=" What? ", answer="That.\n", scope=SCOPE, turn_id="t-1")
    assert [(r.record_id, r.text, r.layer) for r in records] == [
        ("t-1:user:working", "What?", MemoryLayer.WORKING),
        ("t-1:user:episodic", "What?", MemoryLayer.EPISODIC),
        ("t-1:assistant:working", "That.", MemoryLayer.WORKING),
        ("t-1:assistant:episodic", "That.", MemoryLayer.EPISODIC),
    ]
    assert {r.scope_path for r in records} == {"v1/acme/alice"}
    assert len({r.origin for r in records}) == 1
    assert {(r.importance, r.occurred_at, r.recorded_at, r.sources) for r in records} == {
        (0.5, None, None, ())
    }


@pytest.mark.parametrize("blank", [None, "", " ", "\t\r\n", "\u00a0\u2003", "\x1c\x1f"])
def test_a_blank_side_gives_no_record(blank: str | None) -> None:
    """`None` is blank; the other side is recorded all the same."""
    (working, episodic) = turn_records(query=blank, answer="yes", scope=SCOPE, turn_id="t")
    assert (working.record_id, episodic.record_id) == (
        "t:assistant:working",
        "t:assistant:episodic",
    )
    only = turn_records(query="no", answer=blank, scope=SCOPE, turn_id="t")
    assert [r.record_id for r in only] == ["t:user:working", "t:user:episodic"]
    assert turn_records(query=blank, answer=blank, scope=SCOPE) == ()


def test_an_exchange_is_recorded_whatever_it_says() -> None:
    """Nothing judges whether it matters."""
    for text in (".", "ok", "👍", "\x00", "0"):
        assert len(turn_records(query=text, answer=text, scope=SCOPE)) == 4


def test_the_metadata_is_the_caller_s_with_three_keys_of_ours_on_top() -> None:
    """A caller cannot pose as another speaker, turn or source; its other keys stay."""
    given_metadata = {
        "session": "c-42",
        "caption": "a photo",
        "speaker": "system",
        "turn_id": "forged",
        "source": "forged",
        "nested": {"a": [1]},
    }
    before = copy.deepcopy(given_metadata)
    records = turn_records(
        query="q", answer="a", scope=SCOPE, extra_metadata=given_metadata, turn_id="t"
    )
    for record, speaker in zip(records, ["user", "user", "assistant", "assistant"], strict=True):
        assert record.metadata == before | {
            "speaker": speaker,
            "turn_id": "t",
            "source": record.metadata["source"],
        }
        assert record.metadata["source"] != "forged"
    assert len({r.metadata["source"] for r in records}) == 1
    assert given_metadata == before


@pytest.mark.parametrize("missing", [None, ""])
def test_a_missing_turn_id_is_made_once_for_the_call(missing: str | None) -> None:
    """All four share it, another call has another, and it is a valid turn id."""
    records = turn_records(query="q", answer="a", scope=SCOPE, turn_id=missing)
    (turn_id,) = {r.metadata["turn_id"] for r in records}
    assert [r.record_id for r in records] == [
        f"{turn_id}:{speaker}:{layer}"
        for speaker in ("user", "assistant")
        for layer in ("working", "episodic")
    ]
    again = turn_records(query="q", answer="a", scope=SCOPE, turn_id=missing)
    assert again[0].record_id != records[0].record_id
    assert len(turn_records(query="q", answer="a", scope=SCOPE, turn_id=turn_id)) == 4


@given(sides, sides, st.dictionaries(st.text(max_size=5).map(clean_text), st.integers()))
def test_the_same_arguments_with_an_id_give_the_same_records(
    query: str | None, answer: str | None, metadata: dict[str, Any]
) -> None:
    """Pure, for any text; each side that is not blank is there twice, stripped."""

    def made() -> tuple[MemoryRecord, ...]:
        return turn_records(
            query=query, answer=answer, scope=SCOPE, extra_metadata=metadata, turn_id="t"
        )

    records = made()
    assert records == made()
    expected = [clean_text(side.strip()) for side in (query, answer) if side and side.strip()]
    assert [r.text for r in records] == [text for text in expected for _ in range(2)]


def test_the_longest_ids_and_the_largest_metadata_fit() -> None:
    """A turn that was accepted can be recorded and handed to an extractor with all we add."""
    metadata = {"notes": "n" * (METADATA_BYTES_MAX - len(json.dumps({"notes": ""})))}
    turn_id = "t" * 160
    records = turn_records(
        query="q", answer="a", scope=SCOPE, extra_metadata=metadata, turn_id=turn_id
    )
    assert max(len(r.record_id) for r in records) <= 200
    names = ["\x01" * 200, "😀" * 200]
    added = records[0].metadata | {"session": "s" * 200, "speaker_name": names[0]}
    record = MemoryRecord.model_validate(dict(records[0]) | {"metadata": added})
    assert record.metadata == added
    turn = FinishedTurn(
        turn_id=turn_id,
        scope=SCOPE,
        query="q",
        answer="a",
        metadata=metadata | {"session": "s" * 200, "names": names},
    )
    assert turn.metadata["names"] == names


def test_bad_ids_and_metadata_are_refused_before_a_record_is_made() -> None:
    """As where they enter with a turn."""
    with pytest.raises(MemoryContractError, match="Not a valid turn_id"):
        turn_records(query="q", answer="a", scope=SCOPE, turn_id="not an id")
    with pytest.raises(MemoryContractError, match="key 'mood'"):
        turn_records(query="q", answer="a", scope=SCOPE, extra_metadata={"mood": {1}})
    with pytest.raises(MemoryContractError, match="too large"):
        turn_records(query="q", answer="a", scope=SCOPE, extra_metadata={"k": "x" * (64 << 10)})


@pytest.mark.parametrize("importance", [-0.01, 1.01, float("nan"), float("inf")])
def test_importance_is_between_0_and_1(importance: float) -> None:
    """The bounds themselves are fine."""
    for fine in (0.0, 1.0):
        assert _record(importance=fine).importance == fine
    with pytest.raises(ValidationError, match="importance"):
        _record(importance=importance)


def test_a_record_names_a_canonical_scope_and_a_known_layer() -> None:
    """Anything else is refused where the record is made."""
    with pytest.raises(MemoryContractError, match="not canonical"):
        _record(scope_path="v1/acme/al%69ce")
    with pytest.raises(MemoryContractError, match="Not a scope path"):
        _record(scope_path="acme/alice")
    with pytest.raises(ValidationError, match="layer"):
        _record(layer="permanent")
    assert _record(layer="prospective").layer is MemoryLayer.PROSPECTIVE


def _record(**changes: Any) -> MemoryRecord:
    fields: dict[str, Any] = {
        "record_id": "r",
        "text": "t",
        "scope_path": SCOPE.path,
        "layer": "semantic",
        "origin": "written",
    }
    return MemoryRecord(**(fields | changes))
