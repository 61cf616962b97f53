"""What the benches share: servers of their own, the whole fleet on them, turns to hand over."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg

from afterturn import Memory, MemoryScope, Settings, embedded
from afterturn.fleet import worker_command
from afterturn.jobs.names import ALL_QUEUES

BENCH: Final = Path(__file__).resolve().parent
IN_FLIGHT: Final = 8
ROOT: Final = MemoryScope.of("bench")
_RECORDED: Final = "select count(*) from afterturn.turns where recorded_at is not null"


@contextmanager
def own_home() -> Iterator[Path]:
    """A home whose servers and files are gone afterwards, also when the benchmark is stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    home = Path(tempfile.mkdtemp(prefix="at-bench-", dir="/tmp"))
    try:
        yield home
    finally:
        embedded.stop(home)
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def fleet(home: Path, *, flower: bool = False, **settings: object) -> Iterator[dict[str, Any]]:
    """`afterturn up` on this home; what it said when the workers were ready.

    Started here, so that an extractor of this folder is found.
    """
    command = [str(Path(sys.executable).with_name("afterturn")), "up", "--json"]
    command += [] if flower else ["--no-flower"]
    own = {f"AFTERTURN_{name.upper()}": str(value) for name, value in settings.items()}
    environment = {**os.environ, "AFTERTURN_HOME": str(home), **own}
    with subprocess.Popen(
        command, env=environment, cwd=BENCH, stdout=subprocess.PIPE, text=True
    ) as up:
        assert up.stdout is not None
        told = ""
        try:
            for line in up.stdout:
                told += line
                if line.rstrip() == "}":
                    break
            else:
                raise RuntimeError("afterturn up ended before it was ready")
            yield {**json.loads(told), "pid": up.pid}
        finally:
            up.terminate()
            up.stdout.read()


@contextmanager
def worker(
    settings: Settings, folder: Path, name: str, queues: Sequence[str] = ALL_QUEUES
) -> Iterator[None]:
    """A worker that consumes from these queues; modules in `folder` are found."""
    ready = folder / f"{name}.ready"
    command = worker_command(queues, name=name, settings=settings, ready_file=ready)
    environment = {**command.env, "PYTHONPATH": f"{command.env['PYTHONPATH']}{os.pathsep}{folder}"}
    with (
        (folder / f"{name}.log").open("wb") as log,
        subprocess.Popen(
            command.argv, env=environment, cwd=folder, stdout=log, stderr=log
        ) as process,
    ):
        try:
            while not ready.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"the worker ended: {(folder / f'{name}.log').read_text()}")
                time.sleep(0.05)
            yield
        finally:
            process.kill()


async def hand_over(memory: Memory, turns: int, scopes: int, *, first: int = 0) -> None:
    """Turns of many users, several in flight, as one serving process has them."""
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def one(number: int) -> None:
        async with gate, memory.turn(ROOT.child(f"u{number % scopes}")) as turn:
            await turn.finish(
                f"I moved flat number {number} last week and I like the view over the river.",
                f"Noted: flat {number}, with a view. Anything else that I should remember?",
            )

    await asyncio.gather(*(one(number) for number in range(first, first + turns)))


async def await_recorded(database: asyncpg.Connection[Any], turns: int) -> None:
    """Until so many turns are recorded and readable."""
    while await database.fetchval(_RECORDED) < turns:
        await asyncio.sleep(0.01)
