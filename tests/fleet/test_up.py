"""The whole fleet at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it ships no types
import pytest

from afterturn import embedded, up
from afterturn.fleet import environment
from afterturn.settings import Settings

from .running import DEADLINE_SECONDS, Running, Valkey, any_port, is_gone, wait_until

pytestmark = pytest.mark.fleet

SCRIPT = """
import dataclasses, json, sys
from afterturn.errors import ConfigurationError
from afterturn.settings import Settings
from afterturn import up

def say(line):
    print(line, flush=True)

def ready(report):
    fields = {name: str(value) for name, value in dataclasses.asdict(report).items()}
    say("ready " + json.dumps(fields))

up._CRASHES_MAX = 3
try:
    up.run_up(Settings.load(), on_ready=ready, on_event=say)
except ConfigurationError as error:
    say(f"refused: {error}")
    sys.exit(3)
say("down")
"""
PARTS = ["beat", "extract", "flower", "lifecycle", "record"]

StartUp = Callable[..., Running]


@pytest.fixture
def start_up(directory: Path) -> Iterator[StartUp]:
    """Starts `run_up` in processes of its own; they have ended afterwards."""
    started: list[Running] = []

    def start(settings: Settings) -> Running:
        log = directory / f"up-{len(started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT],
                env=environment(settings),
                cwd=directory,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        started.append(Running(process, log, directory / "none"))
        return started[-1]

    yield start
    for running in started:
        running.kill()


@pytest.fixture
def asked(settings: Settings, database_url: str) -> Settings:
    """Settings with URLs of this test and a port for Flower."""
    changes = {"flower_port": any_port(), "database_url": database_url}
    return settings.model_copy(update=changes)


def test_from_nothing_to_the_end(start_up: StartUp, directory: Path) -> None:
    """From an empty home to workers that consume: what dies is started again, a second `up` of
    the home is refused, and a stop leaves no process and no file beside the home."""
    home = directory / "home"
    settings = Settings(
        home=home, extractor="none", embedder="none", worker_concurrency=1, flower_port=0
    )
    running = start_up(settings)
    try:
        report = _report(running)
        assert report["not_ready"] == "()"
        assert report["flower_url"].startswith("http://127.0.0.1:")
        assert report["database_url"].startswith("postgresql://")
        parts = running.children()
        assert {path.stem for path in (home / "logs").glob("*.log")} == set(PARTS)

        second = start_up(settings)
        assert second.process.wait(DEADLINE_SECONDS) == 3
        assert second.said("Another `afterturn up` has this home")

        (record,) = [
            each
            for each in psutil.Process(running.pid).children()
            if "afterturn.record" in each.cmdline()
        ]
        record.kill()
        wait_until(lambda: running.said("record ended with code -9"), "its death is noticed")
        wait_until(lambda: running.said("record is started again"), "it is started again")
        wait_until((home / "logs" / "record.ready").exists, "it consumes again")

        parts += running.children()
        assert running.stop() == 0
        assert running.output().splitlines()[-1] == "down"
        wait_until(lambda: all(is_gone(each.pid) for each in parts), "every part has ended")
    finally:
        embedded.stop(home)
    assert {path.name for path in directory.iterdir()} == {"home", "up-0.log", "up-1.log"}


@pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals are Linux's")
def test_nothing_outlives_a_killed_supervisor(start_up: StartUp, asked: Settings) -> None:
    """kill -9 of `up` ends every part and every process of its pools."""
    running = start_up(asked)
    _report(running)
    parts = running.children()
    assert len(parts) >= len(PARTS)
    running.kill()
    wait_until(lambda: all(is_gone(each.pid) for each in parts), "every part has ended")


def test_without_its_port_flower_stays_away(start_up: StartUp, asked: Settings) -> None:
    """When Flower's port is taken the report says so, and the workers run."""
    with socket.create_server(("127.0.0.1", asked.flower_port)):
        running = start_up(asked)
        report = _report(running)
    assert report["flower_url"] == "None"
    assert f":{asked.flower_port} is taken" in report["flower_refused"]
    assert report["not_ready"] == "()"
    assert running.stop() == 0


def test_what_cannot_run_is_not_run(start_up: StartUp, asked: Settings) -> None:
    """A part that cannot run as things are set ends the whole, with its reason."""
    running = start_up(asked.model_copy(update={"extractor": "no_such_module:factory"}))
    assert running.process.wait(DEADLINE_SECONDS) == 3
    assert running.said("no_such_module")
    assert not running.said("ready {")


def test_parts_that_crash_at_once_are_not_called_ready(
    start_up: StartUp, asked: Settings, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that end again and again before they consume end the whole, with their last line."""
    broken = directory / "broken"
    broken.mkdir()
    (broken / "billiard.py").write_text("raise ImportError('no such wheel')\n")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    running = start_up(asked)
    assert running.process.wait(DEADLINE_SECONDS) == 3
    assert running.said("no such wheel")
    assert not running.said("ready {")


def test_a_broker_out_of_reach_is_reported(asked: Settings, broker: Valkey) -> None:
    """Parts that are not at work in time are named, and everything ends on request."""
    broker.kill()
    others = psutil.Process().children()
    reports: list[up.UpReport] = []

    def ready(report: up.UpReport) -> None:
        reports.append(report)
        os.kill(os.getpid(), signal.SIGTERM)

    up.run_up(asked, flower=False, on_ready=ready, ready_seconds=0.5)
    assert reports[0].not_ready == ("record", "extract", "lifecycle")
    assert psutil.Process().children() == others


def test_what_keeps_parts_from_their_work_is_said(
    asked: Settings, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that does not answer is named before the report, with the part that waits."""
    monkeypatch.setattr(up, "_PATIENCE_SECONDS", 0.0)
    lines: list[str] = []

    def stop(line: str) -> None:
        lines.append(line)
        os.kill(os.getpid(), signal.SIGTERM)

    nowhere = f"postgresql://nobody@/nothing?host={directory}"
    away = asked.model_copy(update={"database_url": nowhere})
    up.run_up(away, flower=False, on_event=stop)
    assert " is not ready yet: " in lines[0]
    assert "waits for the database" in lines[0]


def test_a_log_stays_bounded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that has grown too long is put aside while its writer goes on at the beginning."""
    monkeypatch.setattr(up, "LOG_BYTES_MAX", 100)
    log = directory / "part.log"
    part = up._Part(child=_no_child(), log=log, is_ready=lambda: True)
    with log.open("a") as writer:
        for line in ("old\n" * 50, "new\n"):
            writer.write(line)
            writer.flush()
            part.bound_log()
    assert log.read_text() == "new\n"
    assert log.with_name("part.log.1").read_text() == "old\n" * 50


def _report(running: Running) -> dict[str, Any]:
    def line() -> str | None:
        assert running.process.poll() is None, running.output()
        found = [each for each in running.output().splitlines() if each.startswith("ready {")]
        return found[0] if found else None

    wait_until(line, "the fleet is ready")
    report: dict[str, Any] = json.loads((line() or "").removeprefix("ready "))
    return report


def _no_child() -> Any:
    return None
