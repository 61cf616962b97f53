"""What `finish` costs its caller, beside a bare committed INSERT, and whatever else is broken.

    python bench/handover.py [--rounds 40] [--turns 25] [--json]

Everything runs on one embedded server (fsync on), one connection at a time, in rounds in which
every situation has its turn, in changing order, so that the machine's noise meets all of them:

    bare        one committed INSERT of the same text, on a connection of its own
    tight       the same, one right after the other
    finish      `finish` with a broker that answers
    dead        the same, nobody listens at the broker's address
    frozen      the broker is stopped (SIGSTOP): connections are accepted, nothing is answered
    black hole  the broker's SYNs are never answered
    instant     a worker records and extracts meanwhile, its model answers at once
    slow        the same with a model that takes 60 s

Before each call a turn is begun and not counted, before the bare INSERT as well: in a loop of its
own, with nothing between, the INSERT finds warmer caches than any application gives it, and is a
tenth faster; that is shown, too (`tight`).

A figure is the median over the rounds of the ratio of two medians of the same round: finish to
bare, each broken broker to finish, slow to instant. Exits 1 when one is above its limit.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from afterturn import Memory, MemoryScope, Settings, embedded
from afterturn.embedded.binaries import find_valkey
from afterturn.migrations import migrate

# As a script: its neighbours are found from the checkout, the package where it is installed.
sys.path[0:1] = [str(Path(__file__).resolve().parents[1])]

from bench.stack import own_home, worker  # noqa: E402

FINISH_LIMIT: Final = 1.6
SAME_LIMIT: Final = 1.1
SCOPE: Final = MemoryScope.of("bench", "user")
QUERY: Final = "Where did we leave the spare key when we went away last spring? " * 8
ANSWER: Final = "Under the third flower pot beside the green door, as every year. " * 8
MODELS: Final = """
import asyncio
from afterturn import ExtractionResult

class Model:
    def __init__(self, seconds):
        self.seconds = seconds

    async def extract(self, request):
        await asyncio.sleep(self.seconds)
        return ExtractionResult()

def instant():
    return Model(0)

def slow():
    return Model(60)
"""
# Each ratio: what is measured, beside what, and at most how much.
RATIOS: Final = {
    "finish": ("finish", "bare", FINISH_LIMIT),
    "broker dead": ("dead", "finish", SAME_LIMIT),
    "broker frozen": ("frozen", "finish", SAME_LIMIT),
    "broker black-holed": ("black hole", "finish", SAME_LIMIT),
    "model takes 60 s": ("slow", "instant", SAME_LIMIT),
}

Situation: TypeAlias = Callable[[int], Awaitable[list[float]]]


def bare(connection: asyncpg.Connection[Any], memory: Memory | None = None) -> Situation:
    """Seconds of each committed INSERT of one turn's text, each after a turn was begun."""

    async def insert(count: int) -> list[float]:
        taken = []
        for _ in range(count):
            if memory is not None:
                await memory.begin_turn(SCOPE)
            start = time.perf_counter()
            await connection.execute(
                "insert into bare (query, answer) values ($1, $2)", QUERY, ANSWER
            )
            taken.append(time.perf_counter() - start)
        return taken

    return insert


def finishing(memory: Memory) -> Situation:
    """Seconds of each `finish`; beginning the turn is not counted."""

    async def finish(count: int) -> list[float]:
        taken = []
        for _ in range(count):
            turn = await memory.begin_turn(SCOPE)
            start = time.perf_counter()
            await turn.finish(QUERY, ANSWER)
            taken.append(time.perf_counter() - start)
        return taken

    return finish


@contextlib.contextmanager
def frozen_broker(folder: Path) -> Iterator[str]:
    """The URL of a Valkey that is stopped."""
    path = folder / "frozen.sock"
    options = {"port": "0", "unixsocket": str(path), "save": "", "appendonly": "no"}
    command = [str(find_valkey())]
    for name, value in options.items():
        command += [f"--{name}", value]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            while not path.exists():
                time.sleep(0.01)
            process.send_signal(signal.SIGSTOP)
            yield f"unix://{path}"
        finally:
            process.kill()


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """The URL of a port whose SYNs are never answered: a listener with a full backlog."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


@contextlib.asynccontextmanager
async def situations(home: Path) -> AsyncIterator[dict[str, Situation]]:
    """All of them, set up side by side."""
    servers = await asyncio.to_thread(embedded.ensure, home)
    url, broker = str(servers.database_url), str(servers.broker_url)
    (home / "models.py").write_text(MODELS)
    admin = await asyncpg.connect(url)
    await admin.execute(
        "create table bare (id bigint generated always as identity primary key,"
        " query text not null, answer text not null)"
    )
    base = Settings(
        home=home, database_url=url, broker_url=broker, extractor="none", embedder="none"
    )
    await migrate(url, base)
    async with contextlib.AsyncExitStack() as stack:

        async def opened(**changes: object) -> Situation:
            settings = base.model_copy(update=changes)
            return finishing(await stack.enter_async_context(Memory(settings)))

        beginning = await stack.enter_async_context(Memory(base))
        found = {
            "tight": bare(admin),
            "bare": bare(admin, beginning),
            "finish": await opened(),
            "dead": await opened(broker_url="redis://127.0.0.1:1/0"),
            "frozen": await opened(broker_url=stack.enter_context(frozen_broker(home))),
            "black hole": await opened(broker_url=stack.enter_context(black_hole())),
        }
        for number, model in enumerate(("instant", "slow"), start=1):
            await admin.execute(f"create database {model}")
            changes = {
                "database_url": urlunsplit(urlsplit(url)._replace(path=f"/{model}")),
                "broker_url": broker.replace("virtual_host=0", f"virtual_host={number}"),
                "extractor": f"models:{model}",
                "worker_concurrency": 1,
            }
            await migrate(str(changes["database_url"]), base)
            stack.enter_context(worker(base.model_copy(update=changes), home, model))
            found[model] = await opened(**changes)
        yield found
    await admin.close()
    await asyncio.to_thread(embedded.release, home)


async def measure(home: Path, rounds: int, turns: int) -> dict[str, Any]:
    """All figures: milliseconds of each situation, and the ratios."""
    medians: dict[str, list[float]] = {}
    every: dict[str, list[float]] = {}
    rng = random.Random(1)
    async with situations(home) as found:
        for situation in found.values():
            await situation(turns)  # warm
        for _ in range(rounds):
            for name in rng.sample(sorted(found), len(found)):
                taken = await found[name](turns)
                medians.setdefault(name, []).append(statistics.median(taken))
                every.setdefault(name, []).extend(taken)
    return {
        "p50_ms": {name: statistics.median(every[name]) * 1e3 for name in found},
        "p99_ms": {name: statistics.quantiles(every[name], n=100)[98] * 1e3 for name in found},
        "ratios": {
            name: statistics.median(
                one / other for one, other in zip(medians[what], medians[beside], strict=True)
            )
            for name, (what, beside, _) in RATIOS.items()
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with own_home() as home:
        figures = asyncio.run(measure(home, options.rounds, options.turns))
    if options.json:
        print(json.dumps(figures))
    else:
        print(f"{'':20} {'p50 ms':>8} {'p99 ms':>8}")
        for name, value in figures["p50_ms"].items():
            print(f"{name:20} {value:8.2f} {figures['p99_ms'][name]:8.2f}")
    good = True
    for name, (what, beside, limit) in RATIOS.items():
        ratio = figures["ratios"][name]
        good = good and ratio <= limit
        verdict = "ok" if ratio <= limit else "MISS"
        print(f"{name:20} {what} / {beside} = {ratio:.2f} (limit {limit}) {verdict}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
