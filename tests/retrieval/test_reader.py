"""Entries are exactly what the database holds, and nothing is served under an erase."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from afterturn.database import Connection, Database
from afterturn.errors import ErasePending, ScopeViolation
from afterturn.queries import RetrievalResult
from afterturn.retrieval import reader as reading
from afterturn.retrieval.cache import RetrievalCache
from afterturn.retrieval.entries import Entry
from afterturn.retrieval.reader import Reader
from afterturn.scope import MemoryScope

from .conftest import Library, WordVectors, ask, ids

ACME = MemoryScope.of("acme")
ALICE = MemoryScope.of("acme", "alice")
PATHS = ("v1/acme/", "v1/acme/alice/")


@pytest.fixture
def reader(library: Library) -> Reader:
    return Reader(library.database, RetrievalCache(64 << 20), model_id="", dim=0)


def held_ids(entries: Sequence[Entry]) -> set[str]:
    return {row.record_id for entry in entries for row in entry.rows()}


async def test_an_unchanged_scope_is_served_from_the_cache(
    library: Library, reader: Reader
) -> None:
    """The second reading gives the very same entries, and a change below or beside is no change."""
    await library.keep(ACME, {"a": "tea"})
    await library.keep(ALICE, {"b": "tea"})
    first = await reader.entries(PATHS)
    await library.keep(ALICE.child("chat"), {"c": "tea"})
    await library.keep(MemoryScope.of("acme", "bob"), {"d": "tea"})
    second = await reader.entries(PATHS)
    assert [a is b for a, b in zip(first, second, strict=True)] == [True, True]
    assert held_ids(second) == {"a", "b"}


async def test_what_is_known_of_scopes_beyond_the_cache_is_bounded(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are room for, the last ones; an erase takes its scope's name with it."""
    monkeypatch.setattr(reading, "REFUSED_MAX", 3)
    reader = Reader(library.database, RetrievalCache(1_000), model_id="", dim=0)
    users = [ACME.child(name) for name in ("a", "b", "c")]
    for user in users:
        await library.keep(user, {"r": "tea"})
        await reader.entries([ACME.stored_path, user.stored_path])
    assert set(reader._refused) == {each.stored_path for each in (ACME, *users[1:])}
    erase = await library.memory.enqueue_forget(users[2])
    with pytest.raises(ErasePending):
        await reader.entries([ACME.stored_path, users[2].stored_path])
    assert set(reader._refused) == {ACME.stored_path, users[1].stored_path}
    await erase.wait()


async def test_only_the_path_that_changed_is_read(library: Library, reader: Reader) -> None:
    """A flush of the user's scope leaves the tenant's entry as it is, and the other way round."""
    await library.keep(ACME, {"a": "tea"})
    await library.keep(ALICE, {"b": "tea"})
    above, own = await reader.entries(PATHS)
    await library.keep(ALICE, {"c": "tea"})
    same, changed = await reader.entries(PATHS)
    assert same is above
    assert changed is not own
    assert held_ids([changed]) == {"b", "c"}


async def test_a_small_change_keeps_what_was_built(library: Library, reader: Reader) -> None:
    """Few new and replaced records become a small segment beside the large one."""
    await library.keep(ALICE, {f"r{i}": f"tea {i}" for i in range(1_500)})
    _, before = await reader.entries(PATHS)
    await library.keep(ALICE, {"r3": "coffee", "r4": "coffee", "new": "coffee"})
    _, after = await reader.entries(PATHS)
    assert after.parts[0].segment is before.parts[0].segment
    assert len(after.parts[1].segment) == 3
    assert after.count == 1_501


async def test_rows_that_vanish_without_a_number_are_noticed_with_the_next_change(
    library: Library, reader: Reader
) -> None:
    """A restored backup or a hand in the tables does not stay in a cache for ever."""
    await library.keep(ALICE, {f"r{i}": "tea" for i in range(5)})
    await reader.entries(PATHS)
    await library.value("delete from afterturn.memories where record_id = 'r2'")
    await library.keep(ALICE, {"new": "tea"})
    assert held_ids(await reader.entries(PATHS)) == {"r0", "r1", "r3", "r4", "new"}


SHIFT = """
update afterturn.scope_generations
set erase = erase + $2, content = content + $3, removed = removed + $4
where scope_key = afterturn.scope_key($1)
"""


@pytest.mark.parametrize(
    ("path", "shift", "kept"),
    [
        ("v1/acme/", (7, -7, 0), [False, False]),
        ("v1/acme/", (0, 7, 0), [False, True]),
        ("v1/acme/", (7, 0, 0), [False, False]),
        ("v1/acme/alice/", (7, -7, 0), [True, False]),
        ("v1/acme/alice/", (0, 0, 7), [True, False]),
        ("v1/acme/alice/", (0, 0, 0), [True, True]),
    ],
)
async def test_every_number_is_compared_by_itself(
    library: Library, reader: Reader, path: str, shift: tuple[int, int, int], kept: list[bool]
) -> None:
    """Numbers that moved against each other are other numbers; an erase above touches all below."""
    await library.keep(ACME, {"a": "tea"})
    await library.keep(ALICE, {"b": "tea"})
    first = await reader.entries(PATHS)
    await library.value(SHIFT, path, *shift)
    second = await reader.entries(PATHS)
    assert [a is b for a, b in zip(first, second, strict=True)] == kept
    assert held_ids(second) == {"a", "b"}


async def test_an_older_history_is_read_anew(library: Library, reader: Reader) -> None:
    """After a restore the same ids may hold other texts under smaller numbers."""
    await library.keep(ALICE, {"a": "green tea"})
    assert texts_of(await reader.entries(PATHS)) == {"green tea"}
    await library.value("update afterturn.memories set text = 'tea', content = content - 1000")
    await library.value(SHIFT, PATHS[1], 0, -1000, 0)
    assert texts_of(await reader.entries(PATHS)) == {"tea"}


async def test_a_standing_erase_refuses_readers_below_it(library: Library) -> None:
    """From the request on nothing under the scope is read, warm cache or cold; others go on."""
    bob = MemoryScope.of("acme", "bob")
    chat = ALICE.child("chat")
    for scope in (ACME, ALICE, chat, bob):
        await library.keep(scope, {f"of-{scope.segments[-1]}": "tea"})
    warm = library.retrieval()
    for scope in (ACME, ALICE, chat, bob):
        await warm.retrieve(ask(scope))
    ticket = await library.memory.enqueue_forget(ALICE)
    for retrieval in (warm, library.retrieval()):
        for scope in (ALICE, chat):
            with pytest.raises(ErasePending):
                await retrieval.retrieve(ask(scope))
            with pytest.raises(ErasePending):
                await retrieval.scan_candidates(ask(scope))
        assert ids(await retrieval.retrieve(ask(ACME))) == {"of-acme"}
        assert ids(await retrieval.retrieve(ask(bob))) == {"of-acme", "of-bob"}
    await ticket.wait(timeout=30)
    for retrieval in (warm, library.retrieval()):
        assert ids(await retrieval.retrieve(ask(ALICE))) == {"of-acme"}
        assert ids(await retrieval.retrieve(ask(chat))) == {"of-acme"}


async def test_after_an_erase_the_same_ids_are_new_records(library: Library) -> None:
    """Nothing of the former text is left in a warm cache."""
    retrieval = library.retrieval()
    await library.keep(ALICE, {"a": "the secret tea", "b": "tea"})
    await retrieval.retrieve(ask(ALICE))
    await library.memory.forget(ALICE)
    await library.keep(ALICE, {"a": "green tea"})
    (found,) = (await retrieval.retrieve(ask(ALICE))).memories
    assert found.record.text == "green tea"


async def test_forgotten_records_leave_a_warm_cache(library: Library) -> None:
    """`forget_records` removes what it names and leaves the rest."""
    retrieval = library.retrieval()
    await library.keep(ALICE, {"a": "tea", "b": "green tea"})
    await retrieval.retrieve(ask(ALICE))
    await library.memory.forget_records(ALICE, record_ids=["a"])
    assert ids(await retrieval.retrieve(ask(ALICE))) == {"b"}


async def test_what_was_learned_elsewhere_leaves_a_warm_cache(library: Library) -> None:
    """With derived="erase" a fact promoted to the scope above is gone for readers there, too."""
    chat = ALICE.child("chat")
    retrieval = library.retrieval()
    source = {"turn_id": "t1", "turn_path": chat.path}
    async with library.memory.turn(chat, turn_id="t1") as turn:
        await turn.finish("I like tea", "Noted")
    await library.memory.drain(chat, in_process=True)
    await library.keep(ALICE, {"fact": "Likes tea"}, sources=[source])
    await library.keep(ALICE, {"other": "Has a cat"})
    assert ids(await retrieval.retrieve(ask(ALICE))) >= {"fact", "other"}
    await library.memory.forget(chat, derived="erase")
    assert ids(await retrieval.retrieve(ask(ALICE))) == {"other"}


async def test_readers_during_erases_never_see_the_erased(library: Library) -> None:
    """A reading that begins after an erase was requested is refused or free of the old text."""
    retrieval = library.retrieval()
    round_now = 0
    done = asyncio.Event()
    served = refused = 0

    async def read() -> None:
        nonlocal served, refused
        while not done.is_set():
            began = round_now
            try:
                result = await retrieval.retrieve(ask(ALICE))
            except ErasePending:
                refused += 1
                await asyncio.sleep(0)
                continue
            served += 1
            for memory in result.memories:
                assert int(memory.record.metadata["round"]) >= began

    readers = [asyncio.create_task(read()) for _ in range(3)]
    for number in range(12):
        texts = {f"r{i}": f"tea {i}" for i in range(5)}
        await library.keep(ALICE, texts, metadata={"round": number})
        ticket = await library.memory.enqueue_forget(ALICE)
        round_now = number + 1
        await ticket.wait(timeout=30)
    done.set()
    await asyncio.gather(*readers)
    assert served
    assert refused


# -- step by step: what may happen between the look and the reading


class Stepped(Database):
    """Runs a step once, right before the n-th connection is taken or the n-th fetch is sent."""

    def __init__(self, library: Library) -> None:
        super().__init__(library.settings.database_url or "", library.settings, pool_size=4)
        self.step: Callable[[], Awaitable[object]] | None = None
        self.before = ("connection", 2)
        self.stepped = False

    async def passing(self, what: str) -> None:
        name, left = self.before
        if self.step is None or name != what:
            return
        self.before = (name, left - 1)
        if left == 1:
            step, self.step, self.stepped = self.step, None, True
            await step()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        await self.passing("connection")
        async with super().connection() as connection:
            yield cast("Connection", SteppedConnection(connection, self))


class SteppedConnection:
    """A connection that lets the database's step run before a fetch."""

    def __init__(self, connection: Connection, stepped: Stepped) -> None:
        self._connection = connection
        self._stepped = stepped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetch(self, *args: Any) -> Any:
        await self._stepped.passing("fetch")
        return await self._connection.fetch(*args)


@pytest.fixture
async def stepped(library: Library) -> AsyncIterator[tuple[Stepped, Reader]]:
    database = Stepped(library)
    yield database, Reader(database, RetrievalCache(64 << 20), model_id="", dim=0)
    await database.close()


async def test_an_erase_requested_after_the_look_refuses_the_reading(
    library: Library, stepped: tuple[Stepped, Reader]
) -> None:
    """The reading looks at intents again, in the snapshot that it reads from."""
    database, reader = stepped
    await library.keep(ALICE, {"a": "tea"})
    database.step = lambda: library.memory.enqueue_forget(ALICE)
    with pytest.raises(ErasePending):
        await reader.entries(PATHS)
    assert database.stepped


async def test_an_erase_completed_after_the_look_leaves_nothing_to_read(
    library: Library, stepped: tuple[Stepped, Reader]
) -> None:
    """Neither what was cached before nor what the look had seen."""
    database, reader = stepped
    await library.keep(ALICE, {"a": "tea"})
    await reader.entries(PATHS)
    await library.keep(ALICE, {"b": "tea"})
    database.step, database.before = lambda: library.memory.forget(ALICE), ("connection", 2)
    assert held_ids(await reader.entries(PATHS)) == set()
    assert database.stepped


async def test_the_numbers_of_an_entry_are_those_of_its_snapshot(
    library: Library, stepped: tuple[Stepped, Reader]
) -> None:
    """A flush between the look and the reading is read and labelled; nothing is read twice."""
    database, reader = stepped
    await library.keep(ALICE, {"a": "tea"})
    database.step = lambda: library.keep(ALICE, {"b": "tea"})
    first = await reader.entries(PATHS)
    assert held_ids(first) == {"a", "b"}
    second = await reader.entries(PATHS)
    assert [a is b for a, b in zip(first, second, strict=True)] == [True, True]


@pytest.mark.parametrize("fetch", [1, 2, 3])
async def test_one_snapshot_serves_all_paths(
    library: Library, stepped: tuple[Stepped, Reader], fetch: int
) -> None:
    """A flush amid the reading shows in none of the paths, and in all of them the next time."""
    database, reader = stepped

    async def flush() -> None:
        await library.keep(ACME, {"a": "new"})
        await library.keep(ALICE, {"b": "new"})

    await library.keep(ACME, {"a": "old"})
    await library.keep(ALICE, {"b": "old"})
    database.step, database.before = flush, ("fetch", fetch)
    assert texts_of(await reader.entries(PATHS)) == {"old"}
    assert database.stepped
    assert texts_of(await reader.entries(PATHS)) == {"new"}


class Misled(SteppedConnection):
    """A connection that answers with rows of another scope."""

    async def fetch(self, *args: Any) -> Any:
        rows = await self._connection.fetch(*args)
        return [{**row, "path": "v1/acme/bob/"} for row in rows]


async def test_rows_of_another_path_are_never_taken(library: Library) -> None:
    """What the database returns is checked before it is cached or served."""

    class MisledDatabase(Stepped):
        @asynccontextmanager
        async def connection(self) -> AsyncIterator[Connection]:
            async with Database.connection(self) as connection:
                yield cast("Connection", Misled(connection, self))

    await library.keep(ALICE, {"a": "the secret tea"})
    database = MisledDatabase(library)
    reader = Reader(database, RetrievalCache(64 << 20), model_id="", dim=0)
    for _ in range(2):
        with pytest.raises(ScopeViolation) as caught:
            await reader.entries(PATHS)
        assert "secret" not in str(caught.value)
    await database.close()


def texts_of(entries: Sequence[Entry]) -> set[str]:
    return {row.text for entry in entries for row in entry.rows()}


# -- cold, warm and starved caches agree on any history

step = st.one_of(
    st.tuples(
        st.just("write"),
        st.integers(0, 2),
        st.dictionaries(
            st.sampled_from([f"r{i}" for i in range(5)]),
            st.sampled_from(["tea", "a cat and tea", "train", "beverage beverage"]),
            min_size=1,
        ),
    ),
    st.tuples(st.just("flush"), st.integers(0, 2), st.none()),
    st.tuples(st.just("forget"), st.integers(0, 2), st.none()),
    st.tuples(st.just("forget_record"), st.integers(0, 2), st.sampled_from(["r0", "r1", "r2"])),
    st.tuples(st.just("embed"), st.integers(0, 2), st.none()),
    st.tuples(st.just("read"), st.integers(0, 2), st.none()),
)


class Model:
    """What readers must see: published texts by scope level and record id."""

    def __init__(self) -> None:
        self.pending: dict[tuple[int, str], str] = {}
        self.published: dict[tuple[int, str], str] = {}

    def apply(self, action: str, level: int, what: Any) -> None:
        if action == "write":
            self.pending |= {(level, record_id): text for record_id, text in what.items()}
        elif action == "flush":
            self.published |= {k: t for k, t in self.pending.items() if k[0] >= level}
            self.pending = {k: t for k, t in self.pending.items() if k[0] < level}
        elif action == "forget":
            self.pending = {k: t for k, t in self.pending.items() if k[0] < level}
            self.published = {k: t for k, t in self.published.items() if k[0] < level}
        elif action == "forget_record":
            self.pending.pop((level, what), None)
            self.published.pop((level, what), None)

    def visible(self, level: int) -> dict[tuple[int, str], str]:
        return {k: t for k, t in self.published.items() if k[0] <= level}


def seen(result: RetrievalResult) -> dict[tuple[int, str], str]:
    return {
        (m.record.scope_path.count("/") - 1, m.record.record_id): m.record.text
        for m in result.memories
    }


@hypothesis_settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(step, min_size=3, max_size=12))
async def test_cold_warm_and_starved_caches_agree(
    embedding_library: Library, steps: list[tuple[str, int, Any]]
) -> None:
    """After any history every reader sees the published records, with the same scores."""
    library = embedding_library
    scopes = [MemoryScope.of(f"t{uuid.uuid4().hex}")]
    scopes += [scopes[0].child("a"), scopes[0].child("a").child("b")]
    warm = library.retrieval(WordVectors())
    starved = library.retrieval(WordVectors(), RetrievalCache(2_500))
    model = Model()
    for action, level, what in [*steps, ("read", 2, None)]:
        model.apply(action, level, what)
        scope = scopes[level]
        if action == "write":
            await library.write(scope, what)
        elif action == "flush":
            await library.memory.flush(scope)
        elif action == "forget":
            await library.memory.forget(scope)
        elif action == "forget_record":
            await library.memory.forget_records(scope, record_ids=[what])
        elif action == "embed":
            await library.memory.drain(scope, in_process=True)
        else:
            query = ask(scope)
            cold = await library.retrieval(WordVectors()).scan_candidates(query)
            assert seen(cold) == model.visible(level)
            for retrieval in (warm, starved):
                assert_same(await retrieval.scan_candidates(query), cold)


def assert_same(found: RetrievalResult, cold: RetrievalResult) -> None:
    """The same records, scores and complaints."""
    assert seen(found) == seen(cold)
    assert found.degraded == cold.degraded
    scores = {(m.record.scope_path, m.record.record_id): m.score for m in cold.memories}
    for memory in found.memories:
        key = (memory.record.scope_path, memory.record.record_id)
        assert memory.score == pytest.approx(scores[key], abs=1e-4)
