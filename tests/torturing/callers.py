"""The calling processes: started, killed, started again with a new life."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

CAST: Final = {"talker": 3, "eraser": 1, "reader": 2, "listener": 1}


@dataclass
class Callers:
    """All of them. `victims` may be killed; the listener only listens."""

    script: Path
    notes: Path
    env: dict[str, str]
    seed: int
    lives: dict[tuple[str, int], int] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)  # ends that nobody asked for
    _running: dict[tuple[str, int], subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self) -> None:
        """Start one of each that does not run; those that died get a new life."""
        for role, count in CAST.items():
            for index in range(count):
                process = self._running.get((role, index))
                if process is not None and process.poll() not in (None, -signal.SIGKILL):
                    self.ended.append(f"{role}-{index} ended with {process.returncode}")
                if process is None or process.poll() is not None:
                    self._start(role, index)

    def pids(self) -> list[int]:
        """Those that may be hit."""
        return [p.pid for (role, _), p in self._running.items() if role != "listener"]

    def stop(self, seconds: float) -> None:
        """Let each finish what it does, then kill."""
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        for process in self._running.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def _start(self, role: str, index: int) -> None:
        life = self.lives.get((role, index), -1) + 1
        self.lives[(role, index)] = life
        arguments = ["--role", role, "--index", str(index), "--life", str(life)]
        arguments += ["--seed", str(self.seed), "--notes", str(self.notes)]
        with (self.notes / f"{role}-{index}.err").open("ab") as err:
            self._running[(role, index)] = subprocess.Popen(
                [sys.executable, str(self.script), *arguments],
                stdin=subprocess.DEVNULL, stdout=err, stderr=err, env=self.env,
            )  # fmt: skip
