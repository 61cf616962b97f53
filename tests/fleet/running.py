"""What these tests run and watch: a broker of their own, workers, and processes."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it ships no types
import redis

from afterturn.embedded.binaries import find_valkey
from afterturn.fleet import FleetCommand, fleet_directory

DEADLINE_SECONDS = 45.0
MARKER = "the-marker-that-must-not-leave"
STUB_WORKER = Path(__file__).with_name("stub_worker.py")


def wait_until(holds: Callable[[], object], what: str) -> None:
    """Poll until it holds; fail after a deadline far beyond any honest wait."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"never: {what}")
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Whether no such process runs; a zombie does not run."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@dataclass
class Valkey:
    """A broker that can be killed, frozen and started again at the same address."""

    directory: Path
    port: int = 0  # 0: a unix socket
    password: str = ""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """For afterturn's settings."""
        return f"redis://127.0.0.1:{self.port}/0" if self.port else f"unix://{self._socket}?db=0"

    def start(self) -> None:
        """Start it empty and wait until it answers."""
        self._process = subprocess.Popen(
            [
                str(find_valkey()),
                *("--port", str(self.port), "--bind", "127.0.0.1"),
                *("--unixsocket", str(self._socket), "--dir", str(self.directory)),
                *("--save", "", "--appendonly", "no", "--requirepass", self.password),
            ],
            stdout=subprocess.DEVNULL,
        )
        wait_until(self._answers, "the broker answers")

    def kill(self) -> None:
        """End it at once; what it held is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._socket.unlink(missing_ok=True)

    def freeze(self) -> None:
        """Connections are accepted by the kernel and never answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on where it was."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """A plain client."""
        with redis.Redis(
            unix_socket_path=str(self._socket),
            password=self.password or None,
            decode_responses=True,
        ) as client:
            yield client

    def messages(self, queue: str) -> list[dict[str, Any]]:
        """What waits in a queue, oldest first."""
        with self.client() as client:
            found: Any = client.lrange(f"afterturn:{queue}", 0, -1)
        return [json.loads(each) for each in reversed(found)]

    def send_raw(self, queue: str, message: Mapping[str, Any]) -> None:
        """Put a message there as anybody could who reaches the broker."""
        with self.client() as client:
            client.lpush(f"afterturn:{queue}", json.dumps(message))

    @property
    def _socket(self) -> Path:
        return self.directory / "valkey.sock"

    def _answers(self) -> bool:
        with self.client() as client, contextlib.suppress(redis.RedisError, OSError):
            return bool(client.ping())
        return False


@dataclass
class Running:
    """A process of the fleet with its output in a file."""

    process: subprocess.Popen[bytes]
    log: Path
    calls: Path

    @property
    def pid(self) -> int:
        """Its main process."""
        return self.process.pid

    def output(self) -> str:
        """All it said so far."""
        return self.log.read_text("utf-8", "replace")

    def said(self, text: str) -> bool:
        """Whether it said this."""
        return text in self.output()

    def called(self) -> list[list[Any]]:
        """What the stub in the worker was asked: `[kind, ids, pid]` each."""
        if not self.calls.exists():
            return []
        return [json.loads(line) for line in self.calls.read_text().splitlines()]

    def was_asked(self, kind: str, ids: Sequence[int]) -> bool:
        """Whether the stub was asked for these jobs."""
        return [kind, list(ids)] in [call[:2] for call in self.called()]

    def children(self) -> list[psutil.Process]:
        """The processes of its pool."""
        found: list[psutil.Process] = psutil.Process(self.pid).children(recursive=True)
        return found

    def stop(self) -> int:
        """End it as an operator would; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(DEADLINE_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it and its children, whatever state they are in."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def launch(
    command: FleetCommand,
    directory: Path,
    *,
    name: str = "part",
    cwd: Path | None = None,
    stub: bool = True,
    extra_env: Mapping[str, str] | None = None,
) -> Running:
    """Start a part of the fleet; with `stub` its runner is the one of `stub_worker.py`."""
    argv = list(command.argv)
    calls = directory / f"{name}.calls"
    env = {**command.env, "FLEET_TEST_DIRECTORY": str(directory), **(extra_env or {})}
    env |= {"FLEET_TEST_CALLS": str(calls), "FLEET_TEST_MARKER": MARKER}
    if stub:
        at = argv.index("-m")
        argv[at : at + 2] = [str(STUB_WORKER)]
    log = directory / f"{name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            argv, env=env, cwd=cwd or directory, stdout=output, stderr=subprocess.STDOUT
        )
    return Running(process, log, calls)


def python(script: str, *arguments: object, env: Mapping[str, str] | None = None) -> str:
    """Run a script to its end; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """A port whose SYNs are never answered: a listener with a full backlog."""
    with contextlib.ExitStack() as open_sockets:
        listener = open_sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(8):
            filler = open_sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        yield int(address[1])


def http_status(url: str, login: str | None = None, method: str = "GET") -> int:
    """How a page of loopback answers who shows this login, `user:password`; 0: not at all."""
    request = urllib.request.Request(url, method=method)  # noqa: S310 - http, on loopback
    if login is not None:
        token = base64.b64encode(login.encode()).decode()
        request.add_header("Authorization", f"Basic {token}")
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def any_port() -> int:
    """A port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fleet_path() -> str:
    """The folder of the fleet."""
    return str(fleet_directory())
