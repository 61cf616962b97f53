"""The fleet under torture: `afterturn up` in a home of its own, and who is who in it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil  # type: ignore[import-untyped]  # it ships no types

LEASE_SECONDS: Final = 4.0
FLOWER_LOGIN: Final = "torture:torture"
_SETTINGS: Final = {
    "EXTRACTOR": "thinker:build",
    "LEASE_SECONDS": str(LEASE_SECONDS),
    "SWEEP_SECONDS": "1",
    "RETRY_BASE_SECONDS": "0.2",
    "RETRY_CAP_SECONDS": "2",
    "MODEL_TIMEOUT_SECONDS": "2",
    "CONNECT_TIMEOUT_SECONDS": "3",
    "COMMAND_TIMEOUT_SECONDS": "15",
    "WAIT_TIMEOUT_SECONDS": "20",
    "CHUNK_ROWS": "25",
    "FLOWER_PORT": "0",
    "FLOWER_BASIC_AUTH": FLOWER_LOGIN,
}
_ENDED: Final = re.compile(r"^(\w+) ended with code (-?\d+)$", re.MULTILINE)
_EXPECTED_ENDS: Final = (-9, 75)  # killed by us; the servers were out of reach when it started
# Celery gives up when a child is killed before its first turn of the loop, and when a failover
# makes its broker a replica.
_EXPECTED_WORDS: Final = (
    "Could not start worker processes",
    "server:ReadOnlyError",
    "server:ResponseError",
)


def environment(home: Path) -> dict[str, str]:
    """The environment of every process of the run; nothing of the shell's settings is kept."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("AFTERTURN_")}
    own = {f"AFTERTURN_{name}": value for name, value in _SETTINGS.items()}
    return {
        **kept,
        **own,
        "AFTERTURN_HOME": str(home),
        "PYTHONPATH": str(Path(__file__).with_name("extractor")),  # where workers find it
    }


@dataclass
class Fleet:
    """`afterturn up`, started again whenever it is gone."""

    home: Path
    notes: Path
    env: dict[str, str]
    starts: int = 0
    ended: list[str] = field(default_factory=list)  # ends that nobody asked for
    _process: subprocess.Popen[bytes] | None = None
    _expected_end: bool = False
    _err_read: int = 0

    def start(self) -> None:
        """Start it; it writes one JSON object when it is ready."""
        self.starts += 1
        command = [str(Path(sys.executable).with_name("afterturn")), "up", "--json"]
        with self._out().open("wb") as out, self._out(".err").open("wb") as err:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self.env,
                cwd=self.notes, start_new_session=True,
            )  # fmt: skip
        self._expected_end = False
        self._err_read = 0

    def keep_running(self) -> None:
        """Start it again if it ended; an end that no fault explains is remembered."""
        self.note_deaths()
        if self._process is None or self._process.poll() is None:
            return
        if not self._expected_end:
            self.ended.append(f"up ended with {self._process.returncode}: {self._last_words()}")
        self.start()

    def note_deaths(self) -> None:
        """Remember parts that ended by themselves, and keep what they said last."""
        with contextlib.suppress(OSError):
            told = self._out(".err").read_text("utf-8", "replace")
            fresh, self._err_read = told[self._err_read :], len(told)
            for name, code in _ENDED.findall(fresh):
                if int(code) not in _EXPECTED_ENDS:
                    self._note_death(name, code)

    def _note_death(self, name: str, code: str) -> None:
        logs = sorted((self.home / "logs").glob(f"{name}.log*"))
        said = "".join(log.read_text("utf-8", "replace") for log in logs)
        if any(words in said for words in _EXPECTED_WORDS):
            return
        self.ended.append(f"{name} of up {self.starts} ended with {code}")
        for log in logs:
            shutil.copy(log, self.notes / f"{log.name}-{len(self.ended)}.dead")

    def wait_ready(self, seconds: float) -> dict[str, Any]:
        """What `up` said when it was ready. Raises `TimeoutError`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.keep_running()
            with contextlib.suppress(ValueError):
                report: dict[str, Any] = json.loads(self._out().read_text())
                return report
            time.sleep(0.1)
        raise TimeoutError(f"the fleet was not ready in {seconds:g} s: {self._last_words()}")

    def flower_url(self) -> str | None:
        """Where the Flower of the present `up` listens, once it said so."""
        try:
            url: str | None = json.loads(self._out().read_text())["flower_url"]
        except (OSError, ValueError):
            return None
        return url

    def kill(self) -> bool:
        """kill -9 `up` itself."""
        if self._process is None or self._process.poll() is not None:
            return False
        self._expected_end = True
        self._process.kill()
        self._process.wait()
        return True

    def stop(self, seconds: float = 45.0) -> str:
        """End it as an operator does; what went wrong, empty when nothing did."""
        process, self._process = self._process, None
        if process is None:
            return ""
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"up did not stop within {seconds:g} s"
        return f"up stopped with {code}" if code else ""

    @property
    def pid(self) -> int | None:
        """Of `up`."""
        return self._process.pid if self._process else None

    def parts(self) -> dict[str, list[psutil.Process]]:
        """The processes of the fleet by what they are: `record`, `record child`, `beat`, …"""
        found: dict[str, list[psutil.Process]] = {}
        for process in processes_of(self.home):
            for name in _role(process):
                found.setdefault(name, []).append(process)
        return found

    def servers(self) -> dict[str, int]:
        """The processes of the embedded servers, as their home tells; also one that hangs."""
        try:
            state = json.loads((self.home / "services.json").read_text())
        except (OSError, ValueError):
            return {}
        pids = {name: server["pid"] for name, server in state["servers"].items()}
        return {n: p for n, p in {**pids, "supervisor": state["supervisor_pid"]}.items() if p}

    def _out(self, ending: str = ".json") -> Path:
        return self.notes / f"up-{self.starts}{ending}"

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            return self._out(".err").read_text("utf-8", "replace")[-300:].strip()
        return ""


def processes_of(home: Path) -> list[psutil.Process]:
    """Every living process that names the home in its command or environment, or works in it."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and _is_of(process, str(home)):
                found.append(process)
    return found


def _is_of(process: psutil.Process, home: str) -> bool:
    if any(home in part for part in process.cmdline()):
        return True
    with contextlib.suppress(psutil.Error):
        if process.cwd().startswith(home):
            return True
    with contextlib.suppress(psutil.Error):
        return bool(process.environ().get("AFTERTURN_HOME") == home)
    return False


def _role(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        command = process.cmdline()
        for name in ("beat", "flower"):
            if command[-2:] == ["workers", name]:
                return [name]
        if "worker" in command and "--name" in command:
            name = command[command.index("--name") + 1]
            parent = process.parent()
            is_child = parent is not None and parent.cmdline() == command
            return [f"{name} child", "child"] if is_child else [name, "worker"]
    return []
