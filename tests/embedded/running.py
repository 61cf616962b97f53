"""What these tests watch: processes, rows, and keys of embedded servers."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import psutil  # type: ignore[import-untyped]  # it ships no types
import redis

from afterturn.embedded import EmbeddedServers, redis_client_url

DEADLINE_SECONDS = 60.0

CLIENT = """
import sys
from afterturn import embedded
found = embedded.ensure(sys.argv[1], linger_seconds=float(sys.argv[2]), durable=False)
print(found.supervisor_pid, found.postgres_pid, found.valkey_pid, flush=True)
sys.stdin.readline()
"""


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Poll until it holds; fail after a deadline far beyond any honest wait."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"never: {what}")
        time.sleep(0.02)


def is_gone(pid: int | None) -> bool:
    """Whether no such process runs; a zombie does not run."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def all_gone(servers: EmbeddedServers) -> bool:
    """Whether neither supervisor nor server runs any more."""
    return all(
        is_gone(pid) for pid in (servers.supervisor_pid, servers.postgres_pid, servers.valkey_pid)
    )


def remove(home: Path) -> None:
    """Delete it under its servers, which may make a file meanwhile: then once more."""

    def is_removed() -> bool:
        shutil.rmtree(home, ignore_errors=True)
        return not home.exists()

    wait_until(is_removed, "the home was removed")


def execute(servers: EmbeddedServers, *statements: str) -> Any:
    """Run SQL in one connection; the first value of the last statement."""

    async def run() -> Any:
        connection = await asyncpg.connect(servers.database_url)
        try:
            for statement in statements[:-1]:
                await connection.execute(statement)
            return await connection.fetchval(statements[-1])
        finally:
            await connection.close()

    return asyncio.run(run())


def broker(servers: EmbeddedServers) -> redis.Redis:
    """A client of the broker; use it in a `with`."""
    assert servers.broker_url is not None
    return redis.Redis.from_url(redis_client_url(servers.broker_url), decode_responses=True)


def start_script(script: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A Python process with pipes; use it in a `with`."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def start_client(home: Path, linger_seconds: float = 0.2) -> subprocess.Popen[str]:
    """A process that has the servers until a line is written to it."""
    return start_script(CLIENT, home, linger_seconds)


def answer(process: subprocess.Popen[str]) -> str:
    """Its next line."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def let_go(process: subprocess.Popen[str]) -> None:
    """Let it end, and see that it ends well."""
    process.communicate("\n", timeout=DEADLINE_SECONDS)
    assert process.returncode == 0


def send(pid: int | None, number: int) -> None:
    """Send a signal to a process that is known to be there."""
    assert pid is not None
    os.kill(pid, number)


def working_below(path: Path) -> list[str]:
    """Names of the living processes whose directory or arguments lie in `path`."""
    found = []
    for process in psutil.process_iter():
        try:
            places = [process.cwd(), *process.cmdline()]
        except psutil.Error:
            continue
        if any(place.startswith(str(path)) for place in places):
            found.append(f"{process.pid} {places}")
    return found
