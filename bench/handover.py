"""What `finish` costs its caller, beside a bare committed INSERT of the same text.

    python bench/handover.py [--rounds 40] [--turns 25] [--json]

Rounds are interleaved and both sides use one connection at a time on the same embedded server
(fsync on), so the machine's noise meets both. The figure is the ratio of the medians. Exits 1
when it is above the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import asyncpg

from afterturn import Memory, MemoryScope, Settings, embedded

LIMIT = 2.0
QUERY = "Where did we leave the spare key when we went away last spring? " * 8
ANSWER = "Under the third flower pot beside the green door, as every year. " * 8


async def bare_inserts(connection: asyncpg.Connection[Any], count: int) -> list[float]:
    """Seconds of each committed INSERT of one turn's text."""
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        await connection.execute("insert into bare (query, answer) values ($1, $2)", QUERY, ANSWER)
        taken.append(time.perf_counter() - start)
    return taken


async def finishes(memory: Memory, scope: MemoryScope, count: int) -> list[float]:
    """Seconds of each `finish`; beginning the turn is not counted."""
    taken = []
    for _ in range(count):
        turn = await memory.begin_turn(scope)
        start = time.perf_counter()
        await turn.finish(QUERY, ANSWER)
        taken.append(time.perf_counter() - start)
    return taken


async def measure(home: Path, rounds: int, turns: int) -> dict[str, float]:
    settings = Settings(home=home, extractor="none", embedder="none")
    async with Memory(settings) as memory:
        url = (await asyncio.to_thread(embedded.ensure, home)).database_url
        connection = await asyncpg.connect(url)
        await connection.execute(
            "create table bare (id bigint generated always as identity primary key,"
            " query text not null, answer text not null)"
        )
        scope = MemoryScope.of("bench", "user")
        await bare_inserts(connection, turns)
        await finishes(memory, scope, turns)
        bare: list[float] = []
        finish: list[float] = []
        for _ in range(rounds):
            bare += await bare_inserts(connection, turns)
            finish += await finishes(memory, scope, turns)
        await connection.close()
        await asyncio.to_thread(embedded.release, home)
    return {
        "turns": float(len(finish)),
        "bare_insert_p50_ms": statistics.median(bare) * 1e3,
        "finish_p50_ms": statistics.median(finish) * 1e3,
        "finish_p99_ms": statistics.quantiles(finish, n=100)[98] * 1e3,
        "ratio_p50": statistics.median(finish) / statistics.median(bare),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="at-bench-"))
    try:
        figures = asyncio.run(measure(home, options.rounds, options.turns))
    finally:
        embedded.stop(home)
        shutil.rmtree(home, ignore_errors=True)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:22} {value:8.3f}")
    good = figures["ratio_p50"] <= LIMIT
    print(
        f"finish / bare INSERT = {figures['ratio_p50']:.2f} (limit {LIMIT})",
        "ok" if good else "MISS",
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
