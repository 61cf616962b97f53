"""Retrieval from a real database: what is seen, what is not, and what is said about it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from afterturn.database import Database, connect
from afterturn.errors import ErasePending, MemoryUnavailable, NotMigrated
from afterturn.ports import CandidateScan, MemoryRetrievalPort
from afterturn.queries import MemoryQuery
from afterturn.records import MemoryLayer
from afterturn.retrieval import reader, service, streaming
from afterturn.scope import MemoryScope
from afterturn.settings import Settings

from .conftest import Library, WordVectors, ask, ids

ACME = MemoryScope.of("acme")
ALICE = MemoryScope.of("acme", "alice")


OLD = datetime(2020, 1, 1, tzinfo=UTC)
NEW = datetime(2024, 1, 1, tzinfo=UTC)
# As many as a test can wait for; `bench/retrieve.py` puts a million there.
FOREIGN = """
insert into afterturn.memories (path, record_id, pending, turn_path, layer, origin, text, metadata,
    importance, recorded_at, content, revision)
select 'v1/acme/alicea' || n % 200 || '/', 'r' || n, false, 'v1/acme/alicea/', 'semantic', 'test',
    'tea', '{}', 0.5, now(), n, n
from generate_series(1, 60000) n
"""


async def test_it_is_both_ports(library: Library) -> None:
    """One object retrieves and scans."""
    retrieval = library.retrieval()
    assert isinstance(retrieval, MemoryRetrievalPort)
    assert isinstance(retrieval, CandidateScan)
    assert retrieval.SCAN_BUDGET == 1_000


async def test_an_empty_scope_is_whole_and_empty(library: Library) -> None:
    """Nothing remembered is an answer, not an error and not a degradation."""
    retrieval = library.retrieval(WordVectors())
    for text in (
        "tea", "", "Where does she live?", "Who is he?", "When was that?", "How many?",
        "What did I say yesterday?",
    ):  # fmt: skip
        result = await retrieval.retrieve(ask(ALICE, text))
        assert (result.memories, result.dropped, result.degraded) == ((), (), ()), text


async def test_what_is_pending_is_not_seen_until_a_flush(library: Library) -> None:
    """Readers keep the flushed text while its replacement waits."""
    retrieval = library.retrieval()
    await library.write(ALICE, {"a": "oolong tea"})
    assert ids(await retrieval.retrieve(ask(ALICE))) == set()
    await library.memory.flush(ALICE)
    await library.write(ALICE, {"a": "black tea"})
    (found,) = (await retrieval.retrieve(ask(ALICE))).memories
    assert found.record.text == "oolong tea"
    await library.memory.flush(ALICE)
    (found,) = (await retrieval.retrieve(ask(ALICE))).memories
    assert found.record.text == "black tea"


async def test_a_record_comes_back_as_it_was_written(library: Library) -> None:
    """All fields are there, and an answer is the caller's own: changing it changes nothing."""
    retrieval = library.retrieval()
    await library.keep(
        ALICE,
        {"a": "oolong tea"},
        layer=MemoryLayer.EPISODIC,
        importance=0.75,
        metadata={"speaker": "user", "turn_id": "t1", "session": "s1", "tags": ["x"]},
        occurred_at="2024-05-01T12:00:00+02:00",
        sources=[{"turn_id": "t1", "turn_path": ALICE.path}],
    )
    (found,) = (await retrieval.retrieve(ask(ALICE))).memories
    record = found.record
    listed = await library.memory.list(ALICE)
    assert (record,) == listed
    assert record.sources[0].turn_path == ALICE.path
    record.metadata["tags"].append("y")
    (again,) = (await retrieval.retrieve(ask(ALICE))).memories
    assert again.record.metadata["tags"] == ["x"]


async def test_readers_see_their_ancestors_and_nobody_else(library: Library) -> None:
    """Own and covering scopes are visible; siblings and descendants are not."""
    chat, bob = ALICE.child("chat"), MemoryScope.of("acme", "bob")
    for scope in (ACME, ALICE, chat, bob, MemoryScope.of("other")):
        await library.keep(scope, {f"of-{scope.segments[-1]}": "tea"})
    retrieval = library.retrieval()
    assert ids(await retrieval.retrieve(ask(chat))) == {"of-acme", "of-alice", "of-chat"}
    assert ids(await retrieval.retrieve(ask(ALICE))) == {"of-acme", "of-alice"}
    assert ids(await retrieval.retrieve(ask(ACME))) == {"of-acme"}


async def test_scopes_that_look_alike_are_apart(library: Library) -> None:
    """No wildcard, prefix or encoding lets one user into another's memory."""
    names = ["u1", "u10", "u_1", "uX1", "u%", "u", "u1/x", "u1 ", "U1"]
    for number, name in enumerate(names):
        await library.keep(MemoryScope.of("acme", name), {f"r{number}": "tea"})
    retrieval = library.retrieval()
    for number, name in enumerate(names):
        scope = MemoryScope.of("acme", name)
        assert ids(await retrieval.retrieve(ask(scope))) == {f"r{number}"}
        assert ids(await retrieval.scan_candidates(ask(scope))) == {f"r{number}"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "\x00",
        "te\x00a",
        "\ud800 tea",
        "'; drop table memories; --",
        "%_\\",
        "tea " * 25_000,
    ],
    ids=["empty", "blank", "nul", "nul inside", "surrogate", "sql", "wildcards", "100 KB"],
)
async def test_any_question_is_answered(embedding_library: Library, text: str) -> None:
    """Strange, empty and huge questions rank what there is."""
    await embedding_library.keep(ALICE, {"a": "oolong tea", "b": "a train"})
    await embedding_library.memory.drain(ALICE, in_process=True)
    result = await embedding_library.retrieval(WordVectors()).retrieve(ask(ALICE, text))
    assert ids(result) == {"a", "b"}
    assert result.degraded == ()


@pytest.mark.parametrize("limit", [0, -3])
async def test_a_limit_of_nothing(library: Library, limit: int) -> None:
    """Nothing comes back, and `dropped` says that there was something."""
    await library.keep(ALICE, {"a": "tea"})
    result = await library.retrieval().retrieve(ask(ALICE, limit=limit))
    assert result.memories == ()
    assert [(d.record_id, d.reason) for d in result.dropped] == [("a", "limit")]


async def test_layers_limit_what_is_looked_at(library: Library) -> None:
    """Records of other layers are no candidates."""
    await library.keep(ALICE, {"a": "tea one"})
    await library.keep(ALICE, {"b": "tea two"}, layer=MemoryLayer.PROCEDURAL)
    retrieval = library.retrieval()
    only = await retrieval.retrieve(ask(ALICE, layers=["procedural"]))
    assert (ids(only), only.dropped) == ({"b"}, ())
    assert ids(await retrieval.retrieve(ask(ALICE, layers=[]))) == set()


async def test_a_turn_is_found_once_and_its_twin_is_dropped(library: Library) -> None:
    """Both layers of a message are candidates, one is returned; a scan shows both."""
    async with library.memory.turn(ALICE, session="s1") as turn:
        await turn.finish("I love oolong tea", "Noted", names=("Alice", "Helper"))
    await library.memory.drain(ALICE, in_process=True)
    query = ask(ALICE, "oolong", layers=["working", "episodic"])
    result = await library.retrieval().retrieve(query)
    assert [m.record.layer for m in result.memories] == ["episodic", "episodic"]
    assert result.memories[0].record.text == "I love oolong tea"
    assert {d.reason for d in result.dropped} == {"duplicate"}
    assert len(result.dropped) == 2
    scanned = await library.retrieval().scan_candidates(query.model_copy(update={"limit": 1}))
    assert len(scanned.memories) == 4
    assert scanned.dropped == ()


class Failing(WordVectors):
    """Raises what providers raise, with the text in the message."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise RuntimeError(f"cannot embed {texts[0]}")


class NotFinite(WordVectors):
    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.full((len(texts), self.dim), np.nan, dtype=np.float32)


class WrongDim(WordVectors):
    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.ones((len(texts), self.dim + 1), dtype=np.float32)


class NoArray(WordVectors):
    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return {"data": None}  # type: ignore[return-value]  # what a broken provider does


@pytest.mark.parametrize("broken", [Failing(), NotFinite(), WrongDim(), NoArray()])
async def test_a_broken_embedder_degrades_and_never_empties(
    embedding_library: Library, broken: WordVectors
) -> None:
    """Retrieval goes on lexically and says so, without the question's text."""
    await embedding_library.keep(ALICE, {"a": "oolong tea", "b": "a train"})
    await embedding_library.memory.drain(ALICE, in_process=True)
    result = await embedding_library.retrieval(broken).retrieve(ask(ALICE, "oolong secret"))
    assert result.memories[0].record.record_id == "a"
    assert ids(result) == {"a", "b"}
    assert len(result.degraded) == 1
    assert result.degraded[0].startswith("vectors: ")
    assert "secret" not in result.degraded[0]


async def test_vectors_join_when_they_are_made(embedding_library: Library) -> None:
    """Records are found lexically at once, degraded until the embed job is done."""
    retrieval = embedding_library.retrieval(WordVectors())
    await embedding_library.keep(ALICE, {"a": "a beverage", "b": "a locomotive", "c": "a cat"})
    before = await retrieval.retrieve(ask(ALICE, "tea"))
    assert before.degraded == ("vectors: 3 of 3 records have none of this embedder yet",)
    assert ids(before) == {"a", "b", "c"}
    await embedding_library.memory.drain(ALICE, in_process=True)
    after = await retrieval.retrieve(ask(ALICE, "tea"))
    assert after.degraded == ()
    assert after.memories[0].record.record_id == "a"
    assert after.memories[0].signals["vector"] > 0


async def test_without_an_embedder_nothing_is_missing(embedding_library: Library) -> None:
    """`none` is a mode, not a degradation, also where vectors are stored."""
    await embedding_library.keep(ALICE, {"a": "a beverage"})
    await embedding_library.memory.drain(ALICE, in_process=True)
    result = await embedding_library.retrieval(None).retrieve(ask(ALICE, "beverage"))
    assert (ids(result), result.degraded) == ({"a"}, ())


async def test_vectors_of_another_model_are_never_compared(embedding_library: Library) -> None:
    """They count as missing until `reembed` has replaced them."""
    await embedding_library.keep(ALICE, {"a": "a beverage"})
    await embedding_library.memory.drain(ALICE, in_process=True)

    class Other(WordVectors):
        model_id = "test-words-2"

    result = await embedding_library.retrieval(Other()).retrieve(ask(ALICE, "tea"))
    assert ids(result) == {"a"}
    assert result.degraded == ("vectors: 1 of 1 records have none of this embedder yet",)


async def test_a_stored_vector_of_another_length_counts_as_missing(
    embedding_library: Library,
) -> None:
    """Damaged bytes cost one vector, not the answer."""
    await embedding_library.keep(ALICE, {"a": "a beverage", "b": "a train"})
    await embedding_library.memory.drain(ALICE, in_process=True)
    damage = "update afterturn.memories set embedding = 'xyz' where record_id = 'a'"
    await embedding_library.value(damage)
    result = await embedding_library.retrieval(WordVectors()).retrieve(ask(ALICE, "tea"))
    assert ids(result) == {"a", "b"}
    assert result.degraded == ("vectors: 1 of 2 records have none of this embedder yet",)


async def test_sources_are_those_of_the_published_record(library: Library) -> None:
    """A replacement that waits for its flush brings its sources with it, not before."""
    first, second = ([{"turn_id": t, "turn_path": ALICE.path}] for t in ("t1", "t2"))
    await library.keep(ALICE, {"a": "tea"}, sources=first)
    await library.write(ALICE, {"a": "green tea"}, sources=second)
    (found,) = (await library.retrieval().retrieve(ask(ALICE))).memories
    assert [source.turn_id for source in found.record.sources] == ["t1"]
    await library.memory.flush(ALICE)
    (found,) = (await library.retrieval().retrieve(ask(ALICE))).memories
    assert [source.turn_id for source in found.record.sources] == ["t2"]


async def test_a_large_scope_is_ranked_off_the_loop_within_the_budget(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best come first, `dropped` covers what was looked at, gates reach beyond the budget."""
    count = 5_500
    monkeypatch.setattr(service, "INLINE_ROWS_MAX", count)
    await library.keep(ALICE, {f"r{i}": f"tea number{i}" for i in range(count)}, importance=0.2)
    await library.keep(ALICE, {"late": "nothing in common"}, importance=0.9)
    retrieval = library.retrieval()
    result = await retrieval.retrieve(ask(ALICE, "number4711 tea", limit=3))
    assert result.memories[0].record.record_id == "r4711"
    assert len(result.memories) + len(result.dropped) == service.first_page(3)
    account = await retrieval.retrieve(ask(ALICE, "tea", limit=0))
    assert len(account.dropped) == service.SCAN_BUDGET
    everything = await retrieval.retrieve(ask(ALICE, "tea", limit=count + 10))
    assert len(everything.memories) == count + 1
    important = await retrieval.retrieve(ask(ALICE, "tea", limit=3, min_importance=0.5))
    assert ids(important) == {"late"}
    assert len(important.dropped) <= service.SCAN_BUDGET
    scanned = await retrieval.scan_candidates(ask(ALICE, "tea", limit=1))
    assert len(scanned.memories) == service.SCAN_BUDGET


class Interrupting(WordVectors):
    """While a question is embedded, something happens to what was held before."""

    def __init__(self, *happening: Callable[[], None]) -> None:
        self.happening = list(happening)
        self.asked = 0

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += 1
        if self.happening:
            self.happening.pop(0)()
        return super().embed(texts)


async def test_what_changed_meanwhile_is_not_what_was_foreseen(
    embedding_library: Library,
) -> None:
    """A guess from what is held is not served where the database says otherwise."""
    library = embedding_library
    await library.keep(ALICE, {"a": "oolong tea", "b": "a train"})
    await library.memory.drain(ALICE, in_process=True)
    embedder = Interrupting()
    retrieval = library.retrieval(embedder)
    assert ids(await retrieval.retrieve(ask(ALICE))) == {"a", "b"}
    await library.keep(ALICE, {"c": "green tea"})
    await library.memory.forget_records(ALICE, record_ids=["a"])
    await library.memory.drain(ALICE, in_process=True)
    embedder.asked = 0
    result = await retrieval.retrieve(ask(ALICE))
    assert ids(result) == {"b", "c"}
    assert {drop.record_id for drop in result.dropped} <= {"b", "c"}
    assert embedder.asked == 1


async def test_an_erase_that_stands_is_told_although_records_are_held(library: Library) -> None:
    """The guess is thrown away, and so is what it was made from."""
    await library.keep(ALICE, {"a": "tea"})
    retrieval = library.retrieval()
    assert ids(await retrieval.retrieve(ask(ALICE))) == {"a"}
    await library.memory.enqueue_forget(ALICE)
    with pytest.raises(ErasePending):
        await retrieval.retrieve(ask(ALICE))
    assert "tea" not in repr(retrieval.cache.entries())


async def test_a_question_that_is_cancelled_leaves_no_connection_behind(
    embedding_library: Library,
) -> None:
    """The statement that was under way is ended, and the pool serves the next."""
    library = embedding_library
    await library.keep(ALICE, {"a": "oolong tea"})
    await library.memory.drain(ALICE, in_process=True)
    loop = asyncio.get_running_loop()

    async def cancelled() -> None:
        embedding, go_on = asyncio.Event(), threading.Event()

        def wait() -> None:
            loop.call_soon_threadsafe(embedding.set)
            go_on.wait()

        embedder.happening.append(wait)
        asked = asyncio.create_task(retrieval.retrieve(ask(ALICE)))
        await embedding.wait()
        asked.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asked

    embedder = Interrupting()
    retrieval = library.retrieval(embedder)
    await retrieval.retrieve(ask(ALICE))
    for _ in range(5):  # more than the pool has connections
        await cancelled()
    blocking = await connect(str(library.settings.database_url), library.settings)
    async with blocking.transaction():
        await blocking.execute("lock table afterturn.erase_intents in access exclusive mode")
        for _ in range(5):  # now none of the statements has been answered
            await cancelled()
    await blocking.close()
    assert ids(await retrieval.retrieve(ask(ALICE))) == {"a"}


async def test_many_readers_of_a_cold_scope_agree(library: Library) -> None:
    """Concurrent first readers all get the whole answer."""
    await library.keep(ALICE, {f"r{i}": f"tea {i}" for i in range(300)})
    await library.keep(ACME, {"above": "tea"})
    retrieval = library.retrieval()
    scopes = [ALICE, ALICE.child("chat-1"), ALICE.child("chat-2"), ACME] * 8
    results = await asyncio.gather(*(retrieval.retrieve(ask(scope)) for scope in scopes))
    for scope, result in zip(scopes, results, strict=True):
        assert len(result.memories) == (1 if scope == ACME else 301)


async def test_an_unreachable_database_is_an_error(settings: Settings) -> None:
    """Out of reach is never an empty answer."""
    database = Database("postgresql://u@127.0.0.1:1/none", settings, pool_size=2)
    retrieval = service.PostgresRetrieval(database, settings, None)
    with pytest.raises(MemoryUnavailable):
        await retrieval.retrieve(ask(ALICE))
    await database.close()


async def test_a_database_without_tables_is_named_as_such(
    library: Library,
) -> None:
    """The hint is the command that helps."""
    await library.value("drop schema afterturn cascade")
    with pytest.raises(NotMigrated) as caught:
        await library.retrieval().retrieve(ask(ALICE))
    assert "afterturn migrate" in str(caught.value)


@pytest.mark.parametrize(
    "cue",
    [
        "",
        "?!",
        "\x00 \ud800 tea",
        "tea " * 100_000,
        "ชา",
        "чай 茶 tea",
        "who am I?",
        "31 June 2024, 2024-99-99, 99999999 days ago",
    ],
)
async def test_any_cue_gets_the_records(embedding_library: Library, cue: str) -> None:
    """Whatever is asked, what is remembered is ranked; nothing fails, nothing is hidden."""
    library = embedding_library
    await library.keep(ALICE, {"a": "oolong tea", "b": "茶", "c": "чай"})
    result = await library.retrieval(WordVectors()).retrieve(ask(ALICE, cue))
    assert ids(result) == {"a", "b", "c"}


def test_an_unknown_layer_is_named() -> None:
    """By the query itself, before anything is read."""
    with pytest.raises(ValidationError, match="layers"):
        MemoryQuery.model_validate({"scope": ALICE, "text": "tea", "layers": ["dreams"]})


@pytest.mark.parametrize("weight", [-1.0, float("nan"), 101.0])
def test_a_weight_that_means_nothing_is_refused(weight: float) -> None:
    """Neither a negative one nor NaN reaches the ranking."""
    with pytest.raises(ValidationError):
        MemoryQuery(scope=ALICE, text="tea", recency_weight=weight)


async def test_recency_and_importance_are_options_of_a_query(library: Library) -> None:
    """By themselves neither counts; asked for, each decides among equals."""
    await library.keep(ALICE, {"vital": "oolong tea"}, importance=1.0, occurred_at=OLD)
    await library.keep(ALICE, {"fresh": "green oolong tea"}, importance=0.1, occurred_at=NEW)
    retrieval = library.retrieval()
    for option, first in (("importance_weight", "vital"), ("recency_weight", "fresh")):
        query = MemoryQuery.model_validate(
            {"scope": ALICE, "text": "oolong", "now": NEW, option: 5.0}
        )
        (best, other) = (await retrieval.retrieve(query)).memories
        assert best.record.record_id == first
        name = option.removesuffix("_weight")
        assert best.signals[name] > other.signals[name]


async def test_rows_of_other_scopes_cost_nothing(library: Library) -> None:
    """A million rows of others change neither what is read nor how: the index finds ours."""
    await library.keep(ALICE, {"a": "tea", "b": "train"})
    await library.value(FOREIGN)
    await library.value("analyze afterturn.memories")
    path = f"{ALICE.path}/"
    for sql, arguments in (
        (reader._ROWS, (path, 0)),
        (reader._SOURCES, (path, 0)),
        (reader._COUNT, (path,)),
        (reader._SIZE, (path,)),
        (reader._NAMED, (path, ["a"])),
        (streaming._ROWS, (path, None, True)),
        (streaming._EMBEDDINGS, (path, None)),
    ):
        plan = await library.value(f"explain (analyze, buffers, format json) {sql}", *arguments)
        node = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
        assert node["Shared Hit Blocks"] + node["Shared Read Blocks"] < 60, sql
        assert "Seq Scan" not in json.dumps(node), sql
