"""URLs of sockets for the three who read them."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from afterturn import embedded
from afterturn.embedded import redis_client_url
from afterturn.embedded.home import Home
from afterturn.errors import ConfigurationError

from .running import broker, execute


@pytest.mark.parametrize(
    ("broker_url", "expected"),
    [
        ("redis+socket:///run/valkey.sock?virtual_host=0", "unix:///run/valkey.sock?db=0"),
        ("redis+socket:///run/valkey.sock?virtual_host=3", "unix:///run/valkey.sock?db=3"),
        ("redis+socket:///run/valkey.sock", "unix:///run/valkey.sock"),
        ("socket:///a.sock?virtual_host=1", "unix:///a.sock?db=1"),
        (
            "redis+socket:///a.sock?virtual_host=1&password=p%26w",
            "unix:///a.sock?db=1&password=p%26w",
        ),
        ("redis://:pw@host:6379/2", "redis://:pw@host:6379/2"),
        ("rediss://host/0?ssl_cert_reqs=required", "rediss://host/0?ssl_cert_reqs=required"),
        ("unix:///a.sock?db=1", "unix:///a.sock?db=1"),
    ],
)
def test_broker_urls_become_urls_of_redis_py(broker_url: str, expected: str) -> None:
    """Celery's socket URL is rewritten, every other is passed through; redis-py takes it."""
    assert redis_client_url(broker_url) == expected
    redis.Redis.from_url(redis_client_url(broker_url)).close()


@pytest.mark.parametrize("name", ["long-" * 20, "mit Leerzeichen, Komma & Ümläut %20"])
def test_a_home_that_no_socket_path_can_hold(home: Path, name: str) -> None:
    """A path too long or too odd for a socket URL works all the same."""
    nested = home / name
    try:
        found = embedded.ensure(nested, durable=False)
        assert execute(found, "select 1") == 1
        with broker(found) as client:
            assert client.ping()
    finally:
        embedded.stop(nested)
    assert not list(Path("/tmp").glob(f"afterturn-*{Home(nested).tag}*"))


def test_a_socket_directory_of_another_user_is_refused(home: Path) -> None:
    """Somebody else's directory under our predictable name in /tmp is not used."""
    nested = Home(home / ("long-" * 20))
    nested.create()
    expected = nested.socket_directory(nested.path / "run")
    expected.rmdir()
    expected.symlink_to(home)
    try:
        with pytest.raises(ConfigurationError, match="someone else"):
            embedded.ensure(nested.path, postgres=False, durable=False)
    finally:
        embedded.stop(nested.path)
        expected.unlink()
