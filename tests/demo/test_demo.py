"""The demo from start to end, and that it notices what is not true."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it ships no types
import pytest
from click.testing import CliRunner

from afterturn import embedded
from afterturn.cli import main
from afterturn.database import Database
from afterturn.demo import story
from afterturn.demo.asking import ask
from afterturn.demo.remains import remains
from afterturn.demo.screen import Screen
from afterturn.demo.shipped import load
from afterturn.demo.stack import require_ready
from afterturn.errors import MemoryUnavailable
from afterturn.importing.importer import Importer
from afterturn.memory import Memory
from afterturn.scope import MemoryScope
from afterturn.settings import Settings

ROOT = MemoryScope.of("demo")
DEADLINE_SECONDS = 120.0
COMMAND = (str(Path(sys.executable).with_name("afterturn")), "demo")
# A user's own servers and parts, which the demo must leave alone.
FOREIGN = {
    "AFTERTURN_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/precious",
    "AFTERTURN_BROKER_URL": "redis://127.0.0.1:1/0",
    "AFTERTURN_EXTRACTOR": "not.there:make",
    "AFTERTURN_EMBEDDER": "not.there:make",
    "AFTERTURN_NO_SUCH_SETTING": "1",
}


@pytest.fixture
def own_home() -> Iterator[Path]:
    """A short folder (sockets) in which nothing runs afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    yield folder
    embedded.stop(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def memory(settings: Settings) -> AsyncIterator[Memory]:
    """An open memory without workers."""
    async with Memory(settings) as opened:
        yield opened


@pytest.fixture
async def told(memory: Memory, database: Database) -> Memory:
    """A memory that holds the shipped conversations."""
    shipped = load()
    await Importer(memory, database, ROOT).hand_over(shipped.conversations)
    await memory.drain(ROOT, in_process=True)
    return memory


@pytest.mark.slow
@pytest.mark.fleet
def test_the_demo_shows_only_what_is_true_and_leaves_nothing(tmp_path: Path) -> None:
    """It ends with 0, has said where Flower is and shown a receipt, and nothing of it runs on."""
    done = subprocess.run(
        COMMAND,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        cwd=tmp_path,
        env={"PATH": os.defpath, "COLUMNS": "300", **FOREIGN},
    )
    assert (done.returncode, done.stderr) == (0, "")
    for expected in (
        "http://127.0.0.1:",
        "263 messages",
        " ms",
        "of 10 questions were answered",
        "rows of turns",
        "erase log",
        "nothing is remembered",
        "All that was shown was true",
    ):
        assert expected in done.stdout
    assert "NO " not in done.stdout
    (home,) = (word.rstrip(".") for word in done.stdout.split() if "afterturn-demo-" in word)
    assert not Path(home).exists()
    assert _left_running_in(home) == []


@pytest.mark.slow
@pytest.mark.fleet
def test_it_runs_on_when_asked_to_and_ends_at_ctrl_c(own_home: Path, tmp_path: Path) -> None:
    """With --keep everything stays until SIGINT; its home was given, so its data is kept."""
    process = subprocess.Popen(
        [*COMMAND, "--keep", "--home", str(own_home)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={"PATH": os.defpath, "PYTHONUNBUFFERED": "1", "COLUMNS": "300"},
    )
    assert process.stdout is not None
    try:
        assert any("Ctrl-C stops everything" in line for line in process.stdout)
        assert _running_in(str(own_home))
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert str(own_home) in rest
    assert _left_running_in(str(own_home)) == []
    assert (own_home / "pg").is_dir()


@pytest.mark.fleet
@pytest.mark.parametrize("moment", ["Starting", "Remembering"])
def test_told_to_end_it_leaves_nothing(moment: str, tmp_path: Path) -> None:
    """SIGTERM while its servers start as well as in the midst: no process, and no folder."""
    process = subprocess.Popen(
        COMMAND,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={"PATH": os.defpath, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        assert any(moment in line for line in process.stdout)
        home = _home_of(process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + signal.SIGTERM
    assert not home.exists()
    assert _left_running_in(str(home)) == []


def _home_of(process: subprocess.Popen[str]) -> Path:
    """The folder that the demo made for itself, as its `up` was told."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        for child in psutil.Process(process.pid).children():
            with contextlib.suppress(psutil.Error):
                if home := child.environ().get("AFTERTURN_HOME"):
                    return Path(home)
        time.sleep(0.02)
    raise AssertionError("the demo started nothing")


def test_it_fails_when_something_was_not_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's exit code is the story's verdict."""
    monkeypatch.setattr(story, "tell", lambda home, *, keep: False)
    assert CliRunner().invoke(main, ["demo"]).exit_code == 1
    monkeypatch.setattr(story, "tell", lambda home, *, keep: True)
    assert CliRunner().invoke(main, ["demo"]).exit_code == 0


def test_a_claim_that_does_not_hold_is_remembered(capsys: pytest.CaptureFixture[str]) -> None:
    """The screen keeps what was not true, and shows it as such."""
    screen = Screen()
    screen.claim("this holds", True)
    screen.claim("this does not", False)
    assert screen.untrue == ["this does not"]
    assert "NO" in capsys.readouterr().out


def test_a_part_that_does_not_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    """The demo ends with what the part's log says, since the log goes with the demo's home."""
    (tmp_path / "record.log").write_text("first\nImportError: no module\n\n")
    with pytest.raises(MemoryUnavailable, match="record: ImportError: no module; beat: silent"):
        require_ready({"not_ready": ["record", "beat"], "logs": str(tmp_path)})
    require_ready({"not_ready": [], "logs": str(tmp_path)})


async def test_remains_are_found_before_an_erase_and_none_after(told: Memory) -> None:
    """What the demo looks for is there until the chat is erased."""
    shipped = load()
    looked, found = await remains(told, ROOT, shipped.erased)
    assert looked > found > len(shipped.erased.messages)
    await told.forget(ROOT.child(shipped.erased.conversation_id))
    looked, found = await remains(told, ROOT, shipped.erased)
    assert looked > 0
    assert found == 0


async def test_remains_are_found_wherever_the_text_was_moved(told: Memory) -> None:
    """A copy of an erased message in the other chat's scope counts as left behind."""
    shipped = load()
    (kept,) = (c for c in shipped.conversations if c is not shipped.erased)
    await told.forget(ROOT.child(shipped.erased.conversation_id))
    longest = max(shipped.erased.messages, key=lambda message: len(message.text))
    await told.remember(ROOT.child(kept.conversation_id), f"She said: {longest.text}")
    _, found = await remains(told, ROOT, shipped.erased)
    assert found == 1


async def test_most_questions_are_answered_without_an_embedder(told: Memory) -> None:
    """Words alone bring back a message that answers, for more than half of the questions."""
    answers = await ask(told, ROOT, load().questions)
    assert sum(answer.is_right for answer in answers) > len(answers) / 2
    assert all(len(answer.memories) <= 5 for answer in answers)


def _left_running_in(home: str) -> list[int]:
    """Processes that still name the folder after a moment in which they may end."""
    deadline = time.monotonic() + 10
    while (found := _running_in(home)) and time.monotonic() < deadline:
        pass
    return found


def _running_in(home: str) -> list[int]:
    """Processes that name the folder on their command line."""
    return [
        process.pid
        for process in psutil.process_iter()
        if process.pid != os.getpid() and any(home in word for word in _command_of(process))
    ]


def _command_of(process: psutil.Process) -> list[str]:
    try:
        words: list[str] = process.cmdline()
    except psutil.Error:
        return []
    return words
