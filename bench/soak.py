"""Ten thousand turns through the whole fleet: what grows, and what must not.

    python bench/soak.py [--turns 10000] [--json]

After a first tenth of the turns and again after the last one it counts the broker's keys and
clients and the resident memory of every process of the fleet. Keys and clients must stay, but for
a queue that holds something just then; the memory of workers and beat may grow by a tenth, and
Flower, which remembers tasks up to a limit, must stay below 200 MiB. Exits 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

import psutil  # type: ignore[import-untyped]  # it ships no types
import redis

from afterturn import Memory, Settings, embedded
from afterturn.jobs.names import ALL_QUEUES

sys.path[0:1] = [str(Path(__file__).resolve().parents[1])]

from bench.stack import ROOT, fleet, hand_over, own_home  # noqa: E402

SCOPES: Final = 200
GROWTH: Final = 1.10
FLOWER_MIB_MAX: Final = 200.0
CLIENTS_SPARE: Final = 2  # one that happens to reconnect


async def soak(home: Path, turns: int, pid: int, broker_url: str) -> list[dict[str, float]]:
    """The counts after a tenth of the turns, and after all."""
    counts = []
    async with Memory(Settings(home=home, embedder="none")) as memory:
        done = 0
        for until in (turns // 10, turns):
            while done < until:
                await hand_over(memory, min(500, until - done), SCOPES, first=done)
                done += min(500, until - done)
                await memory.drain(ROOT, timeout=600)
            counts.append({**_broker(broker_url), **_memory(pid)})
    return counts


def _broker(url: str) -> dict[str, float]:
    with redis.Redis.from_url(embedded.redis_client_url(url)) as client:
        info: Any = client.info("clients")
        return {"keys": float(client.dbsize()), "clients": float(info["connected_clients"])}


def _memory(pid: int) -> dict[str, float]:
    """MiB by part; the processes of a worker's pool together with it."""
    found: dict[str, float] = {}
    for process in psutil.Process(pid).children(recursive=True):
        command = process.cmdline()
        if "workers" in command:
            part = command[command.index("workers") + 1]
            name = command[command.index("--name") + 1] if "--name" in command else part
            found[name] = found.get(name, 0.0) + process.memory_info().rss / (1 << 20)
    return found


def verdicts(first: dict[str, float], last: dict[str, float]) -> list[str]:
    """What grew that must not."""
    wrong = []
    for name, value in last.items():
        limit = {
            "keys": first["keys"] + len(ALL_QUEUES),  # a queue is a key while something waits in it
            "clients": first["clients"] + CLIENTS_SPARE,
            "flower": FLOWER_MIB_MAX,
        }.get(name, first.get(name, 0.0) * GROWTH)
        if value > limit:
            wrong.append(f"{name} is {value:.0f}, at most {limit:.0f} expected")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with (
        own_home() as home,
        fleet(home, flower=True, flower_port=0, embedder="none") as told,
    ):
        first, last = asyncio.run(soak(home, options.turns, told["pid"], str(told["broker_url"])))
    if options.json:
        print(json.dumps({"first": first, "last": last}))
    else:
        for name, value in last.items():
            print(f"{name:20} {first.get(name, 0.0):8.1f} {value:8.1f}")
    wrong = verdicts(first, last)
    print(f"{options.turns} turns:", "; ".join(wrong) or "nothing grew that must not", end=" ")
    print("MISS" if wrong else "ok")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
