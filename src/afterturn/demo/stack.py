"""The demo's own fleet: `afterturn up` as a child, in a home and an environment of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from afterturn import embedded
from afterturn.errors import MemoryUnavailable
from afterturn.fleet import port_is_free
from afterturn.processes import Launch, spawn
from afterturn.settings import PREFIX, Settings

# What the user may have set for afterturn is not meant for the demo, except where binaries are.
_KEPT: Final = frozenset(
    f"{PREFIX}{name}" for name in ("POSTGRES_BIN", "VALKEY_SERVER", "ROOT_MODE")
)
_FLOWER: Final = ("127.0.0.1", 5555)
_STOP_SECONDS: Final = 40.0


@dataclass(frozen=True)
class Stack:
    """A running fleet. `settings` reach its servers from this process."""

    settings: Settings
    flower_url: str | None
    logs: Path
    process: subprocess.Popen[bytes]

    def watch(self, on_line: Callable[[str], None]) -> None:
        """Pass on what the fleet says until it ends."""
        assert self.process.stdout is not None  # noqa: S101 - a pipe was asked for
        for line in self.process.stdout:
            on_line(line.decode(errors="replace").rstrip())


@contextlib.contextmanager
def running(home: Path | None) -> Iterator[Stack]:
    """Everything, started and ready; afterwards all of it has ended.

    Without `home` a folder under /tmp is used (socket paths are short) and removed. Raises
    `MemoryUnavailable` with the fleet's own words when it does not start.
    """
    place = home or Path(tempfile.mkdtemp(prefix="afterturn-demo-", dir="/tmp"))
    place = place.expanduser().absolute()
    with _only_ours_set(place), contextlib.ExitStack() as undo:
        if home is None:
            undo.callback(shutil.rmtree, place, ignore_errors=True)
        undo.callback(embedded.stop, place)
        process = _start()
        undo.callback(_stop, process)
        report = _await_report(process)
        require_ready(report)
        settings = Settings(database_url=report["database_url"], broker_url=report["broker_url"])
        yield Stack(settings, report["flower_url"], Path(report["logs"]), process)


@contextlib.contextmanager
def _only_ours_set(home: Path) -> Iterator[None]:
    """The settings of the environment are the demo's meanwhile, here and in its children."""
    before = {name: os.environ[name] for name in os.environ if name.startswith(PREFIX)}
    for name in before.keys() - _KEPT:
        del os.environ[name]
    ours = {"HOME": str(home), "WORKER_CONCURRENCY": "1"}
    ours["FLOWER_PORT"] = str(_FLOWER[1]) if port_is_free(*_FLOWER) else "0"
    os.environ.update({PREFIX + name: value for name, value in ours.items()})
    try:
        yield
    finally:
        for name in ours:
            del os.environ[PREFIX + name]
        os.environ.update(before)


def _start() -> subprocess.Popen[bytes]:
    command = (sys.executable, "-P", "-m", "afterturn.cli", "up", "--json")
    return spawn(command, Launch(), stdout=subprocess.PIPE)


def _await_report(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The JSON object that `up` prints once all is ready; lines before it are its worries."""
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    said: list[str] = []
    document = ""
    for raw in process.stdout:
        line = raw.decode(errors="replace")
        if line.startswith("{") or document:
            document += line
            if line.startswith("}"):
                report: dict[str, Any] = json.loads(document)
                return report
        else:
            said.append(line.strip())
    raise MemoryUnavailable(
        "The demo's servers and workers did not start",
        detail="; ".join(said[-3:]).removeprefix("error: ")[:600],
    )


def require_ready(report: dict[str, Any]) -> None:
    """Raise with the last words of the parts that are not at work: their logs go with the home."""
    said = []
    for name in report["not_ready"]:
        log = Path(report["logs"], f"{name}.log")
        lines = log.read_text("utf-8", "replace").split("\n") if log.exists() else []
        said.append(f"{name}: {next((each for each in reversed(lines) if each.strip()), 'silent')}")
    if said:
        raise MemoryUnavailable("Parts of the demo did not start", detail="; ".join(said)[:600])


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    if process.stdout is not None:
        process.stdout.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
