"""The public models: closed, frozen, and silent about what they refuse."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from afterturn.errors import MemoryContractError
from afterturn.model import Model
from afterturn.queries import Dropped, MemoryQuery, RetrievalResult
from afterturn.receipts import LifecycleReceipt
from afterturn.records import MemoryLayer, MemoryRecord, Source
from afterturn.retrieved import RetrievedMemory
from afterturn.scope import MemoryScope
from afterturn.turns import (
    ExtractionRequest,
    ExtractionResult,
    FinishedTurn,
    TokenUsage,
    TurnOutcome,
)
from afterturn.writes import RecordOutcome, WriteReceipt, WriteRequest

SECRET = "alice-takes-insulin"
SCOPE = MemoryScope.of("acme", "alice")
NOW = datetime(2024, 3, 31, 1, 30, tzinfo=UTC)
SOURCE = Source(turn_id="t", turn_path=SCOPE.path)
RECORD = MemoryRecord(
    record_id="r",
    text="She reads.",
    scope_path=SCOPE.path,
    layer=MemoryLayer.SEMANTIC,
    origin="written",
)
TURN = FinishedTurn(turn_id="t", scope=SCOPE, query="q", answer=None)


class Shy:
    def __repr__(self) -> str:
        return SECRET


# One of each, with every field set: what is documented as a field, and no more.
EXAMPLES: list[Model] = [
    SOURCE,
    MemoryRecord(
        record_id="r",
        text="She reads.",
        scope_path=SCOPE.path,
        layer=MemoryLayer.WORKING,
        origin="written",
        metadata={"session": "s"},
        importance=1.0,
        occurred_at=NOW,
        recorded_at=NOW,
        sources=(SOURCE,),
    ),
    MemoryQuery(
        scope=SCOPE,
        text="what?",
        limit=3,
        layers=(MemoryLayer.WORKING,),
        min_relevance=0.5,
        min_importance=0.5,
        recency_weight=0.5,
        importance_weight=0.5,
        max_chars=100,
        now=NOW,
    ),
    RetrievedMemory(record=RECORD, score=1.0, signals={"lexical": 1.0}),
    Dropped(record_id="r", reason="limit"),
    RetrievalResult(
        memories=(RetrievedMemory(record=RECORD, score=1.0),),
        dropped=(Dropped(record_id="r", reason="limit"),),
        degraded=("vectors",),
    ),
    WriteRequest(scope=SCOPE, records=(RECORD,), token=(("v1/acme", 7),)),
    RecordOutcome(record_id="r", status="refused", reason="blank"),
    WriteReceipt(outcomes=(RecordOutcome(record_id="r", status="pending"),)),
    LifecycleReceipt(
        job_id=1,
        kind="forget",
        scope_path=SCOPE.path,
        outcome="done",
        counts={"turns": 1},
        derived_outside=1,
        not_covered=("Source",),
        generation=7,
        requested_at=NOW,
        completed_at=NOW,
        log_head="00",
    ),
    FinishedTurn(
        turn_id="t", scope=SCOPE, query="q", answer="a", occurred_at=NOW, metadata={"k": 1}
    ),
    ExtractionRequest(scope=SCOPE, turns=(TURN,), related=(RECORD,)),
    ExtractionResult(
        records=(RECORD,),
        degraded=True,
        reason="timeout",
        cause="unavailable",
        retry_after_seconds=2.5,
        usage=TokenUsage(calls=1, prompt_tokens=30, completion_tokens=4),
    ),
    TurnOutcome(status="done", recorded=4, extracted=1, reason="none"),
]
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: type(e).__name__)

WRONG: list[Any] = [
    SECRET,
    [SECRET],
    {"x": SECRET},
    ({"text": SECRET, "turn_id": SECRET},),
    SECRET.encode(),
    {SECRET},
    Shy(),
    float("nan"),
    -1,
    datetime(2024, 1, 1),  # noqa: DTZ001 - naive on purpose
]


@every_example
def test_every_field_is_shown_here(example: Model) -> None:
    """Each field is set, so the tests below try all of them."""
    fields = type(example).model_fields
    assert example.model_fields_set == set(fields)


@every_example
def test_a_model_is_frozen(example: Model) -> None:
    """No field can be set and none can be added."""
    for name in (*type(example).model_fields, "added"):
        with pytest.raises(ValidationError, match=r"frozen|no field"):
            setattr(example, name, "x")


@every_example
def test_a_field_that_does_not_exist_is_refused(example: Model) -> None:
    """A misspelt name is an error, and its value is not shown."""
    with pytest.raises(ValidationError, match="importence") as raised:
        type(example).model_validate(dict(example) | {"importence": SECRET})
    assert SECRET not in str(raised.value) + repr(raised.value)


@every_example
def test_what_is_refused_is_never_shown(example: Model) -> None:
    """Every field, many wrong values: the error may name the field, never what stood in it."""
    errors = []
    for name in type(example).model_fields:
        for value in WRONG:
            try:
                type(example)(**(dict(example) | {name: value}))
            except ValidationError as error:
                errors.append(str(error) + repr(error))
            except MemoryContractError as error:
                # A scope's path is no memory text: it is shown.
                if not name.endswith("_path"):
                    errors.append(str(error) + repr(error))
    assert len(errors) >= len(type(example).model_fields)
    assert not [each for each in errors if SECRET in each]


@every_example
def test_a_model_survives_json_and_pickle(example: Model) -> None:
    """Equal to what went in."""
    kind = type(example)
    assert kind.model_validate_json(example.model_dump_json()) == example
    assert kind.model_validate(example.model_dump()) == example
    assert pickle.loads(pickle.dumps(example)) == example  # noqa: S301 - our own


def test_only_what_is_documented_is_required() -> None:
    """The fields without a default, in their order."""

    def required(kind: type[Model]) -> list[str]:
        return [name for name, field in kind.model_fields.items() if field.is_required()]

    assert required(MemoryRecord) == ["record_id", "text", "scope_path", "layer", "origin"]
    assert required(MemoryQuery) == ["scope", "text"]
    assert required(RetrievalResult) == []
    assert required(WriteRequest) == ["scope", "records"]
    assert required(Source) == ["turn_id", "turn_path"]
    assert required(ExtractionResult) == []
    assert required(TurnOutcome) == ["status"]


def test_defaults_are_those_that_are_documented() -> None:
    """A limit of 8, an importance of 0.5, no token, nothing dropped, nothing degraded."""
    query = MemoryQuery(scope=SCOPE, text="?")
    assert (query.limit, query.layers, query.min_relevance, query.max_chars) == (
        8,
        None,
        None,
        None,
    )
    assert (RECORD.importance, RECORD.metadata, RECORD.sources) == (0.5, {}, ())
    assert WriteRequest(scope=SCOPE, records=()).token is None
    result = RetrievalResult()
    assert (result.memories, result.dropped, result.degraded) == ((), (), ())


def test_defaults_are_not_shared() -> None:
    """What one record's metadata gets does not reach another's."""
    one = MemoryRecord(**dict(RECORD) | {"metadata": {}})
    one.metadata["x"] = 1
    again = MemoryRecord(
        record_id="r", text="t", scope_path=SCOPE.path, layer=MemoryLayer.WORKING, origin="o"
    )
    assert again.metadata == {}
    assert RECORD.metadata == {}


def test_a_scope_inside_a_model_is_judged_too() -> None:
    """By the rules of scopes, also when it comes as JSON."""
    with pytest.raises(MemoryContractError, match="too deep"):
        MemoryQuery.model_validate_json(
            '{"scope": {"segments": [%s]}, "text": ""}' % ('"a",' * 8 + '"a"')
        )
    with pytest.raises(MemoryContractError, match="segment 1 is int"):
        MemoryQuery.model_validate({"scope": {"segments": [1]}, "text": ""})
