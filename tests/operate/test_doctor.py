"""Each check of the doctor, red for its fault and for nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from afterturn import Memory, MemoryScope, probes
from afterturn.cli import main
from afterturn.doctor import Check, Doctor, check_flower_guarded
from afterturn.settings import Settings
from tests.conftest import TEMPLATE
from tests.fleet.running import Valkey
from tests.schema.databases import new_database

pytestmark = pytest.mark.usefixtures("template_url")

SCOPE = MemoryScope.of("acme", "alice")


@pytest.fixture
def asked(settings: Settings, broker: Valkey) -> Settings:
    """A database and a broker, and nobody at work."""
    return settings.model_copy(update={"broker_url": broker.url})


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is there to answer a ping."""
    monkeypatch.setattr(probes, "_PING_SECONDS", 0.1)


async def _found(settings: Settings, **options: Any) -> dict[str, Check]:
    checks = await Doctor(settings, probe_seconds=0.2, **options).examine()
    return {check.name: check for check in checks if check.verdict == "wrong"}


NOBODY_WORKS = {"queue record", "queue extract", "queue lifecycle", "queue sweep", "beat"}


async def test_where_nobody_works_each_queue_and_the_beat_are_named(asked: Settings) -> None:
    """And nothing else; each with the command that starts what is missing."""
    found = await _found(asked)
    assert found.keys() == NOBODY_WORKS
    for name in ("record", "extract", "lifecycle", "sweep"):
        assert found[f"queue {name}"].mend.startswith(f"afterturn worker --queues {name}")
    assert found["beat"].mend.startswith("afterturn beat")


async def test_probes_that_nobody_took_are_no_work_for_later(
    asked: Settings, broker: Valkey
) -> None:
    """They expire in the queue, and their rows go."""
    await _found(asked)
    (message,) = broker.messages("afterturn.extract")
    assert message["headers"]["expires"]
    assert message["headers"]["task"] == "afterturn.probe"


async def test_an_old_job_is_wrong_although_everything_answers(asked: Settings) -> None:
    """Older than the bound, that is."""
    async with Memory(asked) as memory, memory.turn(SCOPE) as turn:
        await turn.finish("one", "two")
    assert "work" not in await _found(asked, oldest_seconds=3_600)
    found = await _found(asked, oldest_seconds=0.0)
    assert "the oldest record job has waited" in found["work"].says
    assert found["work"].mend.startswith("afterturn jobs list --kind record")


async def test_without_a_database_the_rest_is_skipped(asked: Settings, tmp_path: Path) -> None:
    """One thing to mend, not ten."""
    away = asked.model_copy(update={"database_url": f"postgresql://a@/b?host={tmp_path}"})
    checks = await Doctor(away, probe_seconds=0.2).examine()
    assert [check.name for check in checks if check.verdict == "wrong"] == ["database"]
    assert "AFTERTURN_DATABASE_URL" in checks[0].mend
    assert [check.name for check in checks if check.verdict == "skipped"] == ["workers"]


async def test_without_a_broker_it_is_the_broker(asked: Settings, broker: Valkey) -> None:
    """Dead and frozen alike; the workers are not asked for then."""
    broker.freeze()
    assert (await _found(asked)).keys() == {"broker"}
    broker.thaw()
    broker.kill()
    found = await _found(asked)
    assert found.keys() == {"broker"}
    assert "AFTERTURN_BROKER_URL" in found["broker"].mend


async def test_a_broker_that_forgets_or_refuses_is_wrong(asked: Settings, broker: Valkey) -> None:
    """Eviction, and a password that is not the one."""
    with broker.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert "maxmemory-policy noeviction" in (await _found(asked))["eviction"].mend
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("requirepass", "secret-of-the-broker")
    found = await _found(asked)
    assert found.keys() == {"broker"}
    assert "password" in found["broker"].mend


@pytest.mark.parametrize(
    ("statement", "name", "mend"),
    [
        ("drop schema afterturn cascade", "schema", "afterturn migrate"),
        (
            "delete from afterturn.migrations where version = "
            "(select max(version) from afterturn.migrations)",
            "schema",
            "afterturn migrate",
        ),
        (
            "insert into afterturn.migrations values (9999, 'later', clock_timestamp())",
            "schema",
            "install that release, or a later one",
        ),
        (
            "update afterturn.installation set functions_digest = 'other'",
            "schema",
            "afterturn migrate",
        ),
        (
            "update afterturn.installation set embedder_model = 'other', embedder_dim = 3",
            "embedder",
            "set AFTERTURN_EMBEDDER back, or afterturn reembed",
        ),
    ],
)
async def test_what_stands_in_the_database(
    asked: Settings, server_url: str, statement: str, name: str, mend: str
) -> None:
    """Its migrations, its functions, whose vectors it holds."""
    async with _copy(server_url) as url:
        await _execute(url, statement)
        settings = asked.model_copy(update={"database_url": url, "embedder": "wordllama"})
        found = await _found(settings)
        assert found.keys() - NOBODY_WORKS == {name}
        assert found[name].mend == mend


async def test_a_ledger_that_breaks_a_rule(asked: Settings, server_url: str) -> None:
    """The rule is named, and where to look."""
    async with _copy(server_url) as url:
        there = asked.model_copy(update={"database_url": url})
        async with Memory(there) as memory, memory.turn(SCOPE) as turn:
            await turn.finish("one", "two")
        await _execute(url, "update afterturn.jobs set outcome = 'done'")
        found = await _found(asked.model_copy(update={"database_url": url}))
        assert "ended without an outcome" in found["ledger"].says
        await _execute(url, "delete from afterturn.jobs")
        await _execute(url, "update afterturn.turns set outcome = 'lost'")
        found = await _found(asked.model_copy(update={"database_url": url}))
        assert "unknown outcome" in found["ledger"].says


async def test_a_login_that_lacks_rights(asked: Settings, database_url: str) -> None:
    """Tables and rights are named, and the role to grant."""
    login = f"at_reader_{os.getpid()}"
    await _execute(
        database_url,
        f"create role {login} login; grant usage on schema afterturn to {login};"
        f"grant select on all tables in schema afterturn to {login};"
        f"grant insert, update, delete on afterturn.probes to {login}",
    )
    try:
        parts = urlsplit(database_url)
        host = parts.netloc.rpartition("@")[2]
        url = urlunsplit(parts._replace(netloc=f"{login}@{host}"))
        found = await _found(asked.model_copy(update={"database_url": url}))
        assert found.keys() - NOBODY_WORKS == {"rights"}
        assert "turns: insert, update, delete" in found["rights"].says
        assert "afterturn migrate --roles" in found["rights"].mend
    finally:
        await _execute(database_url, f"drop owned by {login}; drop role {login}")


async def test_clocks_that_differ(asked: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """By more than a slow answer explains."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 60)
    found = await _found(asked)
    assert found.keys() - NOBODY_WORKS == {"clocks"}
    assert "differ by 60 s" in found["clocks"].says


def test_flower_open_to_others(asked: Settings) -> None:
    """As the settings would have it; with a login it is guarded."""
    opened = asked.model_copy(update={"flower_address": "0.0.0.0"})  # noqa: S104 - refused
    check = check_flower_guarded(opened)
    assert check.verdict == "wrong"
    assert "AFTERTURN_FLOWER_BASIC_AUTH" in check.mend
    guarded = opened.model_copy(update={"flower_basic_auth": SecretStr("me:secret")})
    assert check_flower_guarded(guarded).verdict == "ok"


def test_the_command_for_people_and_for_scripts(asked: Settings) -> None:
    """Exit code 1, each fault with what mends it; the same as JSON."""
    env = {
        "AFTERTURN_HOME": str(asked.home),
        "AFTERTURN_DATABASE_URL": str(asked.database_url),
        "AFTERTURN_BROKER_URL": str(asked.broker_url),
        "AFTERTURN_EMBEDDER": "none",
    }
    shown = CliRunner().invoke(main, ["doctor", "--patience", "0.2"], env=env)
    assert shown.exit_code == 1
    assert shown.stdout.count("WRONG") == shown.stdout.count("mend: ") == len(NOBODY_WORKS)
    assert shown.stdout.endswith(f"{len(NOBODY_WORKS)} to mend\n")
    read = CliRunner().invoke(main, ["doctor", "--patience", "0.2", "--json"], env=env)
    assert read.exit_code == 1
    document = json.loads(read.stdout)
    wrong = {check["name"] for check in document["checks"] if check["verdict"] == "wrong"}
    assert (document["ok"], wrong) == (False, NOBODY_WORKS)


def test_status_is_watched_until_it_is_interrupted(asked: Settings) -> None:
    """One look after the other, then exit code 0."""
    process = subprocess.Popen(
        [Path(sys.executable).with_name("afterturn"), "status", "--watch", "--every", "0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "AFTERTURN_HOME": str(asked.home),
            "AFTERTURN_DATABASE_URL": str(asked.database_url),
            "AFTERTURN_BROKER_URL": str(asked.broker_url),
        },
    )
    assert process.stdout is not None
    looks = 0
    for line in process.stdout:
        looks += line == "all is well\n"
        if looks == 3:
            process.send_signal(signal.SIGINT)
            break
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


@asynccontextmanager
async def _copy(server_url: str) -> AsyncIterator[str]:
    """A migrated database whose state nobody checks afterwards."""
    async with new_database(server_url) as url:
        name = url.partition("?")[0].rpartition("/")[2]
        await _execute(server_url, f'drop database "{name}"')
        await _execute(server_url, f'create database "{name}" template "{TEMPLATE}"')
        yield url


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
