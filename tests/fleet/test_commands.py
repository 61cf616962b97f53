"""The command lines of the fleet, and that they work from anywhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from afterturn.errors import ConfigurationError
from afterturn.fleet import (
    EXIT_MISCONFIGURED,
    beat_command,
    check_flower,
    environment,
    fleet_directory,
    flower_command,
    queue_names,
    worker_command,
)
from afterturn.jobs.names import ALL_QUEUES, EXTRACT_QUEUE, RECORD_QUEUE
from afterturn.settings import Settings

from .running import MARKER, Valkey, launch, wait_until


class TestQueueNames:
    def test_short_and_full_names(self) -> None:
        """Queues may be written short or in full, blanks and repetitions do no harm."""
        assert queue_names("record, afterturn.extract,record") == (RECORD_QUEUE, EXTRACT_QUEUE)
        assert queue_names(ALL_QUEUES) == ALL_QUEUES

    @pytest.mark.parametrize(("text", "near"), [("recrod", "record"), ("sweeps", "sweep")])
    def test_a_misspelt_name(self, text: str, near: str) -> None:
        """An unknown queue is refused with the nearest one."""
        with pytest.raises(ConfigurationError, match=f"Did you mean {near}"):
            queue_names(text)

    def test_nothing(self) -> None:
        """No queue at all is refused, too."""
        with pytest.raises(ConfigurationError):
            queue_names("")


class TestEnvironment:
    def test_the_fleet_comes_first_on_the_path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The caller's PYTHONPATH is kept, behind ours; the current directory is left out."""
        monkeypatch.setenv("PYTHONPATH", "/theirs")
        command = beat_command()
        assert command.argv[:4] == (sys.executable, "-P", "-m", "workers")
        assert command.env["PYTHONPATH"] == f"{fleet_directory()}{os.pathsep}/theirs"

    def test_the_hosts_celery_and_flower_are_left_out(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Variables that Celery or Flower would obey over our settings do not reach them."""
        monkeypatch.setenv("CELERY_BROKER_URL", "redis://theirs")
        monkeypatch.setenv("FLOWER_UNAUTHENTICATED_API", "true")
        monkeypatch.setenv("THEIRS", "kept")
        env = environment(None)
        assert "CELERY_BROKER_URL" not in env
        assert "FLOWER_UNAUTHENTICATED_API" not in env
        assert env["THEIRS"] == "kept"

    def test_settings_travel_as_variables(self, directory: Path) -> None:
        """A part loads the settings it was given; secrets are in no command line."""
        settings = Settings(
            home=directory,
            broker_url="redis://:secret@localhost/1",
            flower_basic_auth=SecretStr("me:secret"),
            sweep_seconds=0.5,
        )
        command = flower_command(settings)
        assert "secret" not in " ".join(command.argv)
        assert command.env["AFTERTURN_FLOWER_BASIC_AUTH"] == "me:secret"
        assert command.env["AFTERTURN_BROKER_URL"] == settings.broker_url
        assert command.env["AFTERTURN_SWEEP_SECONDS"] == "0.5"
        assert command.env["AFTERTURN_HOME"] == str(directory)


class TestFlowerAddress:
    @pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
    def test_loopback_needs_no_login(self, address: str) -> None:
        """On loopback Flower may run without a login."""
        check_flower(Settings(flower_address=address))

    @pytest.mark.parametrize("address", ["192.0.2.1", "::", "10.0.0.1", "example.org"])
    def test_elsewhere_it_does(self, address: str) -> None:
        """On any other address it may not, with one it may."""
        with pytest.raises(ConfigurationError, match="AFTERTURN_FLOWER_BASIC_AUTH"):
            flower_command(Settings(flower_address=address))
        flower_command(
            Settings(flower_address=address, flower_basic_auth=SecretStr("user:password"))
        )

    @pytest.mark.parametrize("login", ["hunter2", "hunter2:", ":hunter2"])
    def test_half_a_login(self, login: str) -> None:
        """A login without user or password is refused, and not quoted."""
        with pytest.raises(ConfigurationError) as caught:
            flower_command(Settings(flower_basic_auth=SecretStr(login)))
        assert "hunter2" not in str(caught.value)


THEIR_EXTRACTOR = """
from pathlib import Path

class Extractor:
    async def extract(self, request):
        raise NotImplementedError

def factory():
    Path("composed").touch()
    return Extractor()
"""


@pytest.mark.fleet
class TestTheirProject:
    @pytest.fixture
    def project(self, directory: Path) -> Path:
        """A project whose own packages bear our names and break whoever imports them."""
        project = directory / "project"
        for name in ("tasks", "workers", "celery", "redis", "asyncpg"):
            (project / name).mkdir(parents=True)
            (project / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
        (project / "their_extractor.py").write_text(THEIR_EXTRACTOR)
        return project

    def test_their_packages_do_not_win_and_their_extractor_is_found(
        self,
        project: Path,
        settings: Settings,
        database_url: str,
        broker: Valkey,
        directory: Path,
    ) -> None:
        """From a directory with `tasks` and `workers` of its own, without an activated
        environment, a worker runs ours and composes the extractor that lives there."""
        ready = directory / "ready"
        theirs = settings.model_copy(
            update={"extractor": "their_extractor:factory", "database_url": database_url}
        )
        worker = launch(
            worker_command(name="theirs", settings=theirs, ready_file=ready),
            directory,
            cwd=project,
            stub=False,
            extra_env={"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": ""},
        )
        try:
            wait_until(
                lambda: ready.exists() or worker.process.poll() is not None, "the worker is ready"
            )
            assert ready.exists(), worker.output()
            assert (project / "composed").exists()
            assert worker.stop() == 0
        finally:
            worker.kill()
        assert sorted(path.name for path in project.iterdir() if path.is_file()) == [
            "composed",
            "their_extractor.py",
        ]

    def test_an_extractor_that_cannot_be_composed(
        self, project: Path, settings: Settings, directory: Path
    ) -> None:
        """A worker says so in one line, before it takes any work, and is not worth a restart."""
        (project / "their_extractor.py").write_text(
            f"def factory():\n    raise ValueError('{MARKER}')"
        )
        theirs = settings.model_copy(update={"extractor": "their_extractor:factory"})
        worker = launch(worker_command(settings=theirs), directory, cwd=project, stub=False)
        assert worker.process.wait(45) == EXIT_MISCONFIGURED
        assert "their_extractor:factory" in worker.output()
        assert MARKER not in worker.output()
        assert len(worker.output().splitlines()) == 1
