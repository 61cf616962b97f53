"""`--keep-running`: a part of the fleet without a process manager."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it ships no types
import pytest

from afterturn.cli import main

from .command import DEADLINE_SECONDS, CommandLine, program

pytestmark = pytest.mark.fleet

PROCFILE = Path(__file__).resolve().parents[2] / "Procfile"


@pytest.fixture
def kept(commands: CommandLine) -> Iterator[subprocess.Popen[bytes]]:
    """`afterturn beat --keep-running`, with its child."""
    process = subprocess.Popen(
        [program(), "beat", "--keep-running"],
        stderr=subprocess.PIPE,
        env={"PATH": os.defpath, **commands.settings},
    )
    yield process
    process.kill()
    process.communicate()


def _child(process: subprocess.Popen[bytes], *, other_than: int = 0) -> int:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None
        for child in psutil.Process(process.pid).children():
            if child.pid != other_than and "workers" in child.cmdline():
                return int(child.pid)
        time.sleep(0.02)
    raise AssertionError("it runs nothing")


def test_what_dies_is_started_again_and_all_ends_on_request(
    kept: subprocess.Popen[bytes],
) -> None:
    """kill -9 of the part brings another one; SIGTERM ends both with code 0."""
    first = _child(kept)
    os.kill(first, signal.SIGKILL)
    second = _child(kept, other_than=first)
    kept.send_signal(signal.SIGTERM)
    _, told = kept.communicate(timeout=DEADLINE_SECONDS)
    assert kept.returncode == 0
    assert not psutil.pid_exists(second)
    assert b"beat ended with code -9" in told


def test_what_cannot_run_is_not_tried_again(commands: CommandLine, elsewhere: Path) -> None:
    """A setting that makes no sense ends it at once, with the part's own code."""
    outcome = commands.installed(
        "worker", "--keep-running", cwd=elsewhere, AFTERTURN_EXTRACTOR="no_such_module:build"
    )
    assert outcome.code == 78
    assert "no_such_module" in outcome.stderr + outcome.stdout


def test_the_procfile_keeps_every_part_running() -> None:
    """Foreman and the like restart nothing: each line does so itself, with options that exist."""
    for line in PROCFILE.read_text().splitlines():
        _, _, command = line.partition(": ")
        name, part, *options = shlex.split(command)
        assert name == "afterturn"
        context = main.commands[part].make_context(part, options)
        assert context.params["keep_running"] is True
