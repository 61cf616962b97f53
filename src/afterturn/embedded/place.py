"""Where PostgreSQL's data, sockets and binaries lie, so that its identity can reach them.

Normally all of it is in the home and the binaries stay where they are installed. Only for root it
can be otherwise: the identity may be unable to enter the home or the environment. Then the data
goes to /var/lib/afterturn, and the binaries are copied beside it; no permission of anything
outside is changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from afterturn.embedded.binaries import PostgresBinaries
from afterturn.embedded.home import Home
from afterturn.embedded.identity import Identity
from afterturn.errors import ConfigurationError

_OUTSIDE = Path("/var/lib/afterturn")


@dataclass(frozen=True)
class Place:
    """The directories of one PostgreSQL; all exist but `data` and `unfinished`."""

    base: Path
    sockets: Path

    @property
    def data(self) -> Path:
        """The data directory; it has this name only when initdb finished it."""
        return self.base / "data"

    @property
    def unfinished(self) -> Path:
        """Where initdb works."""
        return self.base / "init"


def data_directories(home: Home) -> tuple[Path, Path]:
    """Where data can be, whether or not it is there."""
    return home.path / "pg" / "data", _OUTSIDE / home.tag / "data"


def data_major(home: Home) -> int | None:
    """The major version of PostgreSQL that made the data, `None` when there is none yet."""
    for data in data_directories(home):
        try:
            return int((data / "PG_VERSION").read_text().split(".")[0])
        except (OSError, ValueError):
            continue
    return None


def settle(home: Home, identity: Identity) -> Place:
    """Choose and create the directories. Existing data decides; it is handed to the identity."""
    base = _base(home, identity)
    if base.parent == _OUTSIDE:
        _OUTSIDE.mkdir(exist_ok=True)
        _OUTSIDE.chmod(0o755)  # whatever the umask was
    base.mkdir(exist_ok=True, mode=0o700)
    owner = identity.account or (os.geteuid(), os.getegid())
    if os.geteuid() == 0 and base.stat().st_uid != owner[0]:
        _hand_over(base, owner)
    base.chmod(0o700)
    if identity.account is None:
        return Place(base, home.socket_directory(home.path / "run"))
    return Place(base, home.socket_directory(base / "run", identity.account))


def reachable_binaries(found: PostgresBinaries, identity: Identity, place: Place) -> Path:
    """The directory of `found`, or of a copy when the identity may not execute it there."""
    if identity.kind == "user" or identity.can("-x", found.directory / "postgres"):
        return found.directory
    stamp = f"{found.directory}:{(found.directory / 'postgres').stat().st_mtime_ns}"
    copy = place.base / f"binaries-{hashlib.sha256(stamp.encode()).hexdigest()[:12]}"
    if not copy.exists():
        for old in place.base.glob("binaries-*"):
            shutil.rmtree(old)
        fresh = place.base / "binaries-fresh"
        for tree in found.carrier:
            shutil.copytree(
                tree, fresh / tree.name, ignore=shutil.ignore_patterns("include", "__pycache__")
            )
        _open_for_reading(fresh)
        fresh.rename(copy)
    return copy / found.directory.relative_to(found.carrier[0].parent)


def _base(home: Home, identity: Identity) -> Path:
    inside, outside = home.path / "pg", _OUTSIDE / home.tag
    if identity.kind == "user":
        return inside
    if (outside / "data").exists() and not (inside / "data").exists():
        return outside
    if _can_enter(home, identity):
        return inside
    if (inside / "data").exists():
        raise ConfigurationError(
            "PostgreSQL cannot reach its data",
            detail=f"{inside}, as uid {identity.uid} ({identity.kind})",
            hint="Move the home to where that account can enter every parent directory, "
            "run as an ordinary user, or set AFTERTURN_DATABASE_URL.",
        )
    return outside


def _can_enter(home: Home, identity: Identity) -> bool:
    if identity.kind == "setuid" and home.path.stat().st_uid == os.geteuid():
        home.path.chmod(home.path.stat().st_mode & 0o7777 | 0o011)  # to pass, not to list
    return identity.can("-x", home.path)


def _hand_over(tree: Path, owner: tuple[int, int]) -> None:
    for directory, names, files in os.walk(tree):
        for name in (".", *names, *files):
            os.chown(Path(directory, name), *owner, follow_symlinks=False)


def _open_for_reading(tree: Path) -> None:
    for directory, _, files in os.walk(tree):
        Path(directory).chmod(0o755)
        for name in files:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
