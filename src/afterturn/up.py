"""Everything at once: embedded servers where no URL is set, workers, beat, Flower.

`run_up` is the supervisor of the fleet. It starts each part as a child of its own, starts again
what dies, and stops all of them when it is told to; when it is killed itself, the kernel tells
them (Linux). Must run in the main thread of a process without other threads.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from afterturn.embedded.locks import FileLock
from afterturn.errors import AfterturnError, ConfigurationError
from afterturn.fleet import (
    EXIT_MISCONFIGURED,
    EXIT_UNAVAILABLE,
    FleetCommand,
    beat_command,
    flower_command,
    port_is_free,
    with_servers,
    worker_command,
)
from afterturn.jobs.names import EXTRACT_QUEUE, LIFECYCLE_QUEUE, RECORD_QUEUE, SWEEP_QUEUE
from afterturn.processes import Child, Launch, stop_all
from afterturn.settings import Settings

# Slow extraction shares no process with erasing, nor with recording. Each serves its metrics on a
# port of its own, from AFTERTURN_METRICS_PORT on.
WORKERS: Final[dict[str, tuple[str, ...]]] = {
    "record": (RECORD_QUEUE,),
    "extract": (EXTRACT_QUEUE,),
    "lifecycle": (LIFECYCLE_QUEUE, SWEEP_QUEUE),
}
LOG_BYTES_MAX: Final = 10 << 20

_GRACE_SECONDS: Final = 25.0  # a worker's own grace period and a bit
_POLL_SECONDS: Final = 0.1
_PATIENCE_SECONDS: Final = 10.0  # then it is said what keeps a part from its work
_TEND_SECONDS: Final = 5.0
# A part that ends by itself so often in a row, and was never at work, would do so for ever. That
# takes some twenty seconds: longer than a broker's failover, which workers do not survive either.
_CRASHES_MAX: Final = 8
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class UpReport:
    """What runs and where to find it."""

    database_url: str
    broker_url: str
    flower_url: str | None
    flower_refused: str  # why there is no Flower; empty when there is or none was wanted
    not_ready: tuple[str, ...]  # parts that were not at work in time; they are still being started
    logs: Path


def run_up(
    settings: Settings,
    *,
    flower: bool = True,
    on_ready: Callable[[UpReport], None] | None = None,
    on_event: Callable[[str], None] | None = None,
    ready_seconds: float = 60.0,
) -> None:
    """Run the fleet until SIGTERM, SIGINT or SIGHUP; a second one kills what still runs.

    `on_ready` is called once, when the workers consume or `ready_seconds` have passed; `on_event`
    gets a line whenever a part ends or is started again. Raises `ConfigurationError` when a part
    cannot run as things are set or ends again and again before it was ever at work, and when
    another `up` has this home; nothing is left running then.
    """
    logs = _make_directories(settings.home)
    lock = FileLock(settings.home / "up.lock")
    if not lock.try_acquire():
        raise ConfigurationError(
            "Another `afterturn up` has this home",
            detail=str(settings.home),
            hint="Stop it first, or set another AFTERTURN_HOME.",
        )
    try:
        complete = with_servers(settings)
        fleet = _Fleet(settings, complete, logs, on_event or _ignore)
        with fleet.stopping_on_signals():
            fleet.start(flower=flower)
            fleet.await_ready(ready_seconds)
            if on_ready is not None and not fleet.stop_signals:
                on_ready(fleet.report())
            fleet.watch()
    finally:
        lock.release()


@dataclass
class _Part:
    """One child with its log and, for a worker, the file that says it consumes."""

    child: Child
    log: Path
    is_ready: Callable[[], bool]
    ready_file: Path | None = None
    was_ready: bool = False

    def start(self) -> None:
        if self.ready_file is not None:
            self.ready_file.unlink(missing_ok=True)
        _rotate(self.log)
        self.child.start()

    def bound_log(self) -> None:
        """Keep the last full log beside a growing one. The child appends, so it goes on at 0."""
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES_MAX:
            shutil.copyfile(self.log, _older(self.log))
            os.truncate(self.log, 0)


@dataclass
class _Fleet:
    """The parts, from their start to their end."""

    asked: Settings
    settings: Settings  # with both URLs
    logs: Path
    say: Callable[[str], None]
    parts: dict[str, _Part] = field(default_factory=dict)
    stop_signals: int = 0
    flower_refused: str = ""
    tended_at: float = 0.0

    def start(self, *, flower: bool) -> None:
        count = self.settings.worker_concurrency
        first_port = self.settings.metrics_port
        for at, (name, queues) in enumerate(WORKERS.items()):
            file = self.logs / f"{name}.ready"
            command = worker_command(
                queues,
                count,
                name,
                settings=self.settings,
                ready_file=file,
                metrics_port=first_port + at if first_port else 0,
            )
            self._add(name, command, file.exists, file)
        self._add("beat", beat_command(settings=self.settings), lambda: True)
        if flower:
            self._add_flower()
        for part in self.parts.values():
            part.start()

    def await_ready(self, seconds: float) -> None:
        """Wait until every part is at work. Raises `ConfigurationError` when one says it cannot."""
        began = time.monotonic()
        told: set[str] = set()
        while self._not_ready() and time.monotonic() < began + seconds and not self.stop_signals:
            self._poll()
            if time.monotonic() >= began + _PATIENCE_SECONDS:
                for name in set(self._not_ready()) - told:
                    if line := _last_line(self.parts[name].log):
                        self.say(f"{name} is not ready yet: {line}")
                        told.add(name)
            time.sleep(_POLL_SECONDS)

    def watch(self) -> None:
        while not self.stop_signals:
            self._poll()
            self._tend()
            time.sleep(_POLL_SECONDS)

    def report(self) -> UpReport:
        address, port = self.settings.flower_address, self.settings.flower_port
        shown = f"[{address}]" if ":" in address else address
        return UpReport(
            database_url=str(self.settings.database_url),
            broker_url=str(self.settings.broker_url),
            flower_url=f"http://{shown}:{port}" if "flower" in self.parts else None,
            flower_refused=self.flower_refused,
            not_ready=tuple(self._not_ready()),
            logs=self.logs,
        )

    @contextlib.contextmanager
    def stopping_on_signals(self) -> Iterator[None]:
        """Stop signals are counted meanwhile; at the end no part runs, whatever happened."""
        before = {number: signal.signal(number, self._on_signal) for number in _STOP_SIGNALS}
        try:
            yield
        finally:
            stop_all(part.child for part in self.parts.values())
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.stop_signals += 1
        if self.stop_signals > 1:
            for part in self.parts.values():
                part.child.kill()

    def _add(
        self,
        name: str,
        command: FleetCommand,
        is_ready: Callable[[], bool],
        ready_file: Path | None = None,
    ) -> None:
        log = self.logs / f"{name}.log"
        child = Child(
            name,
            command.argv,
            launch=Launch(env=command.env),
            output=log,
            grace_seconds=_GRACE_SECONDS,
        )
        self.parts[name] = _Part(child, log, is_ready, ready_file)

    def _add_flower(self) -> None:
        if self.settings.flower_port == 0:
            port = _any_port(self.settings.flower_address)
            self.settings = self.settings.model_copy(update={"flower_port": port})
        address, port = self.settings.flower_address, self.settings.flower_port
        command = flower_command(self.settings)
        if port_is_free(address, port):
            self._add("flower", command, lambda: _listens(address, port))
            return
        self._refuse_flower(f"{address}:{port} is taken; set AFTERTURN_FLOWER_PORT, 0 for any")

    def _refuse_flower(self, reason: str) -> None:
        self.flower_refused = reason
        self.say(f"flower is not started: {reason}")

    def _poll(self) -> None:
        for name, part in list(self.parts.items()):
            event = part.child.poll()
            part.bound_log()
            part.was_ready = part.was_ready or part.is_ready()
            if event == "exited":
                self._on_exit(name, part)
            elif event == "started":
                self.say(f"{name} is started again")

    def _on_exit(self, name: str, part: _Part) -> None:
        code = part.child.returncode or 0
        is_final = code == EXIT_MISCONFIGURED or (
            code > 0 and code != EXIT_UNAVAILABLE and part.child.failures >= _CRASHES_MAX
        )
        if part.was_ready or not is_final:
            self.say(f"{name} ended with code {code}")
            return
        reason = _last_line(part.log) or "it said nothing"
        if name != "flower":
            raise ConfigurationError("A part of the fleet cannot run", detail=f"{name}: {reason}")
        part.child.request_stop()
        del self.parts[name]
        self._refuse_flower(reason)

    def _tend(self) -> None:
        """Bring the embedded servers' supervisor back, should it have been killed."""
        if time.monotonic() - self.tended_at < _TEND_SECONDS:
            return
        self.tended_at = time.monotonic()
        if self.asked.database_url is None or self.asked.broker_url is None:
            from afterturn.embedded.home import Home

            if not Home(self.asked.home).is_supervised():
                self.say("the embedded servers are gone and are started again")
                try:
                    with_servers(self.asked)
                except AfterturnError as error:
                    self.say(f"they did not start: {error}")

    def _not_ready(self) -> list[str]:
        return [name for name, part in self.parts.items() if not part.was_ready]


def _make_directories(home: Path) -> Path:
    logs = home / "logs"
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        logs.mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigurationError(
            "AFTERTURN_HOME cannot be written", detail=f"{home}: {error.strerror}"
        ) from None
    return logs


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size:
        log.replace(_older(log))


def _older(log: Path) -> Path:
    return log.with_name(f"{log.name}.1")


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else ""


def _any_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _listens(address: str, port: int) -> bool:
    target = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 - compared
    try:
        socket.create_connection((target, port), timeout=0.5).close()
    except OSError:
        return False
    return True


def _ignore(_line: str) -> None:
    return None
