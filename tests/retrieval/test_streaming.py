"""Scopes beyond the cache limit give the answers of cached ones, in a fraction of the memory."""

from __future__ import annotations

import random
import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest

from afterturn.errors import ErasePending
from afterturn.queries import MemoryQuery, RetrievalResult
from afterturn.records import MemoryLayer
from afterturn.retrieval.cache import RetrievalCache
from afterturn.retrieval.service import PostgresRetrieval
from afterturn.scope import MemoryScope

from .conftest import Library, WordVectors

ACME = MemoryScope.of("acme")
ALICE = ACME.child("alice")
NOW = datetime(2024, 6, 1, tzinfo=UTC)
WORDS = ("tea", "train", "cat", "oolong", "lake", "May", "I", "you?", "Carol", "2024", "locomotive")


def said(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 150 if rng.random() < 0.1 else 9)))


async def fill(library: Library, seed: int, count: int = 60) -> None:
    """Messages of two speakers in sessions, their working twins, and facts above."""
    rng = random.Random(seed)
    for layer in (MemoryLayer.EPISODIC, MemoryLayer.WORKING):
        rng.seed(seed)
        for session in range(4):
            await library.write(
                ALICE,
                {f"{layer}-{session}-{n}": said(rng) for n in range(count // 4)},
                layer=layer,
                metadata={"session": f"s{session}", "speaker_name": rng.choice(["Carol", "Dan"])},
                occurred_at=NOW - timedelta(days=session),
            )
    await library.write(ACME, {f"fact-{n}": said(rng) for n in range(count // 6)})
    await library.memory.flush(ACME)


def seen(result: RetrievalResult) -> list[tuple[str, float]]:
    return [(m.record.record_id, round(m.score, 2)) for m in result.memories]


@pytest.mark.parametrize(("seed", "drained"), [(1, True), (2, True), (3, False)])
async def test_a_streamed_answer_is_the_cached_one(
    embedding_library: Library, seed: int, drained: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Order, scores, what was dropped and why, and what was missing: all the same."""
    library = embedding_library
    await fill(library, seed)
    if drained:
        await library.memory.drain(ACME, in_process=True)
    cached = library.retrieval(WordVectors())
    streamed = library.retrieval(WordVectors(), RetrievalCache(1_000))
    plain, plainly = library.retrieval(), library.retrieval(cache=RetrievalCache(1_000))
    for text in (
        "oolong tea",
        "When did Carol see the lake in May 2024?",
        "you",
        " ",
        "locomotive",
    ):
        for more in (
            {},
            {"limit": 3, "min_importance": 0.9},
            {"layers": (MemoryLayer.EPISODIC,), "limit": 200},
            {"max_chars": 60},
        ):
            query = MemoryQuery.model_validate(
                {"scope": ALICE, "text": text, "now": NOW, "limit": 12, **more}
            )
            for one, other in ((cached, streamed), (plain, plainly)):
                expected, found = await one.retrieve(query), await other.retrieve(query)
                assert seen(found) == seen(expected), (seed, text, more)
                assert found.dropped == expected.dropped
                assert found.degraded == expected.degraded
                assert [m.record for m in found.memories] == [m.record for m in expected.memories]
    scanned = await streamed.scan_candidates(MemoryQuery(scope=ALICE, text="tea", now=NOW))
    whole = await cached.scan_candidates(MemoryQuery(scope=ALICE, text="tea", now=NOW))
    assert seen(scanned) == seen(whole)
    assert streamed.cache.nbytes == 0
    assert "read in a stream" in caplog.text
    assert "oolong" not in caplog.text


async def test_a_streamed_scope_under_an_erase_is_not_served(library: Library) -> None:
    """The snapshot looks at intents before it reads."""
    await fill(library, 1)
    streamed = library.retrieval(cache=RetrievalCache(1_000))
    assert (await streamed.retrieve(MemoryQuery(scope=ALICE, text="tea"))).memories
    await library.memory.enqueue_forget(ALICE)
    with pytest.raises(ErasePending):
        await streamed.retrieve(MemoryQuery(scope=ALICE, text="tea"))


async def test_streaming_holds_a_fraction_of_what_a_cache_would(library: Library) -> None:
    """The texts of a large scope are never all in memory."""
    text = "much is said here about many things " * 40
    await library.keep(ALICE, {f"r{n}": f"{text} number{n}" for n in range(6_000)})
    query = MemoryQuery(scope=ALICE, text="number4711", limit=1)

    async def peak(retrieval: PostgresRetrieval) -> int:
        tracemalloc.start()
        (found,) = (await retrieval.retrieve(query)).memories
        assert found.record.record_id == "r4711"
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    streamed = await peak(library.retrieval(cache=RetrievalCache(100_000)))
    cached = await peak(library.retrieval())
    assert streamed < cached / 2
