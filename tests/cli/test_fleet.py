"""`up`, `worker`, `beat` and `flower` as programs, and an import that workers process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterturn import embedded
from tests.importing.writing import locomo, write

from .command import DEADLINE_SECONDS, CommandLine, program

pytestmark = [pytest.mark.fleet, pytest.mark.slow]


@pytest.fixture
def own_home() -> Iterator[Path]:
    """A short folder in which nothing runs, neither before nor after."""
    folder = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    yield folder
    embedded.stop(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _start(commands: CommandLine, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [program(), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": os.defpath, **commands.settings},
    )


def _read_until(process: subprocess.Popen[str], wanted: str) -> str:
    """What it says up to the line with `wanted`; fails when it ends before."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if wanted in line:
            return said
    raise AssertionError(f"it ended without {wanted!r}: {said}")


def _end(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=DEADLINE_SECONDS)
        return process.returncode
    finally:
        process.kill()
        process.wait()


def test_up_processes_an_import_and_stops_cleanly(own_home: Path, tmp_path: Path) -> None:
    """`up --json` says where everything is; its workers process an import; SIGTERM ends it."""
    commands = CommandLine(
        {
            "AFTERTURN_HOME": str(own_home),
            "AFTERTURN_EMBEDDER": "none",
            "AFTERTURN_WORKER_CONCURRENCY": "1",
            "AFTERTURN_FLOWER_PORT": "0",
        }
    )
    file = write(tmp_path / "chats.json", locomo("chat-1", 40, 2), locomo("chat-2", 40, 1))
    up = _start(commands, "up", "--json")
    try:
        report = json.loads(_read_until(up, "}"))
        assert report["not_ready"] == []
        assert report["flower_url"].startswith("http://127.0.0.1:")
        first = commands.installed("import", file, "--scope", "acme", "--json", cwd=tmp_path)
        assert (first.code, first.stderr) == (0, "")
        assert first.json["processed_by"] == "workers"
        assert first.json["recorded"] == first.json["taken"] == 120
        second = commands.installed("import", file, "--scope", "acme", "--json", cwd=tmp_path)
        assert (second.json["taken"], second.json["known"]) == (0, 120)
        forgotten = commands.installed("forget", "acme/chat-2", "--json", cwd=tmp_path)
        assert forgotten.json["counts"]["turns"] == 40
        status = commands.installed("status", "--check", "--json", cwd=tmp_path)
        assert (status.code, status.json["wrong"]) == (0, [])
    finally:
        code = _end(up)
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "sign"),
    [
        (("worker", "--queues", "record,sweep", "--concurrency", "1", "--name", "one"), "ready"),
        (("flower",), "Flower on http://127.0.0.1:"),
    ],
)
def test_a_part_runs_by_itself_until_it_is_told_to_stop(
    commands: CommandLine, arguments: tuple[str, ...], sign: str
) -> None:
    """The command becomes the part: it says that it works, and SIGTERM ends it with 0."""
    settings = {**commands.settings, "AFTERTURN_FLOWER_PORT": "0"}
    part = _start(CommandLine(settings), *arguments)
    try:
        _read_until(part, sign)
    finally:
        code = _end(part)
    assert code == 0


def test_flower_is_refused_where_strangers_could_look_in(commands: CommandLine) -> None:
    """On an address that others reach it wants a password, and says which setting."""
    outcome = commands.run("flower", flower_address="0.0.0.0")  # noqa: S104 - it is refused
    assert outcome.code == 1
    assert "AFTERTURN_FLOWER_BASIC_AUTH" in outcome.error
