"""How the library says no: each row of what is refused, cleaned or answered, where a user meets it.

Every test runs on PostgreSQL and on the reference in memory, which must answer alike.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pydantic import ValidationError

from afterturn.database import Database
from afterturn.errors import (
    AfterturnError,
    ConfigurationError,
    MemoryContractError,
    NotMigrated,
)
from afterturn.generations import vector_of
from afterturn.jobs.rings import RingPublisher
from afterturn.memory import Memory
from afterturn.pipeline.runner import Runner
from afterturn.queries import MemoryQuery
from afterturn.records import MemoryLayer, MemoryRecord, turn_records
from afterturn.scope import MemoryScope, covering_paths, scope_from_path
from afterturn.settings import Settings
from afterturn.testing import ReferenceMemory
from afterturn.turns import ExtractionRequest, ExtractionResult
from afterturn.writes import WriteRequest
from tests.conftest import database_named
from tests.testing.shared import execute, shared_database

SECRET = "alice-takes-insulin"
ALICE = MemoryScope.of("acme", "alice")


class Saying:
    """An extractor that says what the test wants, as a model might."""

    texts: tuple[str, ...] = ()

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        return ExtractionResult(
            records=tuple(
                MemoryRecord(
                    record_id=f"fact-{at}",
                    text=text,
                    scope_path=request.scope.path,
                    layer=MemoryLayer.SEMANTIC,
                    origin="model",
                )
                for at, text in enumerate(self.texts)
            )
        )


# What a test leaves behind, on the database that all of them share.
EMPTY = """
truncate afterturn.turns, afterturn.memories, afterturn.memory_sources, afterturn.jobs,
    afterturn.erase_intents, afterturn.scope_generations cascade
"""


@pytest.fixture(scope="module")
def shared(home: Path, server_url: str, template_url: str, broker_url: str) -> Iterator[Settings]:
    with shared_database(home, server_url, broker_url) as settings:
        yield settings


@pytest.fixture(params=["postgresql", "reference"])
async def memory(request: pytest.FixtureRequest, shared: Settings) -> AsyncIterator[Memory]:
    """An open and empty memory without workers."""
    if request.param == "reference":
        async with ReferenceMemory(extractor=Saying()) as reference:
            yield reference
        return
    async with Memory(shared, extractor=Saying()) as opened:
        yield opened
    assert shared.database_url is not None
    await execute(shared.database_url, EMPTY)


async def _held(memory: Memory) -> list[Any]:
    return [item async for item in memory.export(MemoryScope.of("acme"))]


# -- scopes


@pytest.mark.parametrize(
    ("segments", "says"),
    [
        ((), "at least one segment"),
        (("",), "segment 1"),
        (("acme", ""), "segment 2"),
        (tuple("abcdefghi"), "9 segments, at most 8"),
        (("acme", "a\x00b"), r"segment 2, 'a\\x00b': U\+0000"),
        (("acme", "a\nb"), r"U\+000A"),
        (("acme", "\x7f"), r"U\+007F"),
        (("acme", "\ud83d"), r"U\+D83D"),
        (("acme", "x" * 201), "201 characters, at most 200"),
        (("港" * 200, "港" * 200), "bytes, at most 2000"),
        (("acme", 7), "segment 2 is int"),
        (("acme", None), "segment 2 is NoneType"),
    ],
)
def test_a_scope_that_cannot_be_is_refused_with_the_segment_and_the_rule(
    segments: tuple[Any, ...], says: str
) -> None:
    """Empty, too deep, control characters, surrogates, too long, no text at all."""
    with pytest.raises(MemoryContractError, match=says):
        MemoryScope.of(*segments)


@pytest.mark.parametrize(
    "path",
    ["", "acme", "v1/", "v1/acme/", "v2/acme", "v1//acme", "v1/a%2fb", "v1/%61cme", "v1/a b"],
)
def test_a_path_that_is_not_canonical_is_refused(path: str) -> None:
    """There is one way to write each."""
    with pytest.raises(MemoryContractError):
        scope_from_path(path)


async def test_what_is_no_scope_is_refused_everywhere(memory: Memory) -> None:
    """A path, a tuple and None are told what to pass instead; nothing is done."""
    for wrong in ("v1/acme/alice", ("acme", "alice"), None):
        scope: Any = wrong
        for call in (
            memory.begin_turn(scope),
            memory.list(scope),
            memory.transcript(scope),
            memory.remember(scope, "x"),
            memory.flush(scope),
            memory.forget(scope),
            memory.forget_records(scope, record_ids=["r"]),
            memory.enqueue_flush(scope),
            memory.enqueue_forget(scope),
            memory.schedule_forget(scope, at=datetime(2100, 1, 1, tzinfo=UTC)),
            memory.drain(scope),
            anext(memory.export(scope)),
        ):
            with pytest.raises(MemoryContractError, match=r"MemoryScope\.of"):
                await call
    with pytest.raises(MemoryContractError, match="MemoryQuery"):
        await memory.retrieve("what?")  # type: ignore[arg-type]
    assert (await memory.status()).outstanding == 0


@pytest.mark.parametrize(
    "segment", ["u1", "u10", "u_1", "uX1", "u%", "a/b", "..", ".", " ", "港", "🌍", "x" * 200]
)
async def test_odd_names_are_scopes_like_any_other(memory: Memory, segment: str) -> None:
    """Each sees, flushes and erases its own subtree alone."""
    root = MemoryScope.of("acme")
    scope = root.child(segment)
    others = [root.child(other) for other in ("u1", "u10", "u_1", "uX1", "u%") if other != segment]
    for each in (scope, *others):
        await memory.remember(each, f"fact of {each}", record_id="r")
    found = await memory.retrieve(MemoryQuery(scope=scope, text="fact"))
    assert [each.record.scope_path for each in found.memories] == [scope.path]
    await memory.forget(scope)
    assert await memory.list(scope) == ()
    for each in others:
        assert len(await memory.list(each)) == 1


# -- text


async def test_what_cannot_be_stored_is_replaced(memory: Memory) -> None:
    """NUL and lone surrogates become U+FFFD: in a turn, a fact, a name, metadata, a question."""
    broken, mended = "half \ud83d and \x00 nul", "half \ufffd and \ufffd nul"
    async with memory.turn(ALICE, turn_id="t") as turn:
        await turn.retrieve(broken)
        await turn.finish(broken, broken, names=("A\x00", "B\ud83d"), metadata={"k": [broken]})
    await memory.remember(ALICE, broken, record_id="fact")
    await memory.drain(ALICE, in_process=True)
    (said,) = await memory.transcript(ALICE)
    assert (said.query, said.answer) == (mended, mended)
    assert (said.names, said.metadata["k"]) == (("A\ufffd", "B\ufffd"), [mended])
    assert {record.text for record in await memory.list(ALICE)} == {mended}


async def test_a_models_broken_characters_are_replaced(memory: Memory) -> None:
    """A lone surrogate in one fact of three: three facts are stored, and nothing is repeated."""
    Saying.texts = ("first", "second \ud83d", "third \x00")
    try:
        async with memory.turn(ALICE) as turn:
            ticket = await turn.finish("half an emoji \ud83d", None)
        await memory.drain(ALICE, in_process=True)
        outcome = await ticket.wait()
    finally:
        Saying.texts = ()
    assert (outcome.status, outcome.extracted) == ("done", 3)
    facts = await memory.list(ALICE, layers=[MemoryLayer.SEMANTIC])
    assert {fact.text for fact in facts} == {"first", "second \ufffd", "third \ufffd"}


@pytest.mark.parametrize("side", ["query", "answer"])
async def test_a_side_over_the_limit_is_refused_with_both_sizes(memory: Memory, side: str) -> None:
    """Never cut; counted in bytes; one byte less is fine, however large the other side."""
    limit = 1 << 20
    sides: dict[str, Any] = {"query": "x", "answer": "x", side: "é" * (limit // 2) + "y"}
    async with memory.turn(ALICE) as turn:
        with pytest.raises(MemoryContractError, match=rf"{side} .*{limit + 1} bytes.*{limit}"):
            await turn.finish(**sides)
        ticket = await turn.finish(**{**sides, side: "é" * (limit // 2)})
    assert ticket.status == "staged"


async def test_a_record_over_the_limit_is_that_records_outcome(memory: Memory) -> None:
    """The others of the request are written."""
    records = tuple(
        MemoryRecord(
            record_id=name,
            text=text,
            scope_path=ALICE.path,
            layer=MemoryLayer.SEMANTIC,
            origin="test",
        )
        for name, text in (("small", "x"), ("large", "x" * ((1 << 20) + 1)))
    )
    receipt = await memory.write(WriteRequest(scope=ALICE, records=records))
    assert [outcome.status for outcome in receipt.outcomes] == ["pending", "refused"]
    assert "1048577 bytes, at most 1048576" in receipt.outcomes[1].reason
    with pytest.raises(MemoryContractError, match="1048577 bytes"):
        await memory.remember(ALICE, records[1].text)


@pytest.mark.parametrize("sides", [(None, None), ("", ""), (" \n", "\t"), ("\u2003", None)])
async def test_a_blank_turn_is_a_ticket_that_says_so(
    memory: Memory, sides: tuple[Any, Any]
) -> None:
    """Nothing is recorded and nothing is wrong."""
    async with memory.turn(ALICE) as turn:
        ticket = await turn.finish(*sides)
    assert (ticket.status, ticket.reason) == ("blank", "nothing to record")
    assert (await ticket.wait()).status == "blank"
    assert await _held(memory) == []


@pytest.mark.parametrize("text", [7, b"bytes", ["x"]])
async def test_what_is_no_text_is_refused_by_its_type(memory: Memory, text: Any) -> None:
    """As a side, as a question, as a fact; the value is not shown."""
    async with memory.turn(ALICE) as turn:
        for call in (turn.finish(text, None), turn.retrieve(text), memory.remember(ALICE, text)):
            with pytest.raises(MemoryContractError):
                await call
    with pytest.raises(MemoryContractError):
        await memory.remember(ALICE, "  ")


# -- metadata


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"when": datetime(2024, 1, 1, tzinfo=UTC)}, "key 'when' holds datetime"),
        ({"who": object()}, "key 'who' holds object"),
        ({"n": float("nan")}, "key 'n' holds the float nan"),
        ({"n": [float("inf")]}, "key 'n'"),
        ({"b": b"x"}, "key 'b' holds bytes"),
        ({"s": {"a"}}, "key 's' holds set"),
        ({7: "x"}, "key 7"),
        ({"a\x00": "x"}, r"key 'a\\x00'"),
        ({"a\ud83d": "x"}, r"key 'a\\ud83d'"),
        ({"deep": {"a\x00": 1}}, "below key 'deep'"),
        ({"large": "x" * (64 << 10), "small": 1}, "the largest is 'large'"),
        ([1], "got list"),
    ],
)
async def test_metadata_that_is_not_json_is_refused_naming_the_key(
    memory: Memory, metadata: Any, says: str
) -> None:
    """Or is too large; never showing the value. The turn can still be finished."""
    async with memory.turn(ALICE) as turn:
        with pytest.raises(MemoryContractError, match=says):
            await turn.finish("a", "b", metadata=metadata)
        assert (await turn.finish("a", "b")).status == "staged"


# -- ids


WRONG_IDS: list[Any] = ["", " ", "a b", "a/b", "ü", "港", "a\n", "a\x00", f"{SECRET}!", 7, None]


@pytest.mark.parametrize("wrong", WRONG_IDS[:-1])
async def test_ids_that_could_be_text_are_refused(memory: Memory, wrong: Any) -> None:
    """They travel in messages and stay in the ledger; the value is not shown."""
    for call in (
        memory.begin_turn(ALICE, turn_id=wrong),
        memory.begin_turn(ALICE, session=wrong),
        memory.remember(ALICE, "x", record_id=wrong),
        memory.forget_records(ALICE, record_ids=[wrong]),
        memory.forget_records(ALICE, turn_ids=[wrong]),
        memory.forget_records(ALICE, session=wrong),
    ):
        with pytest.raises(MemoryContractError) as raised:
            await call
        assert SECRET not in str(raised.value)
    assert await _held(memory) == []


@pytest.mark.parametrize(("name", "longest"), [("turn_id", 160), ("session", 200)])
async def test_ids_have_a_longest(memory: Memory, name: str, longest: int) -> None:
    """The longest is taken, with every character that is allowed; one more is refused."""
    allowed = "aZ09-_:."
    fits: dict[str, Any] = {name: (allowed * longest)[:longest]}
    async with memory.turn(ALICE, **fits) as turn:
        assert (await turn.finish("a", None)).status == "staged"
    fits[name] = "x" * (longest + 1)
    with pytest.raises(MemoryContractError, match=f"{longest + 1} characters.*1 to {longest}"):
        await memory.begin_turn(ALICE, **fits)


async def test_a_forget_of_nothing_named_is_refused(memory: Memory) -> None:
    """It would be a guess what was meant."""
    with pytest.raises(MemoryContractError, match="Nothing was named"):
        await memory.forget_records(ALICE)


@pytest.mark.parametrize("wrong", ["t1", b"t1", 7])
async def test_a_single_id_in_place_of_several_is_refused(memory: Memory, wrong: Any) -> None:
    """A text would name its letters: a receipt would say done, and nothing had been erased."""
    async with memory.turn(ALICE, turn_id="t1") as turn:
        await turn.finish("a", "b")
    await memory.flush(ALICE)
    for named in ({"turn_ids": wrong}, {"record_ids": wrong}):
        with pytest.raises(MemoryContractError, match=r"must be a list"):
            await memory.forget_records(ALICE, **named)
    assert (await memory.begin_turn(ALICE)).token == ()
    assert len(await memory.transcript(ALICE)) == 1
    for several in (["t1"], ("t1",), {"t1"}):
        await memory.forget_records(ALICE, turn_ids=several)  # type: ignore[arg-type] # a set
    assert await memory.transcript(ALICE) == ()


# -- times


async def test_a_naive_time_is_refused_asking_for_a_zone(memory: Memory) -> None:
    """Wherever a time goes in; an aware one of any zone is kept as the same moment."""
    naive = datetime(2024, 3, 31, 2, 30)  # noqa: DTZ001 - on purpose
    async with memory.turn(ALICE) as turn:
        for call in (
            turn.finish("a", "b", occurred_at=naive),
            turn.retrieve("a", now=naive),
            memory.schedule_forget(ALICE, at=naive),
        ):
            with pytest.raises(MemoryContractError, match="time zone"):
                await call
        aware = naive.replace(tzinfo=timezone(timedelta(hours=-7)))
        await turn.finish("a", "b", occurred_at=aware)
    await memory.flush(ALICE)
    assert {record.occurred_at for record in await memory.list(ALICE)} == {aware}


# -- everything else that is put wrongly


@pytest.mark.parametrize(
    ("bounds", "name"),
    [
        ({"limit": "many"}, "limit"),
        ({"limit": 1.5}, "limit"),
        ({"layers": ["long-term"]}, r"layers\.0"),
        ({"min_importance": "high"}, "min_importance"),
        ({"max_chars": "x"}, "max_chars"),
    ],
)
async def test_a_question_that_cannot_be_asked_is_refused_by_the_name_of_the_bound(
    memory: Memory, bounds: dict[str, Any], name: str
) -> None:
    """Also where memory would degrade: a mistake of the program is no outage."""
    async with memory.turn(ALICE, on_unavailable="degrade") as turn:
        with pytest.raises(MemoryContractError, match=name):
            await turn.retrieve(SECRET, **bounds)


async def test_choices_are_refused_with_what_there_is(memory: Memory) -> None:
    """Layers, derived, on_unavailable, names, limits, notes, places in a list, numbers of jobs."""
    turn = await memory.begin_turn(ALICE)
    wrong: Any = "whatever"
    pair: Any = "AB"
    number: Any = 7
    for call, says in (
        (memory.remember(ALICE, "x", layer=wrong), "working, episodic, semantic"),
        (memory.remember(ALICE, "x", importance=1.5), "importance"),
        (memory.list(ALICE, layers=[wrong]), "working, episodic, semantic"),
        (memory.list(ALICE, limit=0), "at least 1"),
        (memory.transcript(ALICE, limit=-1), "at least 1"),
        (memory.begin_turn(ALICE, on_unavailable=wrong), "'raise' or 'degrade'"),
        (memory.forget(ALICE, derived=wrong), "'keep' or 'erase'"),
        (memory.forget(ALICE, reason="x" * 501), "501 characters, at most 500"),
        (turn.finish("a", "b", names=wrong), "two texts"),
        (memory.forget(ALICE, requested_by=number), "requested_by must be text"),
        (turn.finish("a", "b", names=("", "B")), "two texts"),
        (turn.finish("a", "b", names=pair), "two texts"),
        (memory.list(ALICE, after="a\x00"), "valid record_id"),
        (memory.list(ALICE, after=number), "valid record_id"),
        (memory.list(ALICE, limit=10**5_000), "at least 1"),
        (memory.list(ALICE, limit=wrong), "at least 1"),
        (memory.transcript(ALICE, limit=2**63), "at least 1"),
        (memory.transcript(ALICE, session="a\x00"), "valid session"),
        (memory.transcript(ALICE, session=number), "valid session"),
        (memory.job(wrong), "whole number"),
        (memory.job(2**63), "whole number"),
        (memory.cancel_scheduled(wrong), "whole number"),
        (memory.cancel_scheduled(2**63), "whole number"),
        (memory.job(10**9), "no such lifecycle job"),
        (memory.cancel_scheduled(10**9), "no such schedule"),
    ):
        with pytest.raises(MemoryContractError, match=says):
            await call


async def test_an_abandoned_turn_leaves_nothing_and_stays_abandoned(memory: Memory) -> None:
    """By its own call or by the end of its block; a finished one cannot be abandoned."""
    async with memory.turn(ALICE) as left:
        pass
    abandoned = await memory.begin_turn(ALICE)
    await abandoned.abandon()
    for turn in (left, abandoned):
        with pytest.raises(MemoryContractError, match="abandoned"):
            await turn.finish("a", "b")
    assert await _held(memory) == []
    async with memory.turn(ALICE, turn_id="t") as finished:
        await finished.finish("a", "b")
    with pytest.raises(MemoryContractError, match="forget_records"):
        await finished.abandon()
    assert (await finished.finish("a", "b")).known


async def test_a_turn_that_is_known_says_so_and_keeps_its_text(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    """The same id in the same scope is the same turn; in another scope it is another. The log has
    its id and no word of either text."""
    tickets = []
    for scope, text in ((ALICE, "first"), (ALICE, "second"), (ALICE.root, "third")):
        async with memory.turn(scope, turn_id="t") as turn:
            tickets.append(await turn.finish(text, None))
    assert [ticket.known for ticket in tickets] == [False, True, False]
    said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert said == ["turn t was handed over before; what it said then stands"]
    await memory.flush(ALICE.root)
    assert [turn.query for turn in await memory.transcript(ALICE)] == ["first"]
    assert [turn.query for turn in await memory.transcript(ALICE.root)] == ["third"]


def test_models_refuse_without_showing() -> None:
    """A record or query built by hand says which field is wrong, never what stood in it."""
    for build in (
        lambda: MemoryQuery(scope=ALICE, text="x", limt=3),  # type: ignore[call-arg]
        lambda: MemoryQuery(scope=ALICE, text=[SECRET]),
        lambda: MemoryRecord.model_validate({"record_id": "r", "text": SECRET}),
    ):
        with pytest.raises(ValidationError) as raised:
            build()
        assert SECRET not in str(raised.value) + repr(raised.value)


# -- parts and servers


def test_parts_that_do_not_fit_are_refused_when_they_are_put_together(settings: Settings) -> None:
    """Naming the type, the defect and the remedy, before anything is opened."""

    class NoScan:
        async def retrieve(self, query: MemoryQuery) -> Any: ...

    class Synchronous:
        def extract(self, request: ExtractionRequest) -> Any: ...

    wrong: Any
    for wrong, says in ((object(), "object has none"), (NoScan(), "NoScan has none")):
        with pytest.raises(ConfigurationError, match=says):
            Memory(settings, source=wrong)
    for wrong, says in ((object(), "no method"), (Synchronous(), "synchronous")):
        with pytest.raises(ConfigurationError, match=says):
            Memory(settings, extractor=wrong)


async def test_an_extractor_setting_matters_only_where_it_is_used(settings: Settings) -> None:
    """A process that hands turns over needs none; draining in process says what is wrong."""
    wrong = settings.model_copy(update={"extractor": "no.such.module:factory"})
    async with Memory(wrong) as memory:
        async with memory.turn(ALICE) as turn:
            await turn.finish("a", "b")
        with pytest.raises(ConfigurationError, match="AFTERTURN_EXTRACTOR"):
            await memory.drain(ALICE, in_process=True)


async def test_a_database_that_does_not_fit_names_the_command(
    settings: Settings, server_url: str
) -> None:
    """One without tables and one that is newer, each before anything is done."""
    empty = settings.model_copy(update={"database_url": database_named(server_url, "postgres")})
    with pytest.raises(NotMigrated, match="afterturn migrate"):
        await Memory(empty).open()
    connection = await asyncpg.connect(settings.database_url)
    await connection.execute("insert into afterturn.migrations values (9001, 'later', now())")
    await connection.close()
    with pytest.raises(ConfigurationError, match="newer than this release"):
        await Memory(settings).open()


async def test_a_ring_for_nothing_does_nothing(database: Database, settings: Settings) -> None:
    """Ids that are unknown or of ended jobs are passed over, of every kind."""
    rings = RingPublisher("redis://127.0.0.1:1/0", settings)
    runner = Runner(database, settings, rings, None, None)
    kinds: Any = ("record", "extract", "embed", "flush", "forget")
    for kind in kinds:
        await runner.run(kind, [1, 10**12])
    rings.close(0)
    assert await database.value("select count(*) from afterturn.memories") == 0


async def test_every_error_is_one_of_ours_and_shows_no_text(memory: Memory) -> None:
    """Whatever is thrown at the facade: an `AfterturnError` that does not repeat it."""
    turn = await memory.begin_turn(ALICE)
    wrong: Any
    for wrong in (SECRET, [SECRET], {SECRET: SECRET}, SECRET.encode(), Exception(SECRET)):
        for call in (
            memory.begin_turn(wrong),
            turn.retrieve([wrong]),  # type: ignore[arg-type]
            turn.finish([wrong], None),  # type: ignore[arg-type]
            turn.finish("a", "b", metadata={"k": object(), "v": wrong}),
            turn.finish("a", "b", names=(wrong, "")),
            turn.finish("a", "b", occurred_at=wrong),
            memory.remember(ALICE, [wrong]),  # type: ignore[arg-type]
            memory.remember(ALICE, "x", importance=wrong),
        ):
            with pytest.raises(AfterturnError) as raised:
                await call
            assert SECRET not in str(raised.value)


WRONG: list[Any] = [
    object(), 5, -1, 1.5, math.nan, SECRET, b"x", [SECRET], {SECRET: 1}, {1, 2}, True,
    (object(), object()), (SECRET,), lambda: 1, datetime(2024, 1, 1, tzinfo=UTC),
]  # fmt: skip


async def test_an_argument_of_any_other_type_is_refused_in_our_words(memory: Memory) -> None:
    """Each argument of each method in turn, by a port as by the facade: it is taken, or refused
    by an `AfterturnError`; never by an error of Python's."""
    turn = await memory.begin_turn(ALICE)
    ticket = await (await memory.begin_turn(ALICE)).finish("a", "b")
    await memory.drain(ALICE, in_process=True)
    flushed = await memory.enqueue_flush(ALICE)
    await memory.flush(ALICE)
    scope, child = {"scope": ALICE}, {"scope": ALICE.child("c")}
    later = {"scope": ALICE.child("d"), "at": datetime(2100, 1, 1, tzinfo=UTC)}
    records = {**child, "record_ids": ["r"]}
    calls: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
        (memory.begin_turn, scope, "scope session turn_id on_unavailable"),
        (memory.retrieve, {}, "query"),
        (memory.list, scope, "scope layers after limit"),
        (memory.transcript, scope, "scope session limit"),
        (memory.write, {}, "request"),
        (memory.remember, {**child, "text": "x"}, "scope text layer importance record_id"),
        (memory.flush, {}, "scope"),
        (memory.forget, child, "scope derived requested_by reason"),
        (memory.forget_records, records, "scope record_ids turn_ids session derived reason"),
        (memory.enqueue_flush, {}, "scope"),
        (memory.enqueue_forget, child, "scope derived requested_by"),
        (memory.schedule_forget, later, "scope at derived requested_by reason"),
        (memory.cancel_scheduled, {}, "schedule_id"),
        (memory.job, {}, "job_id"),
        (memory.drain, child, "scope timeout in_process"),
        (memory.retrieval.retrieve, {}, "query"),
        (memory.writing.write, {}, "request"),
        (memory.lifecycle.flush, {}, "scope"),
        (memory.lifecycle.forget, {}, "scope"),
        (turn.retrieve, {"text": "x"}, "text limit layers min_relevance min_importance now"),
        (turn.finish, {"query": "a", "answer": "b"}, "query answer names metadata occurred_at"),
        (ticket.wait, {}, "timeout"),
        (flushed.wait, {}, "timeout"),
    ]
    for method, good, names in calls:
        for name in names.split():
            for wrong in WRONG:
                with suppress(AfterturnError):
                    await method(**{**good, name: wrong})


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_built_without_a_memory_refuses_the_same_way(wrong: Any) -> None:
    """Scopes, paths, records of a turn, tokens, and a memory itself."""
    plain = {"query": "a", "answer": "b", "scope": ALICE}
    builds: tuple[Callable[[], Any], ...] = (
        lambda: MemoryScope.of(wrong),
        lambda: ALICE.ancestor(wrong),
        lambda: ALICE.child(wrong),
        lambda: ALICE.covers(wrong),
        lambda: scope_from_path(wrong),
        lambda: covering_paths(wrong),
        *(partial(turn_records, **{**plain, name: wrong}) for name in plain),
        lambda: vector_of(ALICE.path, wrong),
        lambda: Memory(wrong),
    )
    for build in builds:
        with suppress(AfterturnError):
            build()
