"""PostgreSQL as the supervisor runs it: on a private unix socket, with a fixed locale.

Its log keeps messages of the server and drops those of statements: an error of a statement can
quote the values in it, and no memory text may reach a log.
"""

from __future__ import annotations

import locale
import os
import shutil
import signal
import subprocess
from functools import cached_property
from pathlib import Path
from typing import Final

from afterturn.embedded.binaries import find_postgres
from afterturn.embedded.home import Home
from afterturn.embedded.identity import Identity, choose_identity
from afterturn.embedded.leftovers import Eviction, processes_in
from afterturn.embedded.place import Place, data_major, reachable_binaries, settle
from afterturn.embedded.probes import postgres_answers
from afterturn.embedded.server import server_environment
from afterturn.embedded.urls import postgres_url
from afterturn.errors import ConfigurationError
from afterturn.processes import Child, Launch, RestartPolicy, lock_for_child, spawn

_SETTINGS: Final = {
    "listen_addresses": "",
    "port": "5432",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "wal_recycle": "off",  # a recycled segment would keep what was erased
    "logging_collector": "off",
    "log_min_messages": "log",  # above ERROR: messages about statements stay out
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}
# Safe when processes are killed, since the kernel keeps what was written; not when power fails.
_FAST: Final = {"fsync": "off", "full_page_writes": "off"}
_SOCKET = ".s.PGSQL.5432"
_INITDB_SECONDS = 300.0


class PostgresServer:
    """One PostgreSQL in a home. `prepare` before anything else."""

    name: Final = "postgres"

    def __init__(self, home: Home, *, durable: bool) -> None:
        self._home = home
        self._durable = durable
        self.identity_kind = ""  # known once it is prepared

    @cached_property
    def place(self) -> Place:
        """Its directories, chosen and created when first asked for."""
        return settle(self._home, self._identity)

    @cached_property
    def _identity(self) -> Identity:
        return choose_identity()

    @property
    def url(self) -> str:
        """For asyncpg."""
        return postgres_url(self.place.sockets)

    @property
    def socket(self) -> Path:
        """Where it answers."""
        return self.place.sockets / _SOCKET

    def prepare(self) -> Child:
        """Make the data directory if there is none, and the child that serves it.

        Blocks for as long as initdb takes. Raises `ConfigurationError`.
        """
        place = self.place
        self.identity_kind = self._identity.kind
        found = find_postgres(data_major(self._home))
        directory = reachable_binaries(found, self._identity, place)
        launch = self._identity.applied_to(
            Launch(env=server_environment(), cwd="/", death_signal=signal.SIGINT)
        )
        if not place.data.exists():
            self._initdb([directory / "initdb", *_initdb_options(found.major)], launch)
        command: list[str | Path] = [directory / "postgres", "-D", place.data]
        settings = _SETTINGS | {"unix_socket_directories": str(place.sockets)}
        for name, value in (settings if self._durable else settings | _FAST).items():
            command += ["-c", f"{name}={value}"]
        return Child(
            self.name,
            command,
            launch=launch,
            output=self._home.log_path,
            stop_signal=signal.SIGINT,  # ends sessions and writes a checkpoint
            # A postmaster that is asked in the midst of its recovery from a crashed session can
            # wait for ever. At once, with recovery at the next start, loses nothing either.
            harder_signal=signal.SIGQUIT,
            grace_seconds=10.0,
            restart=RestartPolicy(cap_seconds=2.0),
            lock_path=self._home.server_lock_path(self.name),
            before_start=self._clear_dead_pid_file,
        )

    def answers(self) -> bool:
        """Whether it takes sessions. The pid file is read first: trying fills the log."""
        try:
            status = (self.place.data / "postmaster.pid").read_text().splitlines()[7].strip()
        except (OSError, IndexError):
            return False
        return status == "ready" and postgres_answers(self.socket)

    def eviction(self) -> Eviction:
        """For processes of an earlier run."""
        return postgres_eviction(self.place.data)

    def _initdb(self, command: list[str | Path], launch: Launch) -> None:
        shutil.rmtree(self.place.unfinished, ignore_errors=True)
        guard = lock_for_child(self._home.server_lock_path(self.name))
        pass_fds = () if guard is None else (guard,)
        command += ["-D", self.place.unfinished, *([] if self._durable else ["--no-sync"])]
        try:
            with self._home.log_path.open("ab") as log:
                process = spawn(command, launch, stdout=log, pass_fds=pass_fds)
                code = _wait(process, _INITDB_SECONDS)
        finally:
            for descriptor in pass_fds:
                os.close(descriptor)
        if code != 0:
            raise ConfigurationError(
                "PostgreSQL could not make its data directory",
                detail=f"initdb ended with {code}",
                hint=f"The end of {self._home.log_path} says why.",
            )
        self.place.unfinished.rename(self.place.data)  # only a finished one gets the name

    def _clear_dead_pid_file(self) -> None:
        """Remove what a killed postmaster left; it would refuse to start beside its own zombie."""
        pid_file = self.place.data / "postmaster.pid"
        if pid_file.exists() and not processes_in(self.place.data):
            pid_file.unlink()
            self.socket.with_name(f"{_SOCKET}.lock").unlink(missing_ok=True)


def postgres_eviction(data: Path) -> Eviction:
    """For processes that work in this data directory."""
    return Eviction(data, signal.SIGINT, signal.SIGQUIT, data / "postmaster.pid")


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _initdb_options(major: int) -> list[str]:
    """Text sorts and folds case the same on every machine, as far as the version can do that."""
    options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-instructions"]
    if major >= 17:
        return [*options, "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return [*options, "--lc-ctype=C.UTF-8"] if _knows_c_utf8() else options


def _knows_c_utf8() -> bool:
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    except locale.Error:
        return False
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    return True
