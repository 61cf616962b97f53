"""A worker of the fleet as it is, except that its runner only writes down what it is asked.

`record` answers at once; `extract` waits until the file `gate` exists; `flush` fails with a text
that must not get anywhere; `expire` asks PostgreSQL something first.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import workers.app
import workers.database
import workers.process
import workers.shutdown
from afterturn.errors import MemoryUnavailable
from workers.__main__ import main


class StubRunner:
    """Stands in for `afterturn.pipeline.runner.Runner`."""

    def __init__(self, database: Any, *_others: Any, **_more: Any) -> None:
        self._database = database

    async def run(self, kind: str, ids: Sequence[int]) -> str:
        _write_down(kind, ids)
        if kind == "extract":
            await asyncio.to_thread(_wait_for_gate)
        if kind == "flush":
            marker = os.environ["FLEET_TEST_MARKER"]
            raise MemoryUnavailable(marker, detail=marker)
        if kind == "expire":
            async with self._database.connection() as connection:
                await connection.fetchval("select 1")
        return f"{kind} {len(ids)}"

    async def sweep(self) -> str:
        _write_down("sweep", [])
        return "rang 0"


def _wait_for_gate() -> None:
    gate = Path(os.environ["FLEET_TEST_DIRECTORY"], "gate")
    while not gate.exists():
        time.sleep(0.02)


def _write_down(kind: str, ids: Sequence[int]) -> None:
    with Path(os.environ["FLEET_TEST_CALLS"]).open("a") as calls:
        calls.write(json.dumps([kind, list(ids), os.getpid()]) + "\n")


if "FLEET_TEST_REAL_RUNNER" not in os.environ:
    vars(workers.process)["Runner"] = StubRunner
    # What the stub is asked needs no tables, and some of it no database.
    vars(workers.database)["await_database"] = lambda *_: None

if __name__ == "__main__":
    if grace := os.environ.get("FLEET_TEST_GRACE_SECONDS"):
        workers.shutdown.GRACE_SECONDS = float(grace)  # type: ignore[misc]
    if os.environ.get("FLEET_TEST_SPAWN"):
        fork = workers.app._worker_settings
        workers.app._worker_settings = lambda settings: (
            fork(settings) | {"worker_pool_start_method": "spawn"}
        )
    sys.exit(main())
