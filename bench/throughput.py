"""Turns per second end to end, beside the no-op tasks per second of Celery in the same run.

    python bench/throughput.py [--turns 3000] [--scopes 50] [--waiting 2000] [--json]

Starts the whole fleet (`afterturn up`) on embedded servers of its own, hands turns over from one
process, and stops the clock when every turn is recorded and readable, and again when everything
has drained (facts extracted, vectors made). Then the fleet stops, turns are handed over while
neither workers nor broker are there, the fleet comes back, and the clock runs from its first sweep
until all of them are recorded. Then one Celery worker (prefork 2, task events on, prefetching 64)
runs tasks that do nothing on the same Valkey. Exits 1 when turns are recorded more slowly than
Celery does nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import asyncpg

from afterturn import Memory, Settings, embedded

BENCH = Path(__file__).resolve().parent
sys.path[0:1] = [str(BENCH.parent)]

from bench.stack import ROOT, await_recorded, fleet, hand_over, own_home  # noqa: E402

LIMIT = 1.0
ABSENT_BROKER = "redis://127.0.0.1:1/0"


async def run_turns(home: Path, turns: int, scopes: int) -> dict[str, float]:
    """Hand turns over and wait for them."""
    async with Memory(Settings(home=home)) as memory:
        url = (await asyncio.to_thread(embedded.ensure, home)).database_url
        database = await asyncpg.connect(url)
        start = time.perf_counter()
        await hand_over(memory, turns, scopes)
        handed = time.perf_counter() - start
        await await_recorded(database, turns)
        readable = time.perf_counter() - start
        await memory.drain(ROOT, timeout=600)
        drained = time.perf_counter() - start
        rows = await database.fetchval("select count(*) from afterturn.memories")
        await database.close()
        await asyncio.to_thread(embedded.release, home)
    if rows < 4 * turns:
        raise RuntimeError(f"{rows} rows for {turns} turns")
    return {
        "handed_over_per_s": turns / handed,
        "recorded_per_s": turns / readable,
        "drained_per_s": turns / drained,
    }


async def leave_waiting(home: Path, turns: int, scopes: int, first: int) -> None:
    """Hand turns over when nobody is there to hear of them."""
    url = (await asyncio.to_thread(embedded.ensure, home)).database_url
    settings = Settings(home=home, database_url=url, broker_url=ABSENT_BROKER)
    async with Memory(settings) as memory:
        await hand_over(memory, turns, scopes, first=first)
    await asyncio.to_thread(embedded.release, home)


async def run_backlog(home: Path, waiting: int, done: int) -> dict[str, float]:
    """From the first turn that the returned fleet records to the last one that waited."""
    url = (await asyncio.to_thread(embedded.ensure, home)).database_url
    database = await asyncpg.connect(url)
    came_back = time.perf_counter()
    await await_recorded(database, done + 1)
    start = time.perf_counter()
    await await_recorded(database, done + waiting)
    end = time.perf_counter()
    await database.close()
    await asyncio.to_thread(embedded.release, home)
    return {"noticed_after_s": start - came_back, "backlog_per_s": waiting / (end - start)}


def run_noops(home: Path, tasks: int) -> float:
    """Celery's no-op tasks per second, from the first send to the last end."""
    broker = embedded.ensure(home).broker_url
    assert broker is not None
    os.environ["NOOP_BROKER_URL"] = broker.replace("virtual_host=0", "virtual_host=1")
    noop = importlib.import_module("bench.noop")

    command = [sys.executable, "-m", "celery", "-A", "noop", "worker", "-c", "2", "-E"]
    command += ["-Q", "noop", "--loglevel", "ERROR", "--without-mingle", "--without-gossip"]
    worker = subprocess.Popen(
        command,
        cwd=BENCH,
        env=dict(os.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    try:
        inspect = noop.app.control.inspect(timeout=2.0)
        while not inspect.ping():
            if worker.poll() is not None:
                raise RuntimeError("the no-op worker ended")
        start = time.perf_counter()
        for number in range(tasks):
            noop.nothing.apply_async((number,), ignore_result=True)
        while _done(inspect) < tasks:
            time.sleep(0.05)
        return tasks / (time.perf_counter() - start)
    finally:
        worker.terminate()
        worker.wait()
        embedded.release(home)


def _done(inspect: object) -> int:
    stats = inspect.stats() or {}  # type: ignore[attr-defined] # celery is untyped
    return sum(int(each["total"].get("noop.nothing", 0)) for each in stats.values())


def measure(home: Path, turns: int, scopes: int, waiting: int) -> dict[str, float]:
    """All figures of one run."""
    with fleet(home):
        figures = asyncio.run(run_turns(home, turns, scopes))
    asyncio.run(leave_waiting(home, waiting, scopes, turns))
    with fleet(home):
        figures |= asyncio.run(run_backlog(home, waiting, turns))
    noops = run_noops(home, turns)
    figures["celery_noop_per_s"] = noops
    for name in ("recorded", "backlog", "drained"):
        figures[f"{name}_to_noop"] = figures[f"{name}_per_s"] / noops
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3_000)
    parser.add_argument("--scopes", type=int, default=50)
    parser.add_argument("--waiting", type=int, default=2_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with own_home() as home:
        figures = measure(home, options.turns, options.scopes, options.waiting)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:20} {value:8.2f}")
    good = min(figures["recorded_to_noop"], figures["backlog_to_noop"]) >= LIMIT
    print(
        f"recorded / no-op = {figures['recorded_to_noop']:.2f}, after an outage "
        f"{figures['backlog_to_noop']:.2f} (limit {LIMIT}), everything drained / no-op = "
        f"{figures['drained_to_noop']:.2f}",
        "ok" if good else "MISS",
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
