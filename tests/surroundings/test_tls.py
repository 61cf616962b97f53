"""Both servers over TCP, with TLS and passwords in the URLs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from afterturn import Memory
from afterturn.errors import MemoryUnavailable
from afterturn.jobs.rings import RingPublisher
from afterturn.migrations import migrate
from afterturn.settings import Settings
from tests.cli.command import CommandLine
from tests.fleet.running import Valkey, any_port, wait_until

from . import servers
from .conftest import StartWorker
from .servers import DEBIAN_15, OPENSSL, PASSWORD, QUOTED, Certificate, Postgres
from .turns import travel

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.skipif(not OPENSSL, reason="openssl is not installed (openssl)"),
    pytest.mark.skipif(
        not (DEBIAN_15 / "postgres").is_file(),
        reason="no PostgreSQL with TLS: postgresql-15 is not installed",
    ),
]


@dataclass(frozen=True)
class Place:
    """Servers that want TLS and a password."""

    postgres: Postgres
    broker_port: int
    certificate: Certificate

    @property
    def database_url(self) -> str:
        return self.postgres.url(
            query=f"?sslmode=verify-full&sslrootcert={self.certificate.certificate}"
        )

    @property
    def broker_url(self) -> str:
        return (
            f"rediss://:{QUOTED}@127.0.0.1:{self.broker_port}/0"
            f"?ssl_ca_certs={self.certificate.certificate}"
        )


@pytest.fixture
def place(directory: Path) -> Iterator[Place]:
    """PostgreSQL 15 and Valkey."""
    certificate = Certificate.make(directory)
    postgres = Postgres(directory / "pg", DEBIAN_15, certificate)
    postgres.create()
    postgres.start()
    valkey = Valkey(directory, any_port(), password=PASSWORD)
    valkey.start()
    try:
        with servers.behind_tls(certificate, valkey.port) as port:
            yield Place(postgres, port, certificate)
    finally:
        valkey.kill()
        postgres.stop()


@pytest.fixture
def secure(place: Place, directory: Path) -> Settings:
    """Settings whose URLs hold passwords, for a migrated database."""
    settings = Settings(
        home=directory / "home",
        database_url=place.database_url,
        broker_url=place.broker_url,
        embedder="none",
        worker_concurrency=1,
    )
    asyncio.run(migrate(place.database_url, settings))
    return settings


def test_a_turn_travels_over_tls_with_passwords(
    secure: Settings, start_worker: StartWorker
) -> None:
    """Caller, worker and command reach both servers, and no password is printed anywhere."""
    worker = start_worker(secure)
    asyncio.run(travel(secure))
    command = CommandLine(
        {
            "AFTERTURN_HOME": str(secure.home),
            "AFTERTURN_DATABASE_URL": str(secure.database_url),
            "AFTERTURN_BROKER_URL": str(secure.broker_url),
        }
    )
    status = command.run("status", "--check", "--json")
    assert status.json["broker"]["reachable"]
    assert status.code == 0
    assert worker.stop() == 0
    told = worker.output() + status.stdout + repr(secure)
    assert PASSWORD not in told
    assert QUOTED not in told


# asyncpg leaves it to the loop to close a connection that was refused after the TLS handshake, and
# the loop of a failed `open` ends at once.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_without_the_password_or_the_right_certificate_nothing_is_reached(
    secure: Settings, place: Place, directory: Path
) -> None:
    """An error of ours that does not quote the password, and rings that fail."""
    elsewhere = directory / "other"
    elsewhere.mkdir()
    other = Certificate.make(elsewhere).certificate
    for url in (
        place.postgres.url(word="wrong", query="?sslmode=require"),
        place.postgres.url(query="?sslmode=disable"),
        place.postgres.url(query=f"?sslmode=verify-full&sslrootcert={other}"),
    ):
        with pytest.raises(MemoryUnavailable) as raised:
            asyncio.run(_open(secure.model_copy(update={"database_url": url})))
        assert PASSWORD not in str(raised.value)
    gc.collect()  # where the filter holds
    for url in (
        f"rediss://:wrong@127.0.0.1:{place.broker_port}/0?ssl_ca_certs="
        f"{place.certificate.certificate}",
        f"rediss://:{QUOTED}@127.0.0.1:{place.broker_port}/0?ssl_ca_certs={other}",
        f"rediss://:{QUOTED}@127.0.0.1:{place.broker_port}/0",
    ):
        _assert_no_ring_is_taken(RingPublisher(url, secure))


def _assert_no_ring_is_taken(publisher: RingPublisher) -> None:
    publisher.ring("record", [1])
    wait_until(lambda: publisher.stats().failed == 1, "the ring fails")
    publisher.close(0)


async def _open(settings: Settings) -> None:
    async with Memory(settings):
        pass
