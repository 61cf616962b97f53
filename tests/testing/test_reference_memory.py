"""`ReferenceMemory` in the place of `Memory`, as a user's unit tests have it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from afterturn.blocking import BlockingMemory
from afterturn.errors import (
    ConfigurationError,
    ErasePending,
    MemoryContractError,
    MemoryUnavailable,
    ScopeViolation,
    StaleTurn,
)
from afterturn.extraction.rules import RuleExtractor
from afterturn.memory import Memory
from afterturn.queries import Dropped, MemoryQuery, RetrievalResult
from afterturn.records import MemoryLayer, MemoryRecord, Source
from afterturn.retrieved import RetrievedMemory
from afterturn.scope import MemoryScope
from afterturn.testing import ReferenceMemory, SettableClock
from afterturn.turns import ExtractionRequest, ExtractionResult
from afterturn.writes import WriteRequest

ALICE = MemoryScope.of("acme", "alice")
BOB = MemoryScope.of("acme", "bob")


@pytest.fixture
async def memory() -> AsyncIterator[ReferenceMemory]:
    async with ReferenceMemory(extractor=RuleExtractor()) as opened:
        yield opened


async def _said(memory: Memory, scope: MemoryScope, query: str, answer: str = "I see.") -> str:
    async with memory.turn(scope) as turn:
        await turn.finish(query, answer)
    return turn.turn_id


async def _texts(memory: Memory, scope: MemoryScope) -> list[str]:
    return [each.text async for each in memory.export(scope) if isinstance(each, MemoryRecord)]


async def test_the_way_of_a_turn(memory: ReferenceMemory) -> None:
    """Begun, finished, drained, retrieved, listed, forgotten: as with servers."""
    async with memory.turn(ALICE, session="s-1") as turn:
        assert (await turn.retrieve("what?")).memories == ()
        ticket = await turn.finish("I am a vegetarian.", "Noted.", names=("Alice", "Bot"))
    assert (ticket.status, ticket.known) == ("staged", False)
    assert (await memory.status()).outstanding == 1
    outcome = await ticket.wait()
    assert (outcome.status, outcome.recorded) == ("done", 4)
    assert outcome.extracted >= 1
    found = await memory.retrieve(MemoryQuery(scope=ALICE, text="vegetarian", limit=20))
    assert {memory.record.layer for memory in found.memories} >= {MemoryLayer.SEMANTIC}
    (said,) = await memory.transcript(ALICE, session="s-1")
    assert (said.query, said.answer, said.names) == (
        "I am a vegetarian.",
        "Noted.",
        ("Alice", "Bot"),
    )
    receipt = await memory.forget(ALICE, requested_by="alice")
    assert sum(receipt.counts.values()) >= 6
    assert [each async for each in memory.export(ALICE)] == []
    assert await memory.transcript(ALICE) == ()


async def test_nothing_happens_in_the_background(memory: ReferenceMemory) -> None:
    """What is handed over waits until somebody asks; a flush records and does not extract."""
    await _said(memory, ALICE, "I am a vegetarian.")
    assert await memory.list(ALICE) == ()
    await memory.flush(ALICE)
    assert {r.layer for r in await memory.list(ALICE)} == {
        MemoryLayer.WORKING,
        MemoryLayer.EPISODIC,
    }
    await memory.drain(ALICE, in_process=True)
    assert MemoryLayer.SEMANTIC in {r.layer for r in await memory.list(ALICE)}
    assert (await memory.status()).outstanding == 0


async def test_the_clock_is_the_tests(memory: ReferenceMemory) -> None:
    """Times come from it alone; it goes back only when it is set."""
    memory.clock.set(datetime(2024, 3, 31, 1, 30, tzinfo=UTC))
    await memory.remember(ALICE, "A fact.", record_id="first")
    memory.clock.advance(3600)
    await memory.remember(ALICE, "A fact later.", record_id="second")
    first, second = await memory.list(ALICE)
    assert first.recorded_at == datetime(2024, 3, 31, 1, 30, tzinfo=UTC)
    assert second.recorded_at == datetime(2024, 3, 31, 2, 30, tzinfo=UTC)
    with pytest.raises(MemoryContractError):
        memory.clock.advance(-1)
    with pytest.raises(MemoryContractError, match="time zone"):
        SettableClock(datetime(2024, 1, 1))  # noqa: DTZ001 - naive on purpose


async def test_an_outage_can_be_played(memory: ReferenceMemory) -> None:
    """Every call fails as it would; a degrading turn goes on and says so."""
    turn = await memory.begin_turn(ALICE)
    memory.reachable = False
    for call in (
        memory.begin_turn(ALICE),
        memory.retrieve(MemoryQuery(scope=ALICE, text="x")),
        memory.list(ALICE),
        memory.flush(ALICE),
        memory.remember(ALICE, "x"),
        memory.status(),
        turn.finish("a", "b"),
    ):
        with pytest.raises(MemoryUnavailable):
            await call
    async with memory.turn(ALICE, on_unavailable="degrade") as degraded:
        assert (await degraded.retrieve("x")).degraded == ("memory unavailable",)
        ticket = await degraded.finish("a", "b")
    assert ticket.status == "unavailable"
    assert (await ticket.wait()).status == "unavailable"
    memory.reachable = True
    assert (await turn.finish("a", "b")).status == "staged"


async def test_a_turn_from_before_an_erase_is_stale(memory: ReferenceMemory) -> None:
    """Refused at the hand-over; the erased text is not back, and the scope works again at once."""
    turn = await memory.begin_turn(ALICE)
    await memory.forget(ALICE)
    with pytest.raises(StaleTurn):
        await turn.finish("My secret is tea.", "Noted.")
    await _said(memory, ALICE, "A new beginning.")
    await memory.drain(ALICE, in_process=True)
    assert not any("tea" in text for text in await _texts(memory, ALICE))
    assert any("beginning" in text for text in await _texts(memory, ALICE))


async def test_an_erase_in_the_middle_of_an_extraction_wins() -> None:
    """The fact that the model was still thinking about is not written back."""
    asked, may_answer = asyncio.Event(), asyncio.Event()

    class Slow:
        async def extract(self, request: ExtractionRequest) -> ExtractionResult:
            asked.set()
            await may_answer.wait()
            return await RuleExtractor().extract(request)

    async with ReferenceMemory(extractor=Slow()) as memory:
        turn_id = await _said(memory, ALICE, "I am a vegetarian.")
        draining = asyncio.create_task(memory.drain(ALICE, in_process=True))
        await asked.wait()
        await memory.forget(ALICE)
        may_answer.set()
        await draining
        assert await _texts(memory, ALICE) == []
        assert turn_id


async def test_a_standing_erase_refuses_and_an_enqueued_one_stands(memory: ReferenceMemory) -> None:
    """From the request on nothing is begun, read or written; the receipt ends it."""
    await memory.remember(ALICE, "A fact.")
    ticket = await memory.enqueue_forget(ALICE.root)
    for call in (
        memory.begin_turn(ALICE),
        memory.list(ALICE),
        memory.remember(ALICE, "x"),
        memory.retrieve(MemoryQuery(scope=ALICE, text="x")),
    ):
        with pytest.raises(ErasePending):
            await call
    assert (await memory.status()).standing_intents == 1
    assert await memory.job(ticket.job_id) is None
    assert (await ticket.wait()).outcome == "done"
    assert await memory.list(ALICE) == ()


async def test_an_erase_to_come_runs_when_the_clock_gets_there(memory: ReferenceMemory) -> None:
    """At the first drain after it is due; a cancelled one never; a past one is refused."""
    await memory.remember(ALICE, "A fact.")
    await memory.remember(BOB, "A fact.")
    noon = memory.clock.now()
    with pytest.raises(MemoryContractError, match="past"):
        await memory.schedule_forget(ALICE, at=noon)
    soon = noon + timedelta(hours=1)
    first = await memory.schedule_forget(ALICE, at=soon, requested_by="alice")
    second = await memory.schedule_forget(BOB, at=soon)
    assert (await memory.cancel_scheduled(second.schedule_id)).state == "cancelled"
    await memory.drain(ALICE, in_process=True)
    assert len(await memory.list(ALICE)) == (await memory.status()).scheduled == 1
    memory.clock.advance(3600)
    await memory.drain(ALICE, in_process=True)
    assert (len(await memory.list(ALICE)), len(await memory.list(BOB))) == (0, 1)
    for schedule_id, reason in ((first.schedule_id, "become a job"), (0, "no such schedule")):
        with pytest.raises(MemoryContractError, match=reason):
            await memory.cancel_scheduled(schedule_id)


async def test_flush_before_forget_is_superseded(memory: ReferenceMemory) -> None:
    """A flush whose scope is about to go publishes nothing."""
    await memory.write(WriteRequest(scope=ALICE, records=(_record(ALICE, "r"),)))
    flush = await memory.enqueue_flush(ALICE)
    forget = await memory.enqueue_forget(ALICE)
    assert (await flush.wait()).outcome == "superseded"
    assert (await forget.wait()).counts == {"pending": 1}


async def test_derived_facts_lose_their_sources_and_go_with_the_last(
    memory: ReferenceMemory,
) -> None:
    """A fact of two conversations stands on the other one; after the second erase it is gone."""
    chats = [ALICE.child("chat-1"), ALICE.child("chat-2")]
    sources = tuple(Source(turn_id="t", turn_path=chat.path) for chat in chats)
    fact = _record(ALICE, "fact", sources=sources)
    await memory.write(WriteRequest(scope=ALICE, records=(fact,)))
    await memory.flush(ALICE)
    turn = await memory.begin_turn(ALICE)
    await memory.forget(chats[0])
    assert [r.sources for r in await memory.list(ALICE)] == [sources[1:]]
    with pytest.raises(StaleTurn):
        await turn.finish("it had read the fact", None)
    kept = await memory.forget(chats[1], derived="keep")
    assert kept.derived_outside == 1
    assert len(await memory.list(ALICE)) == 1


async def test_what_was_acknowledged_elsewhere_is_not_lost(memory: ReferenceMemory) -> None:
    """A turn staged in a scope that an erase only touches is recorded afterwards."""
    chat = ALICE.child("chat-1")
    fact = _record(ALICE, "fact", sources=(Source(turn_id="t", turn_path=chat.path),))
    await memory.write(WriteRequest(scope=ALICE, records=(fact,)))
    await memory.flush(ALICE)
    async with memory.turn(ALICE) as turn:
        ticket = await turn.finish("I am a vegetarian.", "Noted.")
    await memory.forget(chat)
    assert (await ticket.wait()).status == "done"
    assert "fact" not in {r.record_id for r in await memory.list(ALICE)}


async def test_naming_a_record_takes_the_message(memory: ReferenceMemory) -> None:
    """Both layers of the side and that side of the transcript; the other side stays."""
    turn_id = await _said(memory, ALICE, "My secret is tea.", "I keep secrets.")
    await memory.flush(ALICE)
    await memory.forget_records(ALICE, record_ids=[f"{turn_id}:user:episodic"])
    assert {r.metadata["speaker"] for r in await memory.list(ALICE)} == {"assistant"}
    (said,) = await memory.transcript(ALICE)
    assert (said.query, said.answer) == (None, "I keep secrets.")


async def test_naming_a_message_takes_what_was_learned_from_its_turn(
    memory: ReferenceMemory,
) -> None:
    """Nobody knows from which side it was; the one that is left is read again."""
    turn_id = await _said(memory, ALICE, "My secret is tea.", "I keep secrets.")
    fact = _record(ALICE, "fact", sources=(Source(turn_id=turn_id, turn_path=ALICE.path),))
    await memory.write(WriteRequest(scope=ALICE, records=(fact,), token=()))
    await memory.drain(ALICE, in_process=True)
    await memory.flush(ALICE)
    await memory.forget_records(ALICE, record_ids=[f"{turn_id}:user:working"])
    assert "fact" not in {r.record_id for r in await memory.list(ALICE)}
    assert (await memory.status()).jobs["extract"].waiting == 1


async def test_naming_a_session_takes_its_turns_alone(memory: ReferenceMemory) -> None:
    """The other session of the scope stays, and a turn under way is stale."""
    for session in ("one", "two"):
        async with memory.turn(ALICE, session=session) as turn:
            await turn.finish(f"said in {session}", None)
    await memory.drain(ALICE, in_process=True)
    under_way = await memory.begin_turn(ALICE)
    await memory.forget_records(ALICE, session="one")
    assert [each.session for each in await memory.transcript(ALICE)] == ["two"]
    assert {r.metadata["session"] for r in await memory.list(ALICE)} == {"two"}
    with pytest.raises(StaleTurn):
        await under_way.finish("x", None)


async def test_an_extractor_that_degrades_is_tried_again_and_given_up() -> None:
    """The raw records stay, and the outcome says why."""

    class Degrading:
        calls = 0

        async def extract(self, request: ExtractionRequest) -> ExtractionResult:
            Degrading.calls += 1
            return ExtractionResult(degraded=True, reason="no model")

    async with ReferenceMemory(extractor=Degrading()) as memory:
        async with memory.turn(ALICE) as turn:
            ticket = await turn.finish("I am a vegetarian.", "Noted.")
        outcome = await ticket.wait()
        assert (outcome.status, outcome.reason, outcome.recorded) == ("degraded", "no model", 4)
        assert Degrading.calls == 5


async def test_bad_input_is_refused_as_with_servers(memory: ReferenceMemory) -> None:
    """The facade is the same one."""
    assert isinstance(memory, Memory)
    with pytest.raises(MemoryContractError, match="MemoryScope"):
        await memory.begin_turn("acme/alice")  # type: ignore[arg-type]
    with pytest.raises(MemoryContractError, match="no such layer"):
        await memory.remember(ALICE, "x", layer="long-term")
    with pytest.raises(MemoryContractError, match="no such lifecycle job"):
        await memory.job(12345)
    with pytest.raises(ConfigurationError, match="not open"):
        await ReferenceMemory().status()


async def test_the_environment_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit test needs no settings and is not disturbed by any."""
    monkeypatch.setenv("AFTERTURN_EXTRACTOR", "no.such:extractor")
    monkeypatch.setenv("AFTERTURN_TEXT_BYTES_MAX", "many")
    async with ReferenceMemory() as memory:
        await memory.remember(ALICE, "A fact.")
        await memory.drain(ALICE, in_process=True)


async def test_a_plugged_in_source_goes_through_the_gates() -> None:
    """Its candidates are judged and capped here; one that may not be seen is an error."""

    class Plugged:
        def __init__(self, *records: MemoryRecord) -> None:
            self.records = records

        async def scan_candidates(self, query: MemoryQuery) -> RetrievalResult:
            return RetrievalResult(
                memories=tuple(RetrievedMemory(record=r, score=1.0) for r in self.records),
                dropped=(Dropped(record_id="x", reason="no provenance"),),
            )

        async def retrieve(self, query: MemoryQuery) -> RetrievalResult:
            raise AssertionError("the facade scans")

    good = [_record(ALICE, f"r-{at}", importance=at / 10) for at in range(5)]
    async with ReferenceMemory(source=Plugged(*good)) as memory:
        query = MemoryQuery(scope=ALICE, text="x", limit=2, min_importance=0.2)
        found = await memory.retrieve(query)
        assert [each.record.record_id for each in found.memories] == ["r-2", "r-3"]
        assert [each.record_id for each in found.dropped] == ["x", "r-0", "r-1", "r-4"]
        assert (await memory.forget(ALICE)).not_covered == ("Plugged",)
    async with ReferenceMemory(source=Plugged(*good, _record(BOB, "foreign"))) as memory:
        with pytest.raises(ScopeViolation, match="foreign"):
            await memory.retrieve(query)


def test_it_works_without_await_too() -> None:
    """`BlockingMemory.over` takes it for unit tests of synchronous code."""
    with BlockingMemory.over(ReferenceMemory) as memory:
        memory.remember(ALICE, "Alice eats no meat.")
        with memory.turn(ALICE) as turn:
            assert turn.retrieve("what does she eat?").memories


def _record(scope: MemoryScope, record_id: str, **fields: object) -> MemoryRecord:
    return MemoryRecord.model_validate(
        {
            "record_id": record_id,
            "text": f"{record_id} is here",
            "scope_path": scope.path,
            "layer": "semantic",
            "origin": "test",
            **fields,
        }
    )
