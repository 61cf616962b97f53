"""Serves a worker's metrics from a process of its own.

The processes of a worker write their counts into mapped files of one directory; this one reads
them at each scrape and adds the ledger's state. So the worker's main process keeps no socket and
no thread that a fork would copy.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.multiprocess import MultiProcessCollector

from afterturn.metrics.ledger import LedgerCollector
from afterturn.settings import Settings

_LOOK_SECONDS: Final = 0.5


def serve(settings: Settings, directory: Path) -> None:
    """Serve on AFTERTURN_METRICS_ADDRESS and _PORT for as long as the parent lives.

    The directory is removed at the end.
    """
    parent = os.getppid()
    signal.signal(signal.SIGTERM, _leave)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(directory))  # type: ignore[no-untyped-call]  # it has no types
    registry.register(LedgerCollector(settings))
    try:
        server, thread = start_http_server(
            settings.metrics_port, addr=settings.metrics_address, registry=registry
        )
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            while os.getppid() == parent:
                time.sleep(_LOOK_SECONDS)
        server.shutdown()
        server.server_close()
        thread.join()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)
