"""Beat and Flower as processes."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it ships no types
import pytest
from pydantic import SecretStr

from afterturn.fleet import EXIT_MISCONFIGURED, beat_command, flower_command
from afterturn.jobs.names import SWEEP_QUEUE, SWEEP_TASK
from afterturn.settings import Settings

from .running import Valkey, any_port, http_status, launch, wait_until

pytestmark = pytest.mark.fleet


@pytest.fixture
def empty(directory: Path) -> Path:
    """A current directory to be left as it is."""
    path = directory / "empty"
    path.mkdir()
    return path


def test_beat_ticks_and_never_piles_up(
    settings: Settings, broker: Valkey, directory: Path, empty: Path
) -> None:
    """Ticks arrive, as many as may wait and no more; no file is written; the broker's restart is
    survived."""
    quick = settings.model_copy(update={"sweep_seconds": 0.1})
    beat = launch(beat_command(settings=quick), directory, cwd=empty, stub=False)
    try:
        wait_until(lambda: beat.said("ticks wait"), "it holds back")
        ticks = broker.messages(SWEEP_QUEUE)
        assert len(ticks) == 5
        assert {tick["headers"]["task"] for tick in ticks} == {SWEEP_TASK}
        assert all(tick["headers"]["expires"] for tick in ticks)
        broker.kill()
        broker.start()
        wait_until(lambda: len(broker.messages(SWEEP_QUEUE)) == 5, "it ticks again")
        assert beat.stop() == 0
    finally:
        beat.kill()
    assert list(empty.iterdir()) == []


class TestFlower:
    @pytest.fixture
    def asked(self, settings: Settings) -> Settings:
        return settings.model_copy(
            update={
                "flower_port": any_port(),
                "flower_basic_auth": SecretStr("me:pass,word"),
            }
        )

    def test_strangers_and_writers_are_refused(
        self, asked: Settings, broker: Valkey, directory: Path, empty: Path
    ) -> None:
        """Without the login nothing is shown, with it everything is read-only; a configuration
        file and variables of somebody else's Flower change nothing; the login is in no command
        line."""
        (empty / "flowerconfig.py").write_text("raise SystemExit('read')\n")
        flower = launch(
            flower_command(asked),
            directory,
            cwd=empty,
            stub=False,
            extra_env={"FLOWER_BASIC_AUTH": "other:one", "FLOWER_PORT": "1"},
        )
        try:
            url = f"http://127.0.0.1:{asked.flower_port}"
            wait_until(lambda: flower.said(url), "it listens")
            assert http_status(f"{url}/") == 401
            assert http_status(f"{url}/", "other:one") == 401
            assert http_status(f"{url}/", "me:pass") == 401
            assert http_status(f"{url}/", "me:pass,word") == 200
            assert http_status(f"{url}/api/tasks", "me:pass,word") == 200
            post = f"{url}/api/task/send-task/{SWEEP_TASK}"
            assert http_status(post, "me:pass,word", method="POST") == 403
            assert "pass,word" not in " ".join(psutil.Process(flower.pid).cmdline())
            listening = psutil.Process(flower.pid).net_connections("inet")
            assert {each.laddr.ip for each in listening if each.status == "LISTEN"} == {"127.0.0.1"}
            assert flower.stop() == 0
        finally:
            flower.kill()
        assert [path.name for path in empty.iterdir()] == ["flowerconfig.py"]

    def test_a_taken_port(self, asked: Settings, directory: Path, empty: Path) -> None:
        """A port that is taken is named in one line."""
        with socket.create_server(("127.0.0.1", asked.flower_port)):
            flower = launch(flower_command(asked), directory, cwd=empty, stub=False)
            assert flower.process.wait(45) == EXIT_MISCONFIGURED
        assert f"127.0.0.1:{asked.flower_port}" in flower.output()
        assert len(flower.output().splitlines()) == 1
