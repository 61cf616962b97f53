"""Retrieval as a user of `Memory` gets it, as ratios measured in one run.

    python bench/retrieve.py [--sizes 1000 10000 100000] [--foreign 1000000] [--parts …] [--json]

Each line pairs what it compares within the same seconds, alternating, on embedded servers of its
own. The question's embedding is measured apart: everything else runs with vectors known before.

- warm: `retrieve` beside the least it must do, the state check and one numpy product over the same
  matrix of vectors, by row as numpy lays it; `columns_ms` is the least with the matrix by column,
  as retrieval holds it;
- peer: the same question, the same vectors, through LangGraph's AsyncPostgresStore with pgvector,
  where `langgraph-checkpoint-postgres`, `psycopg[binary,pool]` and `pgserver` (a PostgreSQL with
  pgvector in its wheel) are installed; not measured where they are not;
- foreign: the warm figure again when the table holds many records of other scopes;
- flushed: the first retrieve after another process's flush of 3 records;
- bytes: what the process holds per 100,000 records, by kind.

Exits 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import numpy as np
from numpy.typing import NDArray

from afterturn import Memory, MemoryQuery, MemoryScope, Settings, embedded
from afterturn.embedding.wordllama import WordLlamaEmbedder
from afterturn.retrieval.entries import Entry
from afterturn.retrieval.service import PostgresRetrieval
from afterturn.scope import covering_paths

# As a script: its neighbours are found from the checkout, the package where it is installed.
sys.path[0:1] = [str(Path(__file__).resolve().parents[1])]

from bench.stack import own_home  # noqa: E402

SEED = 1
DIM = 256
ROUNDS = 60
SECONDS = 3.0
BATCH = 5_000
LIMITS = {"warm 1000": 3.0, "warm 100000": 1.5, "flushed 50000": 5.0, "foreign": 1.5}
PEER_LIMIT = 10.0
PARTS = ("peer", "flushed", "foreign")
QUESTIONS = (
    "Where did Alice go on holiday with her sister last summer?",
    "What does the doctor say about the knee?",
    "When was the kitchen painted blue?",
    "Which train did we take to the lake?",
)
_STATE = "select erasing, erase, content, removed from afterturn.read_state($1)"
_INSERT = """
insert into afterturn.memories (path, record_id, pending, turn_path, session, layer, origin, text,
    metadata, importance, occurred_at, recorded_at, content, revision, embedding)
select $1, r.id, false, $1, r.session, 'episodic', 'bench', r.text,
    '{"speaker_name": "Alice"}'::jsonb, 0.5, r.at, r.at, $2, 0, r.vector
from unnest($3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::bytea[])
    r(id, session, text, at, vector)
"""
# The records of one path again, in so many other scopes.
_COPY = """
insert into afterturn.memories (path, record_id, pending, turn_path, session, layer, origin, text,
    metadata, importance, occurred_at, recorded_at, content, revision, embedding)
select 'v1/foreign/u' || n || '/', record_id, pending, 'v1/foreign/u' || n || '/', session, layer,
    origin, text, metadata, importance, occurred_at, recorded_at, content, revision, embedding
from afterturn.memories, generate_series(1, $2::integer) n where path = $1
"""
_MOVE = "select content from afterturn.move_content(array[$1], false)"
# Another process: three more records, written and flushed as anybody would.
_FLUSHER = """
import asyncio, sys
from pathlib import Path
from afterturn import Memory, MemoryScope, MemoryRecord, MemoryLayer, Settings, WriteRequest
async def main():
    scope = MemoryScope.of(*sys.argv[2].split("/"))
    settings = Settings(home=Path(sys.argv[1]), embedder="none")
    async with Memory(settings) as memory:
        for line in sys.stdin:
            records = tuple(
                MemoryRecord(record_id=f"new-{line.strip()}-{n}", text=f"We saw the lake, day {n}",
                    scope_path=scope.path, layer=MemoryLayer.EPISODIC, origin="bench")
                for n in range(3))
            await memory.write(WriteRequest(scope=scope, records=records))
            await memory.flush(scope)
            print("flushed", flush=True)
asyncio.run(main())
"""


class KnownVectors:
    """The default embedder's vectors, computed once: what is left is retrieval."""

    is_instant = True

    def __init__(self) -> None:
        self._embedder = WordLlamaEmbedder()
        self.model_id, self.dim = self._embedder.model_id, self._embedder.dim
        self.known = {text: self._embedder.embed([text])[0] for text in QUESTIONS}

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if all(text in self.known for text in texts):
            return np.stack([self.known[text] for text in texts])
        return self._embedder.embed(texts)


def texts(count: int) -> list[str]:
    """Messages of some 20 words, a vocabulary with the slope of English."""
    rng = random.Random(SEED)
    plain = " ".join(QUESTIONS).replace("?", "").split()
    vocabulary = [*plain, *(f"word{n}" for n in range(20_000))]
    weights = [1 / (n + 10) for n in range(len(vocabulary))]
    return [" ".join(rng.choices(vocabulary, weights, k=rng.randint(8, 32))) for _ in range(count)]


def vectors(count: int) -> NDArray[np.float32]:
    """Unit vectors that have something in common, as those of texts have."""
    rng = np.random.default_rng(SEED)
    made = rng.standard_normal((count, DIM), dtype=np.float32) + np.float32(0.4)
    return np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True))


async def fill(database: asyncpg.Connection, scope: MemoryScope, count: int) -> None:
    """Published records with vectors, sessions of 20, as autovacuum leaves them in the table."""
    path = f"{scope.path}/"
    content = await database.fetchval(_MOVE, path)
    said, matrix = texts(count), vectors(count).astype("<f2")
    start = np.datetime64("2024-01-01T00:00:00")
    for at in range(0, count, BATCH):
        span = range(at, min(at + BATCH, count))
        await database.execute(
            _INSERT,
            path,
            content,
            [f"r{n}" for n in span],
            [f"s{n // 20}" for n in span],
            [said[n] for n in span],
            [_aware(start + np.timedelta64(n, "m")) for n in span],
            [matrix[n].tobytes() for n in span],
        )
    await database.execute("vacuum (analyze) afterturn.memories")


def _aware(when: np.datetime64) -> Any:
    from datetime import UTC

    return when.astype("datetime64[us]").item().replace(tzinfo=UTC)


async def alternating(
    rounds: int, *calls: Callable[[int], Awaitable[object]], seconds: float = 0.0
) -> list[list[float]]:
    """Milliseconds of each call, one after the other in every round; more rounds until so long."""
    taken: list[list[float]] = [[] for _ in calls]
    begun = time.perf_counter()
    for number in itertools.count():
        if number >= rounds and time.perf_counter() - begun >= seconds:
            break
        for times, call in zip(taken, calls, strict=True):
            start = time.perf_counter()
            await call(number)
            times.append(1_000 * (time.perf_counter() - start))
    return taken


def question(scope: MemoryScope, number: int) -> MemoryQuery:
    return MemoryQuery(scope=scope, text=QUESTIONS[number % len(QUESTIONS)], limit=10)


async def warm(
    memory: Memory, database: asyncpg.Connection, scope: MemoryScope, embedder: KnownVectors
) -> dict[str, float]:
    """p50 of a warm retrieve beside the state check and one product."""
    matrix = vectors(
        await database.fetchval(
            "select count(*) from afterturn.memories where path = $1", f"{scope.path}/"
        )
    )
    columns = np.asfortranarray(matrix)
    path = f"{covering_paths(scope.path)[-1]}/"

    async def whole(number: int) -> object:
        return await memory.retrieve(question(scope, number))

    async def least(number: int) -> object:
        await database.fetchrow(_STATE, path)
        return matrix @ embedder.known[QUESTIONS[number % len(QUESTIONS)]]

    async def by_column(number: int) -> object:
        await database.fetchrow(_STATE, path)
        return columns @ embedder.known[QUESTIONS[number % len(QUESTIONS)]]

    await whole(0)
    await alternating(5, whole, least)
    taken = await alternating(ROUNDS, whole, least, seconds=SECONDS)
    p50 = [statistics.median(times) for times in taken]
    (of_columns,) = await alternating(ROUNDS, by_column)
    return {
        "retrieve_ms": p50[0],
        "least_ms": p50[1],
        "columns_ms": statistics.median(of_columns),
        "ratio": p50[0] / p50[1],
    }


async def flushed(
    memory: Memory, home: Path, scope: MemoryScope, rounds: int = 9
) -> dict[str, float]:
    """The first retrieve after another process's flush of 3 records, and the warm one after it."""
    command = [sys.executable, "-c", _FLUSHER, str(home), "/".join(scope.segments)]
    other = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert other.stdin is not None
    assert other.stdout is not None
    firsts, warms = [], []
    try:
        for number in range(rounds):
            other.stdin.write(f"{number}\n".encode())
            await other.stdout.readline()
            ((first, *rest),) = await alternating(5, lambda n: memory.retrieve(question(scope, n)))
            firsts.append(first)
            warms += rest
    finally:
        other.stdin.close()
        await other.wait()
    first, usual = statistics.median(firsts), statistics.median(warms)
    return {"first_ms": first, "retrieve_ms": usual, "ratio": first / usual}


def _retrieval(memory: Memory) -> PostgresRetrieval:
    source = memory.retrieval
    assert isinstance(source, PostgresRetrieval)
    return source


def held_bytes(memory: Memory) -> dict[str, float]:
    """Bytes per 100,000 records of the largest entry in the cache, by kind."""
    entries: list[Entry] = _retrieval(memory).cache.entries()
    entry = max(entries, key=lambda each: each.count)
    scale = 100_000 / entry.count
    segments = [part.segment for part in entry.parts]
    vectors_held = sum(segment.vectors.nbytes for segment in segments)
    lexical_held = sum(segment.lexical.nbytes for segment in segments)
    return {
        "vectors_mb": scale * vectors_held / 1e6,
        "lexical_mb": scale * lexical_held / 1e6,
        "texts_and_rest_mb": scale * (entry.nbytes - vectors_held - lexical_held) / 1e6,
        "all_mb": scale * entry.nbytes / 1e6,
    }


_PEER_STORE = "insert into store (prefix, key, value) values (%s, %s, %s)"
_PEER_VECTORS = """
insert into store_vectors (prefix, key, field_name, embedding) values (%s, %s, 'text', %s)
"""
PEER_PACKAGES = ("langgraph.store.postgres", "psycopg_pool", "pgserver")


def peer_is_missing() -> str:
    """Which of the peer's packages are not installed."""
    missing = []
    for name in PEER_PACKAGES:
        try:
            found = importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            missing.append(name)
    return ", ".join(missing)


@contextlib.contextmanager
def peer_database(home: Path) -> Iterator[str]:
    """PostgreSQL with pgvector from pgserver's wheel, run by an ordinary user, on a socket."""
    import pgserver

    binaries = Path(pgserver.__file__).parent / "pginstall" / "bin"
    folder = home / "data"
    home.mkdir()
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL does not run as root
        as_user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
        shutil.chown(home, "nobody", "nogroup")
        home.parent.chmod(0o755)

    def run(*command: str | Path) -> None:
        quiet = subprocess.DEVNULL
        subprocess.run(list(command), check=True, stdout=quiet, cwd=home, **as_user)

    run(binaries / "initdb", "-D", folder, "-U", "bench", "-A", "trust")
    options = f"-k {home} -c listen_addresses='' -c shared_buffers=256MB -c fsync=off"
    control: list[str | Path] = [binaries / "pg_ctl", "-D", folder]
    run(*control, "-w", "-l", home / "log", "-o", options, "start")
    try:
        yield f"postgresql://bench@/postgres?host={home}"
    finally:
        run(*control, "-m", "immediate", "stop")


async def peer(
    memory: Memory, url: str, scope: MemoryScope, count: int, embedder: KnownVectors
) -> dict[str, float]:
    """p50 of our retrieve and of LangGraph's `asearch`, with the same vectors and limit."""
    import psycopg
    from langgraph.store.postgres.aio import AsyncPostgresStore
    from psycopg.types.json import Jsonb

    async def known(asked: Sequence[str]) -> list[list[float]]:
        return [embedder.known[text].tolist() for text in asked]

    index: Any = {"dims": DIM, "embed": known, "fields": ["text"]}
    namespace = ("bench", str(count))
    async with AsyncPostgresStore.from_conn_string(url, index=index) as store:
        await store.setup()
        # As `aput` leaves it, but put in at once.
        said, matrix = texts(count), vectors(count)
        prefix = ".".join(namespace)
        rows = [(prefix, f"r{n}", Jsonb({"text": said[n]})) for n in range(count)]
        embedded_rows = [(prefix, f"r{n}", str(matrix[n].tolist())) for n in range(count)]
        async with (
            await psycopg.AsyncConnection.connect(url) as connection,
            connection.cursor() as cursor,
        ):
            await cursor.executemany(_PEER_STORE, rows)
            await cursor.executemany(_PEER_VECTORS, embedded_rows)
            await cursor.execute("analyze store")
            await cursor.execute("analyze store_vectors")

        async def theirs(number: int) -> object:
            asked = QUESTIONS[number % len(QUESTIONS)]
            found = await store.asearch(namespace, query=asked, limit=10)
            assert len(found) == 10, f"{len(found)} found"
            return found

        async def ours(number: int) -> object:
            return await memory.retrieve(question(scope, number))

        await alternating(5, ours, theirs)
        taken = await alternating(ROUNDS, ours, theirs, seconds=SECONDS)
    p50 = [statistics.median(times) for times in taken]
    return {"retrieve_ms": p50[0], "langgraph_ms": p50[1], "times_faster": p50[1] / p50[0]}


async def measure(
    home: Path, sizes: Sequence[int], foreign: int, parts: Sequence[str]
) -> dict[str, dict[str, float]]:
    """All figures, by name."""
    embedder = KnownVectors()
    figures: dict[str, dict[str, float]] = {}
    settings = Settings(home=home, cache_bytes=4 << 30, pool_size=2)
    root = MemoryScope.of("bench")
    async with Memory(settings, embedder=embedder) as memory:
        url = (await asyncio.to_thread(embedded.ensure, home)).database_url
        database = await asyncpg.connect(url)
        await memory.remember(root.child("other"), "anything")  # makes the embedder this one
        await memory.drain(root, in_process=True)

        plain = WordLlamaEmbedder()
        start = time.perf_counter()
        for number in range(400):
            plain.embed([QUESTIONS[number % len(QUESTIONS)]])
        figures["embedding a question"] = {"ms": 1_000 * (time.perf_counter() - start) / 400}

        for size in sizes:
            scope = root.child(f"n{size}")
            await fill(database, scope, size)
            figures[f"warm {size}"] = await warm(memory, database, scope, embedder)
        figures["bytes per 100000"] = held_bytes(memory)

        missing = peer_is_missing()
        if "peer" in parts and missing:
            print(f"LangGraph's store was not measured: {missing} not installed", file=sys.stderr)
        elif "peer" in parts:
            with peer_database(home / "peer") as theirs:
                for size in [size for size in sizes if size <= 10_000]:
                    scope = root.child(f"n{size}")
                    figures[f"peer {size}"] = await peer(memory, theirs, scope, size, embedder)

        if "flushed" in parts:
            scope = root.child("n50000")
            if 50_000 not in sizes:
                await fill(database, scope, 50_000)
            await memory.retrieve(question(scope, 0))
            figures["flushed 50000"] = await flushed(memory, home, scope)

        if "foreign" in parts:
            scope = root.child(f"n{sizes[0]}")
            before = await warm(memory, database, scope, embedder)
            copies = foreign // sizes[0]
            await database.execute(_COPY, f"{scope.path}/", copies, timeout=900)
            await database.execute("analyze afterturn.memories")
            after = await warm(memory, database, scope, embedder)
            figures["foreign"] = {
                "before_ms": before["retrieve_ms"],
                "after_ms": after["retrieve_ms"],
                "ratio": after["retrieve_ms"] / before["retrieve_ms"],
            }
        await database.close()
        await asyncio.to_thread(embedded.release, home)
    return figures


def missed(figures: dict[str, dict[str, float]]) -> list[str]:
    """What stays behind its limit."""
    found = []
    for name, values in figures.items():
        if name in LIMITS and values["ratio"] > LIMITS[name]:
            found.append(f"{name}: {values['ratio']:.2f}, limit {LIMITS[name]}")
        if name.startswith("peer") and values["times_faster"] < PEER_LIMIT:
            found.append(f"{name}: {values['times_faster']:.1f} times faster, limit {PEER_LIMIT}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--foreign", type=int, default=1_000_000, help="records of other scopes")
    parser.add_argument(
        "--parts", nargs="*", default=PARTS, choices=PARTS, help="what to measure beside `warm`"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with own_home() as home:
        figures = asyncio.run(measure(home, options.sizes, options.foreign, options.parts))
    if options.json:
        print(json.dumps(figures))
    else:
        for name, values in figures.items():
            shown = "  ".join(f"{key} {value:.3f}" for key, value in values.items())
            print(f"{name:22} {shown}")
    misses = missed(figures)
    for miss in misses:
        print("MISS", miss)
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
