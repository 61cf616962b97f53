"""Turns per second end to end, beside the no-op tasks per second of Celery in the same run.

    python bench/throughput.py [--turns 3000] [--scopes 50] [--json]

Starts the whole fleet (`afterturn up`) on embedded servers of its own, hands turns over from one
process, and stops the clock when every turn is recorded and readable, and again when everything
has drained (facts extracted, vectors made). Then one Celery worker (prefork 2, task events on,
prefetching 64) runs tasks that do nothing on the same Valkey. Exits 1 below the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from afterturn import Memory, MemoryScope, Settings, embedded

MESSAGES_LIMIT = 100.0
IN_FLIGHT = 8
STARTED = "afterturn is up"
BENCH = Path(__file__).resolve().parent


@contextmanager
def fleet(home: Path) -> Iterator[None]:
    """`afterturn up` on this home, ready for work."""
    command = [str(Path(sys.executable).with_name("afterturn")), "up", "--no-flower"]
    environment = {**os.environ, "AFTERTURN_HOME": str(home)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        try:
            for line in up.stdout:
                if STARTED in line:
                    break
            else:
                raise RuntimeError("afterturn up ended before it was ready")
            yield
        finally:
            up.terminate()
            up.stdout.read()


async def run_turns(home: Path, turns: int, scopes: int) -> dict[str, float]:
    """Hand turns over and wait for them."""
    root = MemoryScope.of("bench")
    async with Memory(Settings(home=home)) as memory:
        url = (await asyncio.to_thread(embedded.ensure, home)).database_url
        database = await asyncpg.connect(url)
        gate = asyncio.Semaphore(IN_FLIGHT)

        async def hand_over(number: int) -> None:
            async with gate, memory.turn(root.child(f"u{number % scopes}")) as turn:
                await turn.finish(
                    f"I moved flat number {number} last week and I like the view over the river.",
                    f"Noted: flat {number}, with a view. Anything else that I should remember?",
                )

        start = time.perf_counter()
        await asyncio.gather(*(hand_over(number) for number in range(turns)))
        handed = time.perf_counter() - start
        recorded = "select count(*) from afterturn.turns where recorded_at is not null"
        while await database.fetchval(recorded) < turns:
            await asyncio.sleep(0.01)
        readable = time.perf_counter() - start
        await memory.drain(root, timeout=600)
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


def run_noops(home: Path, tasks: int) -> float:
    """Celery's no-op tasks per second, from the first send to the last end."""
    broker = embedded.ensure(home).broker_url
    assert broker is not None
    os.environ["NOOP_BROKER_URL"] = broker.replace("virtual_host=0", "virtual_host=1")
    noop = importlib.import_module("noop")  # beside this file

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3_000)
    parser.add_argument("--scopes", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="at-bench-"))
    try:
        with fleet(home):
            figures = asyncio.run(run_turns(home, options.turns, options.scopes))
        figures["celery_noop_per_s"] = run_noops(home, options.turns)
    finally:
        embedded.stop(home)
        shutil.rmtree(home, ignore_errors=True)
    figures["recorded_to_noop"] = figures["recorded_per_s"] / figures["celery_noop_per_s"]
    figures["drained_to_noop"] = figures["drained_per_s"] / figures["celery_noop_per_s"]
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:20} {value:8.2f}")
    good = figures["drained_per_s"] >= MESSAGES_LIMIT
    print(
        f"recorded / no-op = {figures['recorded_to_noop']:.2f},"
        f" everything drained / no-op = {figures['drained_to_noop']:.2f},"
        f" {figures['drained_per_s']:.0f} turns/s (limit {MESSAGES_LIMIT:.0f})",
        "ok" if good else "MISS",
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
