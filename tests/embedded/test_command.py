"""`python -m afterturn.embedded`, for debugging."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from .running import DEADLINE_SECONDS


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "afterturn.embedded", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


def test_up_status_down(home: Path) -> None:
    """`up` leaves the servers running without any client, `down` ends them."""
    assert run("status", home).stdout == "nothing runs\n"
    up = json.loads(run("up", home).stdout)
    assert json.loads(run("status", home).stdout) == up
    assert run("down", home).stdout == "stopped\n"
    assert run("status", home).returncode == 1
    assert run("down", home).stdout == "nothing ran\n"


def test_errors_are_one_line(home: Path) -> None:
    """A home that cannot be is an error for a human."""
    (home / "file").touch()
    said = run("up", home / "file" / "below")
    assert said.returncode == 1
    assert said.stderr.startswith("ConfigurationError: The home of the embedded servers")
    assert said.stderr.count("\n") == 1
