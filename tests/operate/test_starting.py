"""What a worker looks at before it says that it is ready, and what it says when it cannot work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from afterturn import migrations
from afterturn.fleet import EXIT_MISCONFIGURED
from tests.fleet.running import Valkey, any_port
from tests.operate.deployment import Deployment, deployed, wait_until
from tests.schema.databases import new_database

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(300)]

WORKER = "afterturn worker --name all"
STORED = "update afterturn.installation set embedder_model = 'right-model', embedder_dim = 3"
FUTURE = "insert into afterturn.migrations values (9001, 'later', now())"
SERVED = """
create or replace function afterturn.served(out oldest integer, out newest integer)
language sql immutable as 'select {}, 9001'
"""


@pytest.fixture
def deployment(directory: Path, database_url: str, broker: Valkey) -> Iterator[Deployment]:
    """Settings of a worker; none runs."""
    with deployed(directory, database_url, broker.url) as made:
        yield made


@pytest.fixture
def empty_url(server_url: str) -> Iterator[str]:
    """The URL of a database that was never migrated."""
    with asyncio.Runner() as runner:
        made = new_database(server_url)
        yield runner.run(made.__aenter__())
        runner.run(made.__aexit__(None, None, None))


def test_one_without_tables_is_refused_until_it_is_migrated(
    deployment: Deployment, empty_url: str
) -> None:
    """With what was seen and the command, in one line; kept running, it is not started again."""
    env = {"AFTERTURN_DATABASE_URL": empty_url}
    for command in (WORKER, f"{WORKER} --keep-running"):
        refused = deployment.type(command, **env)
        assert refused.code == EXIT_MISCONFIGURED
        (line,) = refused.output.splitlines()
        assert "it is at migration 0, this release needs" in line
        assert "Run `afterturn migrate`" in line
    up = deployment.type("afterturn up", **env)
    assert up.code == 1
    assert "Run `afterturn migrate`" in up.words
    assert deployment.type("afterturn migrate", **env).code == 0
    _is_ready(deployment, **env)


def test_a_newer_one_is_refused_unless_it_serves_this_release(
    deployment: Deployment, database_url: str
) -> None:
    """A worker of the release before can start again while others are replaced."""
    newest = migrations.migrations()[-1].version
    for served in (FUTURE, SERVED.format(newest + 1)):
        _sql(database_url, served)
        refused = deployment.type(WORKER)
        assert refused.code == EXIT_MISCONFIGURED
        assert f"it is at migration 9001, this release knows {newest}" in refused.words
        assert "Install the afterturn release" in refused.words
    _sql(database_url, SERVED.format(newest))
    _is_ready(deployment)
    assert not {"schema", "embedder"} & deployment.doctor().keys()


def test_another_embedder_than_that_of_the_vectors_is_refused(
    deployment: Deployment, database_url: str
) -> None:
    """Both are named, and what to type; so is a factory that fails. Without one it may work."""
    _sql(database_url, STORED)
    wrong = deployment.type(WORKER, AFTERTURN_EMBEDDER="tiny:wrong")
    assert wrong.code == EXIT_MISCONFIGURED
    assert "stored right-model with 3 dimensions, configured wrong-model" in wrong.words
    assert "afterturn reembed" in wrong.words
    missing = deployment.type(WORKER, AFTERTURN_EMBEDDER="tiny:missing")
    assert missing.code == EXIT_MISCONFIGURED
    assert "AFTERTURN_EMBEDDER=tiny:missing cannot be used" in missing.words
    _is_ready(deployment, AFTERTURN_EMBEDDER="none")
    _is_ready(deployment)


def test_one_that_does_not_answer_yet_is_waited_for(
    deployment: Deployment, database_url: str, server_url: str
) -> None:
    """It says so, once, ends when it is told to, and is ready when the database is there."""
    name = urlsplit(database_url).path.removeprefix("/")
    _sql(server_url, f'alter database "{name}" rename to "{name}_away"')
    try:
        for part in ("ended", "waiting"):
            deployment.run_forever(WORKER, part)
            _says(deployment, part, "waits for the database")
        deployment.parts["ended"].terminate()
        assert deployment.parts["ended"].wait(30) == 0
        nowhere = f"postgresql://a@127.0.0.1:{any_port()}/b"
        deployment.run_forever(WORKER, "nowhere", AFTERTURN_DATABASE_URL=nowhere)
        _says(deployment, "nowhere", "cannot be reached (ConnectionRefusedError)")
    finally:
        _sql(server_url, f'alter database "{name}_away" rename to "{name}"')
    _says(deployment, "waiting", " ready.")
    assert deployment.log("waiting").count("waits for the database") == 1
    assert "Traceback" not in deployment.log("ended") + deployment.log("waiting")


def _is_ready(deployment: Deployment, **changes: str) -> None:
    deployment.run_forever(WORKER, "worker", **changes)
    _says(deployment, "worker", " ready.")
    deployment.kill("worker")
    (deployment.directory / "worker.log").unlink()


def _says(deployment: Deployment, part: str, what: str) -> None:
    wait_until(lambda: what in deployment.log(part), f"{part} says: {what}")


def _sql(url: str, statement: str) -> None:
    async def execute() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(execute())
