"""The compose file: of the schema, and its broker's rules tried on a real one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml  # type: ignore[import-untyped]  # it ships no types

from afterturn.embedded.binaries import find_valkey
from afterturn.settings import Settings
from tests.fleet.running import any_port, wait_until
from tests.operate.deployment import ROOT, deployed

FILE = ROOT / "docker-compose.yml"
PASSWORD = "letters0and1digits"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services, with anchors and merges resolved."""
    found: dict[str, Any] = yaml.safe_load(FILE.read_text("utf-8"))["services"]
    return found


def test_the_file_is_of_the_compose_schema() -> None:
    """As published by the compose specification."""
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", FILE],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_part_is_restarted_watched_and_without_rights(services: dict[str, Any]) -> None:
    """Except the one that runs once; servers have volumes; secrets come from the environment."""
    ours = {name: each for name, each in services.items() if each.get("image") == "afterturn"}
    assert set(ours) == {"migrate", "record", "extract", "lifecycle", "beat", "flower"}
    for name, service in services.items():
        assert service["restart"] == ("no" if name == "migrate" else "unless-stopped"), name
        assert ("healthcheck" in service) == (name != "migrate"), name
    for service in ours.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True
    for name in ("postgres", "valkey"):
        assert services[name]["volumes"]
    for line in FILE.read_text("utf-8").splitlines():
        if "PASSWORD" in line and not line.startswith("#"):
            assert ":?set it in .env}" in line, line
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_each_command_exists(services: dict[str, Any]) -> None:
    """What the image's entry point is given can be asked for help."""
    for service in services.values():
        if service.get("image") == "afterturn":
            for words in (service["command"], service.get("healthcheck", {}).get("test", [])[2:]):
                if words:
                    done = subprocess.run(
                        [shutil.which("afterturn", path=str(Path(sys.executable).parent)) or "",
                         *words, "--help"],
                        capture_output=True,
                    )  # fmt: skip
                    assert done.returncode == 0, words


@pytest.fixture
def guarded(services: dict[str, Any], directory: Path) -> Iterator[int]:
    """The compose file's broker with its own arguments, on a port of loopback."""
    command = [
        word.replace("${VALKEY_PASSWORD:?set it in .env}", PASSWORD)
        for word in services["valkey"]["command"][1:]
    ]
    port = any_port()
    more = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]
    process = subprocess.Popen([str(find_valkey()), *command, *more], stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port, username="afterturn", password=PASSWORD) as client:
            wait_until(lambda: _answers(client), "the broker answers")
        yield port
    finally:
        process.terminate()
        process.wait()


@pytest.mark.fleet
@pytest.mark.slow
def test_the_brokers_user_can_what_the_fleet_does_and_no_more(
    guarded: int, directory: Path, database_url: str, settings: Settings
) -> None:
    """Workers, beat and probes work through it; emptying, configuring and others' keys do not."""
    with redis.Redis(port=guarded) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    with redis.Redis(port=guarded, username="afterturn", password=PASSWORD) as client:
        for refused in (
            ("FLUSHALL",), ("CONFIG", "GET", "*"), ("KEYS", "*"), ("SHUTDOWN",), ("MONITOR",),
            ("ACL", "LIST"), ("SET", "others", 1),
        ):  # fmt: skip
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*refused)
    url = f"redis://afterturn:{PASSWORD}@127.0.0.1:{guarded}/0"
    with deployed(directory, database_url, url, AFTERTURN_EMBEDDER="none") as made:
        made.run_forever("afterturn worker --name all", "all")
        made.start("beat")
        made.start("flower")
        made.wait_until_well("everything works with these rights")
        for part in ("all", "beat", "flower"):
            assert made.type(f"afterturn doctor --part {part}").code == 0
        assert made.type("afterturn doctor --part nobody").code == 1
        for name in ("all", "beat", "flower"):
            assert "NOPERM" not in made.log(name).upper()
            assert PASSWORD not in made.log(name)
        made.kill("beat")
        wait_until(
            lambda: made.type("afterturn doctor --part beat").code == 1, "beat answers no more"
        )


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except (redis.ConnectionError, OSError):
        return False
