"""What an erase costs, as ratios measured in one run.

    python bench/erase.py [--sizes 1000,100000,1000000] [--beside 200000]
        [--only tokens,forget,receipt] [--json]

tokens   the check of a token with a thousand and with a million rows in `scope_generations`, in
         two databases of one server, rounds interleaved;
forget   from request to receipt, of so many records, beside a plain DELETE of the same rows from a
         table like ours, in chunks of the same size, each committed; and the 99th percentile of
         other users' `finish` while `afterturn forget` runs in another process, beside the same
         undisturbed; and the deadlocks that PostgreSQL counted;
receipt  a small scope's forget from request to receipt with an idle worker, beside the round trip
         of a Celery task that does nothing and returns, on the same machine, rounds interleaved.

Everything runs on embedded servers of its own (fsync on). Exits 1 when a ratio is above its limit.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import asyncpg

# As a script: its neighbours are found from the checkout, the package where it is installed.
sys.path[0:1] = [str(Path(__file__).resolve().parents[1])]

from afterturn import Memory, MemoryScope, Settings, embedded  # noqa: E402
from afterturn.migrations import migrate  # noqa: E402
from bench.stack import BENCH, fleet, own_home, worker  # noqa: E402

LIMITS: Final = {
    "token check, 1M / 1k rows": 1.2,
    "forget / chunked DELETE": 1.5,
    "finish p99 beside a forget / undisturbed": 1.5,
    "forget / no-op task": 3.0,
    "deadlocks": 0.0,
}
CHUNK: Final = 2_000
BESIDE_ROUNDS: Final = 4
QUIET_FINISHES: Final = 1_000
_FILL = """
insert into {table} (path, record_id, pending, turn_path, turn_id, session, layer, origin, text,
    metadata, importance, recorded_at, content, revision)
select $1::text || 'chat-' || n % 50 || '/', 'r' || n, false,
    $1::text || 'chat-' || n % 50 || '/', 't' || n / 4, 's', 'episodic', 'turn',
    'What was said here, number ' || n || ', is about as long as what people say in a sentence.',
    '{{"speaker": "user"}}', 0.5, afterturn.clock(), 1, n
from generate_series(1, $2::integer) n
"""
_CHUNK = """
with gone as (
    delete from plain p where p.ctid = any(array(
        select w.ctid from plain w where w.path >= $1 and w.path < afterturn.under_end($1)
            and (w.path, w.record_id) > ($2, $3)
        order by w.path, w.record_id limit $4))
    returning p.path, p.record_id)
select count(*), (array_agg(g.path order by g.path desc, g.record_id desc))[1],
    (array_agg(g.record_id order by g.path desc, g.record_id desc))[1]
from gone g
"""


# -- tokens


async def token_checks(home: Path) -> dict[str, float]:
    """Ratio of the medians of `require_exact`, with few rows and with many."""
    url = str((await asyncio.to_thread(embedded.ensure, home)).database_url)
    admin = await asyncpg.connect(url)
    connections = {}
    for rows in (1_000, 1_000_000):
        await admin.execute(f"create database tokens_{rows}")
        own = urlunsplit(urlsplit(url)._replace(path=f"/tokens_{rows}"))
        await migrate(own, Settings(home=home))
        connection = await asyncpg.connect(own)
        await connection.execute(
            "insert into afterturn.scope_generations (scope_key, erase, content) select "
            f"substring(sha256(n::text::bytea) for 16), n, n from generate_series(1, {rows}) n"
        )
        await connection.execute("vacuum analyze afterturn.scope_generations")
        connections[rows] = connection
    scope = MemoryScope.of("acme", "alice", "chat-4").stored_path
    taken: dict[int, list[float]] = {rows: [] for rows in connections}
    token = [0, 0, 0]
    for at in range(40):
        # Every other round the other way round.
        for rows, connection in list(connections.items())[:: 1 if at % 2 else -1]:
            for _ in range(50):
                start = time.perf_counter()
                await connection.execute("select afterturn.require_exact($1, $2)", scope, token)
                taken[rows].append(time.perf_counter() - start)
    for connection in (*connections.values(), admin):
        await connection.close()
    few, many = (statistics.median(taken[rows][100:]) for rows in (1_000, 1_000_000))
    return {
        "token check, 1k rows, ms": few * 1e3,
        "token check, 1M rows, ms": many * 1e3,
        "token check, 1M / 1k rows": many / few,
    }


# -- forget


async def plain_delete(connection: asyncpg.Connection[Any], path: str) -> float:
    """Seconds of a chunked DELETE of everything under the path."""
    start = time.perf_counter()
    after = ("", "")
    while True:
        row = await connection.fetchrow(_CHUNK, path, *after, CHUNK)
        assert row is not None
        if row[0] < CHUNK:
            return time.perf_counter() - start
        after = row[1], row[2]


async def finishes(memory: Memory, until: Callable[[], bool], least: int) -> list[float]:
    """Seconds of other users' `finish`, one after the other."""
    taken: list[float] = []
    while len(taken) < least or not until():
        turn = await memory.begin_turn(MemoryScope.of("others", f"user-{len(taken) % 20}"))
        start = time.perf_counter()
        await turn.finish("What else did we plan for the spring?", "The garden, and the fence.")
        taken.append(time.perf_counter() - start)
    return taken


def percentile_99(taken: list[float]) -> float:
    return statistics.quantiles(taken, n=100)[98]


async def forgets(home: Path, sizes: list[int], beside_rows: int) -> dict[str, float]:
    """Ratios of forget to DELETE, and what other users notice."""
    figures: dict[str, float] = {}
    settings = Settings(home=home, extractor="none", embedder="none", takeover_seconds=0.0)
    async with Memory(settings) as memory:
        url = (await asyncio.to_thread(embedded.ensure, home)).database_url
        connection = await asyncpg.connect(url)
        await connection.execute("create table plain (like afterturn.memories including all)")
        await finishes(memory, lambda: True, 200)
        for size in sizes:
            repeats = 101 if size <= 1_000 else 6 if size <= 100_000 else 2
            mine: list[float] = []
            plain: list[float] = []
            scopes = [MemoryScope.of("acme", f"user-{size}-{at}") for at in range(repeats)]
            for scope in scopes:
                for table in ("plain", "afterturn.memories"):
                    await connection.execute(_FILL.format(table=table), scope.stored_path, size)
            await connection.execute("vacuum analyze plain, afterturn.memories")
            await connection.execute("checkpoint")
            for at in range(10):  # as in a process that has done so before: plans are made
                await memory.forget(MemoryScope.of("warm", str(at)))
                await plain_delete(connection, MemoryScope.of("warm", str(at)).stored_path)
            for at, scope in enumerate(scopes):
                for is_mine in (False, True) if at % 2 else (True, False):
                    if size > 1_000:  # neither has to write out the other's pages
                        await connection.execute("checkpoint")
                    if not is_mine:
                        plain.append(await plain_delete(connection, scope.stored_path))
                        continue
                    start = time.perf_counter()
                    receipt = await memory.forget(scope)
                    mine.append(time.perf_counter() - start)
                    assert receipt.counts["memories"] == size, receipt.counts
            figures[f"forget of {size}, s"] = statistics.median(mine)
            figures[f"chunked DELETE of {size}, s"] = statistics.median(plain)
            figures[f"forget / chunked DELETE, {size}"] = statistics.median(
                mine
            ) / statistics.median(plain)
        if beside_rows:
            figures |= await beside(memory, connection, home, beside_rows)
        figures["deadlocks"] = float(
            await connection.fetchval(
                "select deadlocks from pg_stat_database where datname = current_database()"
            )
        )
        await connection.close()
        await asyncio.to_thread(embedded.release, home)
    return figures


async def beside(
    memory: Memory, connection: asyncpg.Connection[Any], home: Path, size: int
) -> dict[str, float]:
    """Other users' finish while a worker erases, and while it has nothing to do, in turns."""
    quiet: list[float] = []
    busy: list[float] = []
    servers = await asyncio.to_thread(embedded.ensure, home)
    settings = memory.settings.model_copy(
        update={"database_url": servers.database_url, "broker_url": servers.broker_url}
    )
    scope = MemoryScope.of("acme", "beside")
    with worker(settings, home, "erasing", ("lifecycle",)):
        for _ in range(BESIDE_ROUNDS):
            part = size // BESIDE_ROUNDS
            await connection.execute(
                _FILL.format(table="afterturn.memories"), scope.stored_path, part
            )
            await connection.execute("vacuum analyze afterturn.memories")
            await connection.execute("checkpoint")
            quiet += await finishes(memory, lambda: True, QUIET_FINISHES)
            erasing = asyncio.create_task(memory.forget(scope))
            busy += await finishes(memory, erasing.done, 1)
            receipt = await erasing
            assert receipt.counts["memories"] == part
    return {
        "finishes beside a forget": float(len(busy)),
        "finish p50 undisturbed, ms": statistics.median(quiet) * 1e3,
        "finish p50 beside a forget, ms": statistics.median(busy) * 1e3,
        "finish p99 undisturbed, ms": percentile_99(quiet) * 1e3,
        "finish p99 beside a forget, ms": percentile_99(busy) * 1e3,
        "finish p99 beside a forget / undisturbed": percentile_99(busy) / percentile_99(quiet),
    }


# -- receipt


def receipts(home: Path) -> dict[str, float]:
    """A small forget by an idle worker, beside a task that does nothing."""
    with fleet(home, extractor="none", embedder="none"):
        broker = str(embedded.ensure(home).broker_url)
        os.environ["NOOP_BROKER_URL"] = broker.replace("virtual_host=0", "virtual_host=1")
        sys.path.insert(0, str(BENCH))
        noop = importlib.import_module("noop")  # as its worker calls it
        command = [sys.executable, "-m", "celery", "-A", "noop", "worker", "-c", "1", "-Q", "noop"]
        command += ["--loglevel", "ERROR", "--without-mingle", "--without-gossip"]
        with subprocess.Popen(
            command, cwd=BENCH, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        ) as worker:
            try:
                while not noop.app.control.inspect(timeout=2.0).ping():
                    if worker.poll() is not None:
                        raise RuntimeError("the no-op worker ended")
                return asyncio.run(_receipts(home, noop))
            finally:
                worker.terminate()
                embedded.release(home)


async def _receipts(home: Path, noop: Any) -> dict[str, float]:
    settings = Settings(home=home, extractor="none", embedder="none", takeover_seconds=60.0)
    mine: list[float] = []
    noops: list[float] = []
    async with Memory(settings) as memory:
        for at in range(60):
            scope = MemoryScope.of("small", f"user-{at}")
            async with memory.turn(scope) as turn:
                await turn.finish("My dog is called Rex.", "What a name.")
            await memory.drain(scope)
            start = time.perf_counter()
            receipt = await memory.forget(scope)
            mine.append(time.perf_counter() - start)
            assert receipt.counts["turns"] == 1
            start = time.perf_counter()
            assert await asyncio.to_thread(_round_trip, noop, at) == at
            noops.append(time.perf_counter() - start)
    forget, nothing = statistics.median(mine[10:]), statistics.median(noops[10:])
    return {
        "forget of a small scope, ms": forget * 1e3,
        "no-op task, ms": nothing * 1e3,
        "forget / no-op task": forget / nothing,
    }


def _round_trip(noop: Any, number: int) -> int:
    """Send a task and wait for its result."""
    return int(noop.answer.delay(number).get(timeout=30, interval=0.001))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="1000,100000,1000000")
    parser.add_argument("--beside", type=int, default=200_000, metavar="RECORDS")
    parser.add_argument("--only", default="tokens,forget,receipt")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    chosen = options.only.split(",")
    if "tokens" in chosen:
        with own_home() as home:
            figures |= asyncio.run(token_checks(home))
    if "forget" in chosen:
        with own_home() as home:
            figures |= asyncio.run(
                forgets(home, [int(s) for s in options.sizes.split(",")], options.beside)
            )
    if "receipt" in chosen:
        with own_home() as home:
            figures |= receipts(home)
    missed = {
        name
        for name, value in figures.items()
        for limit, most in LIMITS.items()
        if name.startswith(limit) and value > most
    }
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            mark = "MISS" if name in missed else ""
            print(f"{name:42} {value:10.3f} {mark}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
