"""One directory that holds everything of the embedded servers: locks, sockets, data, log.

    HOME/locks/gate              held while a supervisor is launched or stopped
    HOME/locks/supervisor        held by the supervisor for as long as it lives
    HOME/locks/NAME.clients      shared by every process that needs server NAME
    HOME/locks/NAME.server       held by the server's own processes
    HOME/run/                    sockets, 0700 (elsewhere when the path is long or odd)
    HOME/services.json           what the supervisor says; worth nothing unless its lock is held
    HOME/pg/, HOME/valkey/       data

As root PostgreSQL's part can lie elsewhere: see `place`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Final, Literal, get_args

from afterturn.embedded.locks import FileLock, is_locked
from afterturn.errors import ConfigurationError

ServerName = Literal["postgres", "valkey"]
SERVER_NAMES: Final[tuple[ServerName, ...]] = get_args(ServerName)

_SOCKET_DIRECTORY_MAX = 80  # a socket's path ends at 103 bytes; the names in it need up to 20
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+-]+")  # what every URL parser takes without quoting
_CHOOSE_ANOTHER = "Choose another AFTERTURN_HOME, or set AFTERTURN_DATABASE_URL and _BROKER_URL."


class Home:
    """The paths and locks of one home. Making the object touches nothing; `create` does."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).expanduser().resolve()
        self.locks = self.path / "locks"
        self.state_path = self.path / "services.json"
        self.keep_path = self.path / "keep"
        self.log_path = self.path / "supervisor.log"
        self._elsewhere: set[Path] = set()

    def create(self) -> Home:
        """Make the directories. Raises `ConfigurationError` when the home cannot be used."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.locks.mkdir(exist_ok=True, mode=0o700)
            self.gate().path.touch(mode=0o600)
        except OSError as error:
            raise self._not_usable(str(error.strerror).lower()) from None
        return self

    @property
    def tag(self) -> str:
        """A short name for this home, for directories that must lie elsewhere."""
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]

    def socket_directory(self, preferred: Path, account: tuple[int, int] | None = None) -> Path:
        """`preferred`, or a short directory of our own in /tmp when sockets cannot live there.

        Creates it, private to us or to `account` (uid, gid). /tmp and not TMPDIR, so that the
        URLs are the same after every restart.
        """
        if len(os.fsencode(preferred)) <= _SOCKET_DIRECTORY_MAX and _PLAIN_PATH.fullmatch(
            str(preferred)
        ):
            return private_directory(preferred, account)
        suffix = "-pg" if account else ""
        short = Path("/tmp") / f"afterturn-{os.geteuid()}-{self.tag}{suffix}"  # noqa: S108
        self._elsewhere.add(short)
        return private_directory(short, account)

    def tidy(self) -> None:
        """Remove what `socket_directory` made outside the home; the servers must have ended."""
        for directory in self._elsewhere:
            with contextlib.suppress(OSError):
                directory.rmdir()

    def gate(self) -> FileLock:
        """Who holds it may launch or stop a supervisor."""
        return FileLock(self.locks / "gate")

    def supervisor_lock(self) -> FileLock:
        """Held by the supervisor; see `is_supervised`."""
        return FileLock(self.locks / "supervisor")

    def claim(self, name: ServerName) -> FileLock:
        """Held shared by each process that needs the server."""
        return FileLock(self.locks / f"{name}.clients")

    def server_lock_path(self, name: ServerName) -> Path:
        """Held by the processes of the server itself."""
        return self.locks / f"{name}.server"

    def is_supervised(self) -> bool:
        """Whether a supervisor lives, which alone makes `services.json` worth reading."""
        try:
            return is_locked(self.supervisor_lock().path)
        except PermissionError:
            raise self._not_usable("permission denied") from None

    def _not_usable(self, reason: str) -> ConfigurationError:
        return ConfigurationError(
            "The home of the embedded servers cannot be used",
            detail=f"{self.path}: {reason}, as uid {os.geteuid()}",
            hint=_CHOOSE_ANOTHER,
        )


def private_directory(path: Path, account: tuple[int, int] | None = None) -> Path:
    """Make `path` a 0700 directory of ours, or of `account`; refuse one that someone else made."""
    path.mkdir(exist_ok=True, mode=0o700)
    found = path.lstat()
    owners = {os.geteuid(), account[0] if account else os.geteuid()}
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners:
        raise ConfigurationError(
            "A directory of the embedded servers belongs to someone else",
            detail=f"{path}, uid {found.st_uid}",
            hint=f"Remove it. {_CHOOSE_ANOTHER}",
        )
    path.chmod(0o700)
    if account and found.st_uid != account[0]:
        os.chown(path, *account)
    return path
