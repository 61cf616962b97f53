"""Starts the supervisor as a process of its own, from whatever process this is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from afterturn.embedded.binaries import POSTGRES_VARIABLE, VALKEY_VARIABLE
from afterturn.embedded.home import Home
from afterturn.embedded.identity import MODE_VARIABLE
from afterturn.embedded.supervisor import BUSY
from afterturn.errors import MemoryUnavailable

# It outlives its launcher, so it gets what it needs and no keys or passwords of the application.
_KEPT_VARIABLES: Final = (
    "PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
    "PYTHONHOME", "PYTHONPATH", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE",
    POSTGRES_VARIABLE, VALKEY_VARIABLE, MODE_VARIABLE,
)  # fmt: skip
_LOG_BYTES_MAX = 4 << 20


def launch_supervisor(
    home: Home, *, linger_seconds: float, durable: bool, timeout_seconds: float
) -> None:
    """Launch it and return when it owns the home (or another one does); the gate must be held.

    Raises `MemoryUnavailable` when it cannot be started.
    """
    _rotate_log(home)
    boot = Path(__file__).with_name("boot.py")
    durability = "durable" if durable else "fast"
    command = [_interpreter(), "-P", str(boot), str(home.path), str(linger_seconds), durability]
    try:
        with home.log_path.open("ab") as log:
            code = subprocess.run(
                command,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                start_new_session=True,
                timeout=timeout_seconds,
            ).returncode
    except (OSError, subprocess.SubprocessError) as error:
        raise _failed(home, f"{command[0]}: {type(error).__name__}") from None
    if code not in {0, BUSY}:
        raise _failed(home, f"{command[0]} ended with {code}")


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    package_parent = str(Path(__file__).parents[2])
    paths = [package_parent, *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(paths)}


def _interpreter() -> str:
    """This Python, also where `sys.executable` is a program that embeds it."""
    if "python" in Path(sys.executable or "").name.lower():
        return sys.executable
    return str(Path(sys.prefix) / "bin" / "python3")


def _rotate_log(home: Home) -> None:
    if home.log_path.exists() and home.log_path.stat().st_size > _LOG_BYTES_MAX:
        home.log_path.replace(home.log_path.with_suffix(".log.1"))


def _failed(home: Home, detail: str) -> MemoryUnavailable:
    return MemoryUnavailable(
        "The supervisor of the embedded servers could not be started",
        detail=detail,
        hint=f"The end of {home.log_path} may say why.",
    )
