"""Keep commands running: start them, restart the ones that die, stop them all in good order.

A `Child` is one command in a session of its own. Its owner calls `poll()` a few times a second:
that notices a death, waits a little longer after each one in a row, and starts the command again.
On Linux a child gets its death signal when the *thread* that started it ends, even by kill -9, so
start children from the main thread, and from a process without other threads: the child sets
itself up between fork and exec.

    stopped ──start()──▶ running ──dies──▶ waiting ──delay over──▶ running …
       ▲                    │                 │
       └──────stop()────────┴─────────────────┘
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, TextIO

ChildEvent = Literal["started", "exited"]
Output = IO[bytes] | IO[str] | int | None

# Loaded before any fork: a child between fork and exec must not load libraries.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
_ECHO_BYTES = 1 << 16  # the most in a pipe, and the longest line before it is broken
_ECHO_READS = 16


@dataclass(frozen=True)
class RestartPolicy:
    """How long to wait before a restart; `None` as the first delay means: never restart."""

    first_seconds: float | None = 0.1
    cap_seconds: float = 5.0
    steady_seconds: float = 30.0  # a command that ran this long starts over at the first delay

    def delay(self, failures: int) -> float | None:
        """Seconds to wait after the given number of deaths in a row (1 or more)."""
        if self.first_seconds is None:
            return None
        return min(self.cap_seconds, self.first_seconds * 2.0 ** min(failures - 1, 16))


@dataclass(frozen=True)
class Launch:
    """How a process is started: environment, directory, and what it does to itself before exec."""

    env: Mapping[str, str] | None = None
    cwd: str | Path | None = None
    death_signal: signal.Signals = signal.SIGTERM
    account: tuple[int, int] | None = None  # uid and gid to become; needs root
    in_child: Callable[[], None] | None = None  # runs after that, before the death signal is set


def spawn(
    command: Sequence[str | Path],
    launch: Launch,
    *,
    stdout: Output = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `command` in its own session, its stderr joined to stdout, its stdin empty.

    Raises `OSError` when it cannot be executed, `subprocess.SubprocessError` when setting the
    child up failed.
    """
    parent = os.getpid()

    def before_exec() -> None:
        if launch.in_child is not None:
            launch.in_child()
        _die_with(parent, launch.death_signal)

    uid, gid = launch.account or (None, None)
    return subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        env=launch.env,
        cwd=launch.cwd,
        user=uid,
        group=gid,
        extra_groups=[] if launch.account else None,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=before_exec,  # noqa: PLW1509 - the owner has one thread, see the module
    )


def lock_for_child(path: Path) -> int | None:
    """Lock `path` and return the descriptor to hand to a child, or `None` when it is locked.

    The lock lasts until every process that got the descriptor has ended or closed it.
    """
    guard = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(guard)
        return None
    return guard


def _die_with(parent: int, death_signal: signal.Signals) -> None:
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != parent:  # it died before the signal was armed
        os._exit(1)


@dataclass
class _Echo:
    """Copies a child's output line by line, each with the child's name in front."""

    source: IO[bytes]
    target: TextIO
    prefix: str
    rest: bytes = field(default=b"")

    def __post_init__(self) -> None:
        os.set_blocking(self.source.fileno(), False)

    def pump(self, *, last: bool = False) -> None:
        for _ in range(_ECHO_READS):  # not endlessly: a child may write faster than we read
            try:
                chunk = os.read(self.source.fileno(), _ECHO_BYTES)
            except BlockingIOError:
                break
            self.rest += chunk
            if not chunk:
                break
        *lines, self.rest = self.rest.split(b"\n")
        if self.rest and (last or len(self.rest) > _ECHO_BYTES):
            lines, self.rest = [*lines, self.rest], b""
        if last:
            self.source.close()
        for line in lines:
            self.target.write(f"{self.prefix}{line.decode(errors='replace')}\n")
        if lines:
            self.target.flush()


class Child:
    """One command that is kept running.

    `output` is a file to append to, a text stream (lines get `prefix` in front; they are copied
    whenever `poll` runs), or `None` for the owner's own output. With `lock_path` the process and
    whatever it forks hold that file locked for as long as one of them lives, and no new one is
    started before: two generations never run side by side. `before_start` runs in the owner ahead
    of every start, with that lock held. Who does not end within `grace_seconds` of `stop_signal`
    gets `harder_signal`, if there is one, and as long again, and then is killed.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        launch: Launch | None = None,
        output: Path | TextIO | None = None,
        prefix: str | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        harder_signal: signal.Signals | None = None,
        grace_seconds: float = 10.0,
        restart: RestartPolicy | None = None,
        lock_path: Path | None = None,
        before_start: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.failures = 0  # deaths in a row, none of them after a steady run
        self.restarts = 0
        self.returncode: int | None = None  # of the last run; negative: ended by that signal
        self.stop_signal = stop_signal
        self.harder_signal = harder_signal
        self.grace_seconds = grace_seconds
        self._launch = launch or Launch()
        self._output = output
        self._prefix = f"{name} | " if prefix is None else prefix
        self._restart = restart or RestartPolicy()
        self._lock_path = lock_path
        self._before_start = before_start
        self._process: subprocess.Popen[bytes] | None = None
        self._echo: _Echo | None = None
        self._wanted = False
        self._pressed = False
        self._started_at = 0.0
        self._due_at: float | None = None
        self._blocked_at: float | None = None

    @property
    def pid(self) -> int | None:
        """The running process, `None` while there is none."""
        return self._process.pid if self._process else None

    @property
    def blocked_seconds(self) -> float:
        """How long the start has been waiting for processes of the last run to end."""
        return 0.0 if self._blocked_at is None else time.monotonic() - self._blocked_at

    def start(self) -> bool:
        """Start unless it runs; False when the last run still holds the lock (poll tries again).

        Raises `OSError` when the command cannot be executed.
        """
        self._wanted, self._pressed = True, False
        if self._process is not None:
            return True
        self._due_at = time.monotonic()
        return self._spawn()

    def poll(self) -> ChildEvent | None:
        """Notice a death or start again when it is time; to be called every 0.1 to 0.5 seconds."""
        if self._process is not None:
            if self._echo is not None:
                self._echo.pump()
            if self._process.poll() is not None:
                self._ended(self._process)
                return "exited"
            if self.failures and self._ran_seconds() >= self._restart.steady_seconds:
                self.failures = 0
        elif self._due_at is not None and time.monotonic() >= self._due_at:
            try:
                return "started" if self._spawn() else None
            except (OSError, subprocess.SubprocessError):
                self.returncode = 127
                self._schedule()
                return "exited"
        return None

    def request_stop(self) -> None:
        """Ask it once to end and do not start it again; `poll` tells when it has ended."""
        self._due_at = self._blocked_at = None
        if self._wanted and self._process is not None and self._process.poll() is None:
            self._process.send_signal(self.stop_signal)
        self._wanted = False

    def press(self, waited_seconds: float) -> None:
        """Do what is due so long after `request_stop`: the harder signal once, or kill."""
        steps = 1 if self.harder_signal is None else 2
        if waited_seconds > steps * self.grace_seconds:
            self.kill()
        elif waited_seconds > self.grace_seconds and self.harder_signal and not self._pressed:
            self._pressed = True
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(self.harder_signal)

    def kill(self) -> None:
        """Kill its whole process group at once; with a restart policy it comes back."""
        if self._process is not None:
            _kill_group(self._process.pid)

    def stop(self) -> None:
        """Ask it to end, and see to it that it does. Legal when it is not running."""
        stop_all([self])

    def _spawn(self) -> bool:
        guards = [] if self._lock_path is None else [lock_for_child(self._lock_path)]
        pass_fds = [guard for guard in guards if guard is not None]
        if len(pass_fds) < len(guards):
            self._blocked_at = self._blocked_at or time.monotonic()
            return False
        try:
            if self._before_start is not None:
                self._before_start()
            self._process = self._popen(pass_fds)
        finally:
            for guard in pass_fds:
                os.close(guard)  # from here on only the child and what it forks hold it
        self._due_at = self._blocked_at = None
        self._started_at = time.monotonic()
        return True

    def _popen(self, pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
        if self._output is None:
            return spawn(self.command, self._launch, pass_fds=pass_fds)
        if isinstance(self._output, Path):
            with self._output.open("ab") as log:
                return spawn(self.command, self._launch, stdout=log, pass_fds=pass_fds)
        process = spawn(self.command, self._launch, stdout=subprocess.PIPE, pass_fds=pass_fds)
        assert process.stdout is not None  # noqa: S101 - asked for just above
        self._echo = _Echo(process.stdout, self._output, self._prefix)
        return process

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        _kill_group(process.pid)  # what it forked is of no use without it
        if self._echo is not None:
            self._echo.pump(last=True)
        if self._ran_seconds() >= self._restart.steady_seconds:
            self.failures = 0
        self._process = self._echo = None
        self.returncode = process.returncode
        self._schedule()

    def _schedule(self) -> None:
        self.failures += self._wanted
        delay = self._restart.delay(self.failures) if self._wanted else None
        self._due_at = None if delay is None else time.monotonic() + delay
        self.restarts += delay is not None

    def _ran_seconds(self) -> float:
        return time.monotonic() - self._started_at


def stop_all(children: Iterable[Child], *, interval_seconds: float = 0.02) -> None:
    """Stop all at once, each with its own grace period; what outlives it is killed as a group."""
    waiting = list(children)
    for child in waiting:
        child.request_stop()
    began = time.monotonic()
    while waiting:
        for child in waiting:
            child.press(time.monotonic() - began)
            child.poll()
        waiting = [child for child in waiting if child.pid is not None]
        if waiting:
            time.sleep(interval_seconds)


def _kill_group(pid: int) -> None:
    # macOS answers EPERM for a group of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
