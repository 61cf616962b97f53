"""Processes of a server that outlived the one that ran it: find them, and end them.

Normally there are none: the kernel ends the servers with their supervisor. What is left is a
backend that is slow to notice that its postmaster was killed, or, where there is no parent-death
signal (macOS), a whole server.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it ships no types

_ASK_SECONDS = 1.0
_ASK_HARDER_SECONDS = 5.0
_KILL_SECONDS = 30.0
_KILL_ORPHANS_SECONDS = 2.0  # without their leader they can do nothing useful


def processes_in(directory: Path) -> list[psutil.Process]:
    """Living processes that work in `directory`, as servers do in their data; no zombies."""
    found = []
    for process in psutil.process_iter():
        try:
            works_there = process.cwd() == str(directory)
        except psutil.Error:  # gone, a zombie, or another user's
            continue
        if works_there and shares_our_files(process):
            found.append(process)
    return found


def shares_our_files(process: psutil.Process) -> bool:
    """Whether a path means the same to it as to us: it may be in a container on this machine."""
    if sys.platform != "linux":
        return True
    try:
        theirs, ours = (Path(f"/proc/{pid}/ns/mnt").readlink() for pid in (process.pid, "self"))
    except OSError:
        return False
    return theirs == ours


class Eviction:
    """Ends what still works in a directory: waits, asks twice, and in the end kills.

    `pid_file` names the process that leads the others; without one there is only the leader.
    """

    def __init__(
        self,
        directory: Path,
        ask: signal.Signals,
        ask_harder: signal.Signals,
        pid_file: Path | None = None,
    ) -> None:
        self._directory = directory
        self._ask = ask
        self._ask_harder = ask_harder
        self._pid_file = pid_file
        self._asked: set[tuple[int, signal.Signals]] = set()

    def press(self, waited_seconds: float) -> None:
        """Do what is due after so long a wait; to be called again until nothing is left."""
        if waited_seconds < _ASK_SECONDS:
            return
        processes = processes_in(self._directory)
        leader = self._leader(processes)
        patience = _KILL_SECONDS if leader is not None else _KILL_ORPHANS_SECONDS
        for process in processes:
            if waited_seconds > patience:
                _send(process, signal.SIGKILL)
            elif process == leader:
                self._ask_once(
                    process,
                    self._ask_harder if waited_seconds > _ASK_HARDER_SECONDS else self._ask,
                )

    def _ask_once(self, process: psutil.Process, number: signal.Signals) -> None:
        if (process.pid, number) not in self._asked:
            self._asked.add((process.pid, number))
            _send(process, number)

    def _leader(self, processes: list[psutil.Process]) -> psutil.Process | None:
        """The process that ends the others when it ends: the one in the pid file, or the first."""
        if self._pid_file is None:
            return processes[0] if processes else None
        try:
            pid = int(self._pid_file.read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None
        return next((process for process in processes if process.pid == pid), None)


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.Error):  # it may have gone by itself
        process.send_signal(number)
