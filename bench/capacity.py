"""What turns cost the database: rows, bytes, write-ahead log, connections, and the rate.

    python bench/capacity.py [--turns 2000] [--users 200] [--held 100000] [--json]

Starts the whole fleet on embedded servers of its own (fsync on), hands turns over from one process
(a question of 80 and an answer of 400 characters, words drawn from a seed), and waits until
everything has drained. Counted per turn: rows and bytes of each table with its indexes, and bytes
of the write-ahead log; and the most connections at a time. Then so many turns of other users are
copied into the tables, and the same number is handed over again: the second rate beside the first
says what a full database costs. Exits 1 when it falls below the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any, Final

import asyncpg

from afterturn import Memory, Settings, embedded

sys.path[0:1] = [str(Path(__file__).resolve().parents[1])]

from bench.stack import IN_FLIGHT, ROOT, fleet, own_home  # noqa: E402

LIMIT: Final = 0.7
SEED: Final = 1
TABLES: Final = ("turns", "memories", "memory_sources", "fact_statements", "jobs")
_BYTES: Final = "select pg_total_relation_size('afterturn.' || $1::text)"
_TOTAL: Final = """
select sum(pg_total_relation_size(c.oid)) from pg_class c
where c.relkind = 'r' and c.relnamespace = 'afterturn'::regnamespace
"""
_WAL: Final = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
_CONNECTIONS: Final = """
select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> $1
"""
# Copies of what was handed over, under other users, until so many are held.
_COPY: Final = """
with held as (
    select * from generate_series(1, $1::integer) h(n)),
said as (
    insert into afterturn.turns
    select 'v1/held/c' || n || substr(path, length('v1/bench/')), turn_id, session, query, answer,
        names, metadata, happened_at, occurred_at, staged_at, token, recorded, recorded_at,
        extracted, extracted_at, outcome, reason
    from afterturn.turns, held where path like 'v1/bench/%' returning 1)
insert into afterturn.memories
select 'v1/held/c' || n || substr(path, length('v1/bench/')), record_id, pending,
    'v1/held/c' || n || substr(turn_path, length('v1/bench/')), turn_id, session, layer, origin,
    text, metadata, importance, occurred_at, recorded_at, content, revision, embedding
from afterturn.memories, held where path like 'v1/bench/%'
"""


def exchange(words: random.Random) -> tuple[str, str]:
    """A question and an answer of words that nobody else says, with one thing to learn."""
    city = "".join(words.choices("abcdefghiklmnoprstuvwz", k=7)).capitalize()
    filler = " ".join(
        "".join(words.choices("aeioulnrst", k=words.randint(2, 9))) for _ in range(90)
    )
    return f"I moved to {city} last week. {filler}"[:80], f"Noted. {filler}"[:400]


async def hand_over(memory: Memory, turns: int, users: int, words: random.Random) -> None:
    """Turns of many users, several in flight."""
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def one(number: int) -> None:
        async with gate, memory.turn(ROOT.child(f"u{number % users}"), session="s") as turn:
            await turn.finish(*exchange(words))

    await asyncio.gather(*(one(number) for number in range(turns)))


class Watch:
    """The most connections at a time, its own apart."""

    def __init__(self, database: asyncpg.Connection[Any]) -> None:
        self._database = database
        self.most = 0

    async def look(self) -> None:
        """Again and again, until cancelled."""
        pid = self._database.get_server_pid()
        while True:
            self.most = max(self.most, await self._database.fetchval(_CONNECTIONS, pid))
            await asyncio.sleep(0.1)


async def timed(memory: Memory, turns: int, users: int, words: random.Random) -> float:
    """Turns per second until everything has drained."""
    start = time.perf_counter()
    await hand_over(memory, turns, users, words)
    await memory.drain(ROOT, timeout=900)
    return turns / (time.perf_counter() - start)


async def measure(home: Path, turns: int, users: int, held: int) -> dict[str, float]:
    words = random.Random(SEED)
    url = (await asyncio.to_thread(embedded.ensure, home)).database_url
    database, watched = await asyncpg.connect(url), await asyncpg.connect(url)
    async with Memory(Settings(home=home)) as memory:
        await timed(memory, IN_FLIGHT, users, words)  # connections are made, models loaded
        before = {name: await database.fetchval(_BYTES, name) for name in TABLES}
        counted = {name: await _count(database, name) for name in TABLES}
        wal = await database.fetchval(_WAL)
        watch = Watch(watched)
        looking = asyncio.create_task(watch.look())
        figures = {"drained_per_s": await timed(memory, turns, users, words)}
        looking.cancel()
        figures["connections_at_most"] = float(watch.most)
        figures["wal_bytes"] = float(await database.fetchval(_WAL) - wal) / turns
        for name in TABLES:
            rows = await _count(database, name) - counted[name]
            size = await database.fetchval(_BYTES, name) - before[name]
            figures[f"{name}_rows"], figures[f"{name}_bytes"] = rows / turns, size / turns
        if held:
            await database.execute("set synchronous_commit = off")
            copies = round(held / await _count(database, "turns"))
            await database.execute(_COPY.replace("$1", str(copies)))
            await database.execute("vacuum analyze")
            figures["held_turns"] = float(await _count(database, "turns"))
            figures["held_gib"] = float(await database.fetchval(_TOTAL)) / 2**30
            figures["drained_per_s_full"] = await timed(memory, turns, users, words)
            figures["full_to_empty"] = figures["drained_per_s_full"] / figures["drained_per_s"]
    await database.close()
    await watched.close()
    await asyncio.to_thread(embedded.release, home)
    return figures


async def _count(database: asyncpg.Connection[Any], table: str) -> int:
    return int(await database.fetchval(f"select count(*) from afterturn.{table}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=2_000)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--held", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with own_home() as home, fleet(home):
        figures = asyncio.run(measure(home, options.turns, options.users, options.held))
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:24} {value:12.2f}")
    ratio = figures.get("full_to_empty", 1.0)
    good = ratio >= LIMIT
    print(f"full / empty = {ratio:.2f} (limit {LIMIT})", "ok" if good else "MISS")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
