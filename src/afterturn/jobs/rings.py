"""Rings: tell the workers that jobs wait, without ever making the caller wait.

A job is a row in PostgreSQL; a ring is a Celery message with its id. `ring` puts ids into memory
and returns. One daemon thread a process sends them. Ids of turns linger a moment so that they
travel together, since a message takes as much processor time as staging a turn; those of
lifecycle jobs go at once. A broken broker gets a pause of one to two seconds after each failure,
and what does not fit is dropped. Whatever is dropped here is found by the sweep a few seconds
later, so nothing is ever sent twice on purpose or kept on disk.

Fork safety: everything mutable sits in a `_Line` that belongs to one pid. A child starts with an
empty line of its own and never touches the parent's sockets or locks; what waited in the parent
is sent by the parent.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from afterturn import metrics
from afterturn.jobs.broker import APP_LOADER, celery_url, producer_settings
from afterturn.jobs.names import QUEUES, RELEASE, TASKS, Kind
from afterturn.settings import Settings

IDS_PER_MESSAGE: Final = 50
# One model call a turn: a batch on one process would leave the others idle.
IDS_PER_SLOW_MESSAGE: Final = 10
QUEUE_MESSAGES_MAX: Final = 5_000
"""A queue this long has no use for more rings; without it an absent worker fills the broker."""

_URGENT: Final[frozenset[Kind]] = frozenset(("flush", "forget", "expire"))
_PAUSE_SECONDS: Final = (1.0, 2.0)


@dataclass(frozen=True)
class RingStats:
    """Counts of ids in this process: `sent`, `failed` (the broker did not take them), `dropped`
    (no room, the queue too long, or closed before they were sent); `waiting` is now."""

    sent: int
    failed: int
    dropped: int
    waiting: int


class RingPublisher:
    """Rings for one broker. Any thread may call it, also one that runs an event loop."""

    def __init__(self, broker_url: str, settings: Settings) -> None:
        self._broker_url = broker_url
        self._settings = settings
        self._lines: dict[int, _Line] = {}

    def ring(self, kind: Kind, ids: Sequence[int]) -> None:
        """Announce jobs. Never blocks and never raises; see `stats` for what became of them."""
        self._line().add(kind, ids)

    def close(self, timeout: float = 1.0) -> None:
        """Send what waits, for at most `timeout` seconds, and stop; later rings are dropped.

        Blocks that long at most, whatever the broker does. Closing twice is legal.
        """
        self._line().close(timeout)

    def stats(self) -> RingStats:
        """The counts so far, of this process only."""
        return self._line().stats()

    def _line(self) -> _Line:
        pid = os.getpid()
        line = self._lines.get(pid)
        # setdefault is atomic: of two threads that come here first, both get the same line. The
        # parent's line stays referenced, so that the child never closes the parent's sockets.
        return line or self._lines.setdefault(pid, _Line(self._broker_url, self._settings))


@dataclass
class _Waiting:
    """Ids of one kind, in order, and when they have lingered long enough."""

    ids: dict[int, None]
    due_at: float


class _Line:
    """The ids that wait in one process, and the thread that sends them."""

    def __init__(self, broker_url: str, settings: Settings) -> None:
        self._settings = settings
        self._connector = _Connector(broker_url, settings)
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._waiting: dict[Kind, _Waiting] = {}
        self._count = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._paused_until = 0.0
        self._sent = self._failed = self._dropped = 0

    def add(self, kind: Kind, ids: Sequence[int]) -> None:
        with self._changed:
            if self._closed or not self._thread_runs():
                metrics.RINGS.labels("dropped").inc(len(ids))
                self._dropped += len(ids)
                return
            now = time.monotonic()
            linger = 0.0 if kind in _URGENT else self._settings.ring_linger_seconds
            waiting = self._waiting.get(kind) or _Waiting({}, now + linger)
            for number in ids:
                if number in waiting.ids:
                    continue
                if self._count >= self._settings.rings_max:
                    metrics.RINGS.labels("dropped").inc()
                    self._dropped += 1
                    continue
                waiting.ids[number] = None
                self._count += 1
            if not waiting.ids:
                return
            if len(waiting.ids) >= _ids_per_message(kind):
                waiting.due_at = min(waiting.due_at, now)
            is_first = not self._waiting
            self._waiting[kind] = waiting
            if is_first or waiting.due_at <= now:  # others let a lingering thread sleep on
                self._changed.notify()

    def stats(self) -> RingStats:
        with self._changed:
            return RingStats(self._sent, self._failed, self._dropped, self._count)

    def close(self, timeout: float) -> None:
        with self._changed:
            self._closed = True
            self._closing.set()
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(max(0.0, timeout))
        with self._changed:
            self._forget_waiting()

    def _thread_runs(self) -> bool:
        """Whether somebody will send; starts the thread when none does."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="afterturn-rings", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is shutting down, or there are too many
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            kind, ids = batch
            try:
                taken = self._connector.send(kind, ids)
            except Exception:  # noqa: BLE001 - whatever the client raises, the sweep rings again
                self._connector.disconnect()
                metrics.RINGS.labels("failed").inc(len(ids))
                with self._changed:
                    self._failed += len(ids)
                    self._paused_until = time.monotonic() + random.uniform(*_PAUSE_SECONDS)
            else:
                metrics.RINGS.labels("sent" if taken else "dropped").inc(len(ids))
                with self._changed:
                    self._sent += len(ids) if taken else 0
                    self._dropped += 0 if taken else len(ids)
        self._connector.disconnect()

    def _next(self) -> tuple[Kind, list[int]] | None:
        """Wait for ids and take those of one kind; `None` when the thread is to end."""
        with self._changed:
            while not self._closed:
                due_at = min((each.due_at for each in self._waiting.values()), default=None)
                wait = None if due_at is None else due_at - time.monotonic()
                if wait is not None and wait <= 0:
                    break
                self._changed.wait(wait)
        while (pause := self._paused_until - time.monotonic()) > 0 and not self._closed:
            self._closing.wait(pause)
        with self._changed:
            if self._closed and self._paused_until > time.monotonic():
                self._forget_waiting()
            return self._take()

    def _take(self) -> tuple[Kind, list[int]] | None:
        """Of the kind that is due first; what is left of it queues behind the others."""
        if not self._waiting:
            return None
        kind = min(self._waiting, key=lambda kind: self._waiting[kind].due_at)
        waiting = self._waiting.pop(kind)
        taken = list(waiting.ids)[: _ids_per_message(kind)]
        for number in taken:
            del waiting.ids[number]
        if waiting.ids:
            self._waiting[kind] = _Waiting(waiting.ids, time.monotonic())
        self._count -= len(taken)
        return kind, taken

    def _forget_waiting(self) -> None:
        metrics.RINGS.labels("dropped").inc(self._count)
        self._dropped += self._count
        self._count = 0
        self._waiting.clear()


def _ids_per_message(kind: Kind) -> int:
    return IDS_PER_SLOW_MESSAGE if kind == "extract" else IDS_PER_MESSAGE


class _Connector:
    """The Celery app and the one connection of a line; used by the line's thread alone.

    No pool: Celery's producer pools are global and survive a fork, sockets included.
    """

    def __init__(self, broker_url: str, settings: Settings) -> None:
        self._broker_url = broker_url
        self._settings = settings
        self._app: Any = None
        self._connection: Any = None
        self._producer: Any = None

    def send(self, kind: Kind, ids: list[int]) -> bool:
        """Publish one message; False when its queue is too long. Raises what Celery raises."""
        if self._producer is None:
            self._connect()
        queue = QUEUES[kind]
        if self._producer.channel.queue_declare(queue).message_count >= QUEUE_MESSAGES_MAX:
            return False
        self._app.send_task(
            TASKS[kind],
            args=[ids],
            kwargs={"release": RELEASE},
            queue=queue,
            producer=self._producer,
            retry=False,
            ignore_result=True,
        )
        return True

    def disconnect(self) -> None:
        """Drop the connection, if there is one; the next `send` makes another."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.collect(self._settings.broker_timeout_seconds)

    def _connect(self) -> None:
        if self._app is None:
            self._app = _celery_app(self._broker_url, self._settings)
        # The URL is given outright: CELERY_BROKER_URL of the host application wins otherwise.
        self._connection = self._app.connection_for_write(celery_url(self._broker_url))
        self._producer = self._app.amqp.Producer(self._connection)


def _celery_app(broker_url: str, settings: Settings) -> Any:
    """An app apart from the host's: not its current app, none of its configuration."""
    with _no_fork():
        import kombu.transport.redis  # noqa: F401 - Celery imports it when it connects
        from celery import Celery

        app = Celery("afterturn", loader=APP_LOADER, fixups=(), set_as_current=False)
        app.conf.update(producer_settings(broker_url, settings))
        # Made when they are first used, each with imports of its own.
        _ = app.amqp.send_task_message, app.AsyncResult, app.backend
        return app


_importing = threading.RLock()  # only its holder can release it, so a wait in vain is harmless
_FORK_WAIT_SECONDS: Final = 5.0


@contextlib.contextmanager
def _no_fork() -> Iterator[None]:
    """Holds up a fork meanwhile: a child would inherit half-imported modules, locked for ever."""
    with _importing:
        yield


def _before_fork() -> None:
    _importing.acquire(timeout=_FORK_WAIT_SECONDS)


def _after_fork_in_parent() -> None:
    with contextlib.suppress(RuntimeError):
        _importing.release()


def _after_fork_in_child() -> None:
    global _importing  # noqa: PLW0603 - the old one may belong to a thread that is not here
    _importing = threading.RLock()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
