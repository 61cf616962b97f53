"""Real servers for every test: those of the environment, else embedded ones in a short folder."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import hypothesis
import pytest

from afterturn import embedded
from afterturn.database import Database
from afterturn.migrations import migrate
from afterturn.settings import Settings

# A shell that starts tests in the background ignores these for all that they start in turn.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# How long an example takes says nothing on a shared machine; a failure prints how to repeat it.
hypothesis.settings.register_profile(
    "afterturn",
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("afterturn")

_names = itertools.count(1)
TEMPLATE = f"at_template_{os.getpid()}"  # several test processes may share a server


@pytest.fixture(scope="session", autouse=True)
def _clean_environment() -> Iterator[None]:
    """No setting of the shell reaches a test, except the servers it names."""
    kept = {"AFTERTURN_DATABASE_URL", "AFTERTURN_BROKER_URL", "AFTERTURN_POSTGRES_BIN"}
    removed = {k: os.environ.pop(k) for k in list(os.environ) if k.startswith("AFTERTURN_")}
    os.environ.update({k: v for k, v in removed.items() if k in kept})
    yield
    os.environ.update(removed)


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    """A short folder of this test run (socket paths are limited)."""
    folder = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    yield folder
    embedded.stop(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def server_url(home: Path) -> str:
    """A PostgreSQL server's maintenance database."""
    given = os.environ.get("AFTERTURN_DATABASE_URL")
    if given:
        return given
    url = embedded.ensure(home, durable=False).database_url
    assert url is not None
    return url


@pytest.fixture(scope="session")
def broker_url(home: Path) -> str:
    """A Redis or Valkey server."""
    given = os.environ.get("AFTERTURN_BROKER_URL")
    if given:
        return given
    url = embedded.ensure(home, durable=False).broker_url
    assert url is not None
    return url


@pytest.fixture(scope="session")
def template_url(server_url: str) -> Iterator[str]:
    """A migrated database that the tests' own are copied from."""

    async def administer(statement: str) -> None:
        admin = await asyncpg.connect(server_url)
        try:
            await admin.execute(statement)
        finally:
            await admin.close()

    url = database_named(server_url, TEMPLATE)
    asyncio.run(administer(f'create database "{TEMPLATE}"'))
    try:
        asyncio.run(migrate(url, Settings()))
        yield url
    finally:
        asyncio.run(administer(f'drop database "{TEMPLATE}" with (force)'))


@pytest.fixture
async def database_url(server_url: str, template_url: str) -> AsyncIterator[str]:
    """A fresh, migrated database for one test, whose rows keep their rules to the end."""
    name = f"at_{os.getpid()}_{next(_names)}"
    admin = await asyncpg.connect(server_url)
    await admin.execute(f'create database "{name}" template "{TEMPLATE}"')
    url = database_named(server_url, name)
    yield url
    faults = await _faults(url)
    await admin.execute(f'drop database "{name}" with (force)')
    await admin.close()
    assert not faults


async def _faults(url: str) -> list[tuple[object, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [
            tuple(row)
            for audit in ("ledger_faults", "turn_faults")
            for row in await connection.fetch(f"select * from afterturn.{audit}()")
        ]
    except (
        asyncpg.InvalidSchemaNameError,
        asyncpg.UndefinedFunctionError,
        asyncpg.UndefinedTableError,
    ):
        return []  # the test took the schema away
    finally:
        await connection.close()


@pytest.fixture
def settings(home: Path, database_url: str, broker_url: str) -> Settings:
    """Settings for one test's database: no embedder, patient waits, quick retries."""
    return Settings(
        home=home,
        database_url=database_url,
        broker_url=broker_url,
        embedder="none",
        wait_timeout_seconds=30.0,
        retry_base_seconds=0.05,
        takeover_seconds=0.0,
    )


@pytest.fixture
async def database(database_url: str, settings: Settings) -> AsyncIterator[Database]:
    """A pool on the test's database; closing it proves that no connection is still in use."""
    pool = Database(database_url, settings, pool_size=8)
    yield pool
    await pool.close()


def database_named(url: str, name: str) -> str:
    """The same server's URL with another database."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"/{name}"))
