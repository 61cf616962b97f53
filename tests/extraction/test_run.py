"""One call of an extractor: its limits, and what of its answer may be kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from afterturn.errors import ConfigurationError, MemoryContractError, MemoryUnavailable
from afterturn.extraction.run import RECORDS_MAX, Extracted, run_extraction
from afterturn.ports import MemoryExtractorPort
from afterturn.records import MemoryLayer, MemoryRecord, Source, turn_records
from afterturn.scope import MemoryScope
from afterturn.turns import ExtractionRequest, ExtractionResult
from tests.extraction.turns import SAID_AT, SCOPE, request, turn

SECRET = "the safe's code is 4711"
OWN = Source(turn_id="t-1", turn_path=SCOPE.path)


class Answering:
    """An extractor that gives what it was made with."""

    def __init__(self, *records: MemoryRecord, **more: Any) -> None:
        self._result = ExtractionResult(records=records, **more)

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        return self._result


class Doing:
    """An extractor that does what it was made with."""

    def __init__(self, act: Callable[[], Awaitable[Any]]) -> None:
        self._act = act

    async def extract(self, request: ExtractionRequest) -> Any:
        return await self._act()


def record(text: str = "Nora moved to Lisbon", **more: Any) -> MemoryRecord:
    return MemoryRecord.model_validate(
        {
            "record_id": "fact-1",
            "text": text,
            "scope_path": SCOPE.path,
            "layer": MemoryLayer.SEMANTIC,
            "origin": "model",
            **more,
        }
    )


async def extracted(
    extractor: object, asked: ExtractionRequest | None = None, timeout_seconds: float = 30
) -> Extracted:
    return await run_extraction(
        cast(MemoryExtractorPort, extractor),
        asked or request(turn(SECRET)),
        timeout_seconds=timeout_seconds,
    )


async def test_a_good_answer_is_kept() -> None:
    """Records pass with their own text, kind and metadata, and get the turn as their source."""
    given = record(metadata={"kind": "place"}, importance=0.9, occurred_at=SAID_AT)
    answer = await extracted(Answering(given))
    assert answer == Extracted(records=(given.model_copy(update={"sources": (OWN,)}),))


async def test_nothing_learned_is_no_failure() -> None:
    """An empty answer is an answer."""
    assert await extracted(Answering()) == Extracted()


async def test_a_model_that_never_answers() -> None:
    """The call ends at its timeout and can be tried again."""
    started = asyncio.Event()

    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    answer = await extracted(Doing(hang), timeout_seconds=0.01)
    assert answer == Extracted(degraded=True, reason="timeout")
    assert started.is_set()


async def test_the_extractors_own_timeout_is_a_timeout() -> None:
    """A client that gives up by itself is the same case."""

    async def give_up() -> None:
        raise TimeoutError(SECRET)

    assert await extracted(Doing(give_up)) == Extracted(degraded=True, reason="timeout")


@pytest.mark.parametrize(
    "error",
    [
        ValueError(SECRET),
        KeyError(SECRET),
        ConnectionError(SECRET),
        MemoryUnavailable(SECRET),
        ConfigurationError(SECRET),
        asyncio.CancelledError(SECRET),
        ExceptionGroup(SECRET, [ValueError(SECRET)]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_exception_degrades_and_its_text_stays_out(error: BaseException) -> None:
    """Only the type is told: an exception's text may quote the conversation."""

    async def fail() -> None:
        raise error

    answer = await extracted(Doing(fail))
    assert answer == Extracted(degraded=True, reason=f"failed: {type(error).__name__}")


async def test_a_contract_error_is_final() -> None:
    """It passes, so that the turn is not tried again."""

    async def refuse() -> None:
        raise MemoryContractError("the model refuses this")

    with pytest.raises(MemoryContractError, match="the model refuses this"):
        await extracted(Doing(refuse))


async def test_a_record_built_against_the_contract_is_final() -> None:
    """An id that is text is refused where the extractor builds it."""

    async def build() -> ExtractionResult:
        return ExtractionResult(records=(record(record_id="moved to Lisbon"),))

    with pytest.raises(MemoryContractError):
        await extracted(Doing(build))


async def test_cancelling_the_caller_cancels_the_call() -> None:
    """A worker that stops does not wait for a model."""
    started = asyncio.Event()
    ended = asyncio.Event()

    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(extracted(Doing(hang)))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


@pytest.mark.parametrize("answer", [None, [], {"records": []}, "facts", record()])
async def test_an_answer_of_another_type_degrades(answer: object) -> None:
    """What is no ExtractionResult is told by its type."""

    async def give() -> object:
        return answer

    assert await extracted(Doing(give)) == Extracted(
        degraded=True, reason=f"answered {type(answer).__name__}"
    )


async def test_a_hidden_synchronous_extractor_works() -> None:
    """Validation cannot see through every decorator; the result is what counts."""

    class Hidden:
        def extract(self, request: ExtractionRequest) -> ExtractionResult:
            return ExtractionResult(records=(record(),))

    assert len((await extracted(Hidden())).records) == 1


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("no model", "no model"),
        ("  model_unavailable ", "model_unavailable"),
        ("", "degraded"),
        ("x" * 121, "degraded"),
        ("first line\nsecond", "degraded"),
        ("naïve", "degraded"),
        ("a\x00b", "degraded"),
    ],
)
async def test_a_degraded_answer_says_why_in_a_code(given: str, kept: str) -> None:
    """A reason stands in the ledger and the logs, so it must be short and plain."""
    answer = await extracted(Answering(record(), degraded=True, reason=given))
    assert (answer.degraded, answer.reason, len(answer.records)) == (True, kept, 1)


@pytest.mark.parametrize(
    ("scope", "is_kept"),
    [
        (SCOPE, True),
        (SCOPE.ancestor(2), True),
        (SCOPE.root, True),
        (SCOPE.child("part"), False),
        (MemoryScope.of("acme", "nora", "c-2"), False),
        (MemoryScope.of("acme", "nor"), False),
        (MemoryScope.of("acme", "norah"), False),
        (MemoryScope.of("other"), False),
    ],
    ids=str,
)
async def test_a_fact_stays_in_the_turns_scope_or_above(scope: MemoryScope, is_kept: bool) -> None:
    """A model's output cannot write to another user, whatever it names."""
    answer = await extracted(Answering(record(scope_path=scope.path)))
    assert (len(answer.records), answer.refused) == ((1, 0) if is_kept else (0, 1))
    assert not answer.degraded


async def test_bad_records_are_refused_one_by_one() -> None:
    """The others of the same answer are kept."""
    fits = "x" * (64 << 10)
    answer = await extracted(
        Answering(
            record("first", record_id="a"),
            record(" \n", record_id="b"),
            record(fits + "x", record_id="c"),
            record("é" * (32 << 10) + "é", record_id="d"),
            record(fits, record_id="e"),
            record("again", record_id="a"),
            record("elsewhere", record_id="f", scope_path="v1/other"),
            record("last", record_id="g"),
        )
    )
    assert [each.record_id for each in answer.records] == ["a", "e", "g"]
    assert answer.records[0].text == "first"
    assert answer.refused == 5


async def test_no_more_than_the_limit_is_kept() -> None:
    """Records beyond the limit are counted as refused."""
    many = [record(record_id=f"fact-{n}") for n in range(RECORDS_MAX + 7)]
    answer = await extracted(Answering(*many))
    assert (len(answer.records), answer.refused) == (RECORDS_MAX, 7)


async def test_a_fact_cannot_replace_a_raw_record() -> None:
    """The ids of turn records are not an extractor's to use, of this turn or of another."""
    raw = turn_records(query=SECRET, answer="ok", scope=SCOPE, turn_id="t-1")
    posing = [record(record_id=each.record_id) for each in raw]
    posing.append(record(record_id="t-7:user:episodic"))
    answer = await extracted(Answering(*posing, record(record_id="t-1:user:fact")))
    assert [each.record_id for each in answer.records] == ["t-1:user:fact"]
    assert answer.refused == 5


async def test_a_fact_cannot_pose_as_a_message() -> None:
    """Where a record comes from is said by afterturn, not by the extractor."""
    (raw,) = turn_records(query=None, answer="ok", scope=SCOPE, turn_id="t-1")[:1]
    (kept,) = (await extracted(Answering(raw.model_copy(update={"record_id": "f"})))).records
    assert kept.origin == "extracted"
    assert kept.metadata == {"speaker": "assistant"}


async def test_recorded_at_is_the_stores_to_set() -> None:
    """An extractor cannot date a record's storing, only its event."""
    (kept,) = (await extracted(Answering(record(recorded_at=SAID_AT, occurred_at=SAID_AT)))).records
    assert (kept.recorded_at, kept.occurred_at) == (None, SAID_AT)


async def test_several_turns_are_all_sources_where_none_is_named() -> None:
    """What rests on a request rests on all of its turns."""
    answer = await extracted(Answering(record()), request(turn("a"), turn("b", turn_id="t-2")))
    assert [source.turn_id for source in answer.records[0].sources] == ["t-1", "t-2"]


async def test_named_sources_are_kept_when_they_were_given() -> None:
    """A fact may name the one turn it is from, and a known fact's sources that it builds on."""
    older = Source(turn_id="t-0", turn_path="v1/acme/nora/c-0")
    known = record(record_id="known", sources=(older,))
    asked = request(turn("a"), turn("b", turn_id="t-2"), related=(known,))
    answer = await extracted(Answering(record(sources=(older, OWN, OWN))), asked)
    assert answer.records[0].sources == (older, OWN)


async def test_made_up_sources_do_not_hide_a_fact_from_an_erase() -> None:
    """A fact always rests on a turn of its request, or erasing that turn would leave it."""
    foreign = Source(turn_id="t-9", turn_path="v1/acme/mia")
    older = Source(turn_id="t-0", turn_path=SCOPE.path)
    known = record(record_id="known", sources=(older,))
    asked = request(turn("a"), related=(known,))
    first, second = (
        await extracted(
            Answering(
                record(sources=(foreign,)), record(record_id="fact-2", sources=(foreign, older))
            ),
            asked,
        )
    ).records
    assert first.sources == (OWN,)
    assert second.sources == (older, OWN)


async def test_a_result_built_past_validation_is_judged_all_the_same() -> None:
    """`model_construct` checks nothing, so each record is checked again."""
    good = record()
    rest = dict(good)
    bad: list[Any] = [
        None,
        "a fact",
        {"text": "a fact"},
        MemoryRecord.__new__(MemoryRecord),
        MemoryRecord.model_construct(**{**rest, "record_id": "spaces are text"}),
        MemoryRecord.model_construct(**{**rest, "record_id": "b", "importance": 7.0}),
        MemoryRecord.model_construct(**{**rest, "record_id": ["c"]}),
        MemoryRecord.model_construct(**{**rest, "record_id": "d", "text": None}),
        MemoryRecord.model_construct(**{**rest, "record_id": "e", "metadata": {"k": object()}}),
    ]
    torn = MemoryRecord.model_construct(**{**rest, "record_id": "f", "text": "half \ud83d\x00"})

    async def give() -> ExtractionResult:
        return ExtractionResult.model_construct(
            records=(*bad, good, torn), degraded=False, reason=""
        )

    answer = await extracted(Doing(give))
    assert [each.record_id for each in answer.records] == ["fact-1", "f"]
    assert answer.records[1].text == "half \ufffd\ufffd"
    assert answer.refused == len(bad)
