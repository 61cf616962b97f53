"""An erase 150 ms into a 500 ms model call: how often is what was erased back afterwards?

    python bench/erase_race.py [--trials 20] [--peers] [--peer-python NAME=PYTHON] [--json]

Ours is measured with a fleet of its own: the turn is handed over, a worker's extraction has begun,
150 ms later this process forgets the user's scope, the model answers, everything drains; then the
word is looked for in retrieval, listing, transcript, export, and every table. Half of the trials
go on at once with one more turn in the same scope, which must be there.

`--peers` measures mem0 and LangMem in the same way, by the drivers in `bench/peers`, each with a
stub model on loopback. Each gets a temporary virtual environment, into which pip installs it from
wherever your pip is configured to; or name an interpreter that has it:
`--peer-python mem0=/tmp/peers/bin/python` (`pip install mem0ai`, and `pip install langmem
langgraph langchain-openai`). A peer that cannot be installed or run is reported as that.

Exits 1 when anything of ours came back or a turn behind the erase is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import asyncpg

# As a script: its neighbours are found from the checkout, the package where it is installed.
sys.path[0:1] = [str(Path(__file__).resolve().parents[1])]

from afterturn import Memory, MemoryQuery, MemoryScope, Settings, embedded  # noqa: E402
from bench.stack import BENCH, fleet, own_home  # noqa: E402

MODEL_SECONDS = 0.5
INTO_THE_CALL_SECONDS = 0.15
PEERS = {
    "mem0": (("mem0ai",), "mem0_race.py"),
    "langmem": (("langmem", "langgraph", "langchain-openai"), "langmem_race.py"),
}


async def tables_holding(database: asyncpg.Connection[Any], word: str) -> list[str]:
    """Every table of the schema in which a row has the word."""
    names = await database.fetch(
        "select c.relname from pg_class c "
        "where c.relnamespace = 'afterturn'::regnamespace and c.relkind = 'r'"
    )
    return [
        name
        for (name,) in names
        if await database.fetchval(
            f"select exists (select from afterturn.{name} t where position($1 in t::text) > 0)",
            word,
        )
    ]


async def one_trial(
    memory: Memory, database: asyncpg.Connection[Any], calls: Path, number: int, *, followed: bool
) -> tuple[bool, bool]:
    """Whether the erased word was found anywhere, and whether the turn behind it is missing."""
    scope = MemoryScope.of(f"tenant-{number}", "alice")
    word, new = f"zanzibar{number}x", f"madagascar{number}x"
    async with memory.turn(scope) as turn:
        await turn.finish(f"Please remember my code word {word}.", f"Noted: {word}.")
    while not (calls / turn.turn_id).exists():
        await asyncio.sleep(0.005)
    await asyncio.sleep(INTO_THE_CALL_SECONDS)
    await memory.forget(scope)
    if followed:
        async with memory.turn(scope) as again:
            await again.finish(f"My code word is now {new}.", "Noted.")
    await asyncio.sleep(MODEL_SECONDS)
    await memory.drain(scope.root)
    found = [
        m.record.text for m in (await memory.retrieve(MemoryQuery(scope=scope, text=word))).memories
    ]
    found += [record.text for record in await memory.list(scope)]
    found += [str(said.query) for said in await memory.transcript(scope)]
    found += [repr(item) async for item in memory.export(scope.root)]
    back = any(word in text for text in found) or bool(await tables_holding(database, word))
    return back, followed and not any(new in text for text in found)


async def measure(home: Path, calls: Path, trials: int) -> dict[str, Any]:
    """Our figures."""
    back = {"alone": 0, "followed by a turn": 0}
    missing = 0
    async with Memory(Settings(home=home)) as memory:
        url = (await asyncio.to_thread(embedded.ensure, home)).database_url
        database = await asyncpg.connect(url)
        try:
            for number in range(trials):
                for followed, kind in ((False, "alone"), (True, "followed by a turn")):
                    resurrected, lost = await one_trial(
                        memory, database, calls, 2 * number + followed, followed=followed
                    )
                    back[kind] += resurrected
                    missing += lost
        finally:
            await database.close()
            await asyncio.to_thread(embedded.release, home)
    return {"trials": trials, "back": back, "turns behind the erase missing": missing}


def ours(trials: int) -> dict[str, Any]:
    """A fleet, the trials, and nothing left of either."""
    with own_home() as home:
        calls = home / "calls"
        calls.mkdir()
        os.environ["SLOW_EXTRACTOR_CALLS"] = str(calls)
        os.environ["SLOW_EXTRACTOR_SECONDS"] = str(MODEL_SECONDS)
        with fleet(home, extractor="slow_extractor:make", embedder="none"):
            return asyncio.run(measure(home, calls, trials))


def peer(name: str, trials: int, python: str | None) -> dict[str, Any]:
    """What the peer's driver printed, or why there is nothing."""
    packages, driver = PEERS[name]
    folder = Path(tempfile.mkdtemp(prefix=f"at-peer-{name}-", dir="/tmp"))
    try:
        if python is None:
            python = str(folder / "venv" / "bin" / "python")
            for command in (
                [sys.executable, "-m", "venv", str(folder / "venv")],
                [python, "-m", "pip", "install", "--quiet", *packages],
            ):
                made = subprocess.run(command, check=False, capture_output=True, text=True)
                if made.returncode:
                    return {"not measured": f"could not be installed: {made.stderr[-300:]}"}
        environment = {**os.environ, "OPENAI_API_KEY": "x", "MEM0_TELEMETRY": "False"}
        environment["MEM0_DIR"] = str(folder)
        command = [python, str(BENCH / "peers" / driver), "--trials", str(trials)]
        done = subprocess.run(
            command, check=False, env=environment, cwd=folder, capture_output=True, text=True
        )
        if done.returncode:
            return {"not measured": f"its driver failed: {done.stderr[-300:]}"}
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--peer-python", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pythons = dict(each.split("=", 1) for each in options.peer_python)
    figures: dict[str, Any] = {"afterturn": ours(options.trials)}
    if options.peers:
        for name in PEERS:
            figures[name] = peer(name, options.trials, pythons.get(name))
    if options.json:
        print(json.dumps(figures))
    else:
        for name, told in figures.items():
            print(f"{name:10} {', '.join(f'{what}: {value}' for what, value in told.items())}")
    mine = figures["afterturn"]
    good = not any(mine["back"].values()) and not mine["turns behind the erase missing"]
    print(f"afterturn: {sum(mine['back'].values())} came back", "ok" if good else "MISS")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
