"""What lives in one worker process: a loop thread, the database pool, the runner.

Celery imports this module in the parent and in every child. The parent only registers it: the
pool, its sockets and its thread are made in the child, at its first task, and belong to its pid.
So a worker can start before PostgreSQL does, and no connection ever crosses a fork.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

from celery import signals
from celery.exceptions import SoftTimeLimitExceeded

from afterturn.database import Database
from afterturn.embedding.compose import compose_embedder
from afterturn.extraction.compose import compose_extractor
from afterturn.jobs.names import Kind
from afterturn.jobs.rings import RingPublisher
from afterturn.pipeline.runner import Runner
from afterturn.settings import Settings
from tasks import bridge
from workers import shutdown
from workers.app import TASK_SECONDS
from workers.loop import LoopThread

_CLOSE_SECONDS = 5.0
_ANSWER = "select afterturn.answer_probe($1, $2)"


class WorkerProcess:
    """The parts of the process with this `pid`, made together and closed together."""

    def __init__(self) -> None:
        settings = Settings.load()
        self.pid = os.getpid()
        self._rings = RingPublisher(str(settings.broker_url), settings)
        self._database = Database(
            str(settings.database_url), settings, pool_size=settings.worker_pool_size
        )
        self._runner = Runner(
            self._database,
            settings,
            self._rings,
            compose_extractor(settings),
            compose_embedder(settings),
            stopping=shutdown.is_stopping,
        )
        self._loop = LoopThread()

    def run(self, kind: Kind, ids: Sequence[int]) -> str:
        """Do these jobs on the loop."""
        return self._wait(self._runner.run(kind, ids))

    def sweep(self) -> str:
        """Ring for what waits."""
        return self._wait(self._runner.sweep())

    def probe(self, probe_id: uuid.UUID) -> str:
        """Answer in the database, with the time of this machine."""
        return self._wait(self._answer(probe_id))

    async def _answer(self, probe_id: uuid.UUID) -> str:
        is_asked = await self._database.value(_ANSWER, probe_id, datetime.now(UTC))
        return "answered" if is_asked else "nobody asked"

    def close(self) -> None:
        """Close connections and threads; bounded."""
        self._rings.close(1.0)
        self._loop.close(self._database.close(), _CLOSE_SECONDS)

    def _wait(self, work: Coroutine[Any, Any, str]) -> str:
        try:
            return self._loop.run(work, TASK_SECONDS)
        except SoftTimeLimitExceeded:
            if shutdown.is_stopping():
                return "given back: the worker stops"
            raise


class LazyWork:
    """Work that is set up when it is first asked for, again in each process."""

    def __init__(self) -> None:
        self._made: WorkerProcess | None = None

    def run(self, kind: Kind, ids: Sequence[int]) -> str:
        """See `tasks.bridge.Work`."""
        return self._here().run(kind, ids)

    def sweep(self) -> str:
        """See `tasks.bridge.Work`."""
        return self._here().sweep()

    def probe(self, probe_id: uuid.UUID) -> str:
        """See `tasks.bridge.Work`."""
        return self._here().probe(probe_id)

    def close(self) -> None:
        """Close what this process made, if it made anything."""
        made, self._made = self._made, None
        if made is not None and made.pid == os.getpid():
            made.close()

    def _here(self) -> WorkerProcess:
        if self._made is None or self._made.pid != os.getpid():
            self._made = WorkerProcess()
        return self._made


_work = LazyWork()
bridge.use(_work)


def _on_process_shutdown(**_: Any) -> None:
    _work.close()


signals.worker_process_shutdown.connect(_on_process_shutdown, weak=False)
