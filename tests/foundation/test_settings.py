"""Settings: read from the environment once, documented to the last one, silent about secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from afterturn.errors import ConfigurationError
from afterturn.settings import SECONDS_MAX, Settings
from tests.foundation import settings_table

SECRET = "hunter2"
NAMES = tuple(Settings.model_fields)

# For each setting a value that is not its default: as written in the environment, and as read.
OTHER_VALUES: dict[str, tuple[str, Any]] = {
    "home": ("/srv/at-home", Path("/srv/at-home")),
    "database_url": ("postgresql://a@b/c", "postgresql://a@b/c"),
    "broker_url": ("rediss://b/1", "rediss://b/1"),
    "extractor": ("none", "none"),
    "embedder": ("none", "none"),
    "model": ("small", "small"),
    "model_base_url": ("http://127.0.0.1:1/v1", "http://127.0.0.1:1/v1"),
    "statement_cache_size": ("0", 0),
    "cache_bytes": ("2097152", 2 << 20),
    "batch_turns_max": ("7", 7),
    "model_batch_tokens": ("700", 700),
    "fact_level": ("2", 2),
    "fact_layers": ("semantic, episodic", "semantic,episodic"),
    "embedder_dim": ("11", 11),
    "flower_address": ("::1", "::1"),
    "flower_read_only": ("false", False),
    "log_format": ("json", "json"),
}


@pytest.fixture(autouse=True)
def _without_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers of this test run are no part of what is read here."""
    for name in ("AFTERTURN_DATABASE_URL", "AFTERTURN_BROKER_URL"):
        monkeypatch.delenv(name, raising=False)


def test_every_setting_is_documented_as_it_is() -> None:
    """Name, default and meaning, in the order of the fields, and nothing that does not exist."""
    hint = "run `python -m tests.foundation.settings_table`"
    assert settings_table.documented().splitlines() == settings_table.table().splitlines(), hint
    for field in Settings.model_fields.values():
        assert field.description is not None
        assert field.description.endswith(".")


def test_what_is_read_elsewhere_is_documented_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each variable that is accepted without being a setting stands on the page."""
    page = settings_table.PAGE.read_text("utf-8")
    for name in ("POSTGRES_BIN", "VALKEY_SERVER", "ROOT_MODE"):
        assert f"`AFTERTURN_{name}`" in page
        monkeypatch.setenv(f"AFTERTURN_{name}", "x")
    Settings.load()


def test_without_an_environment_there_are_defaults() -> None:
    """No server is named, memory is extracted by rules, and the home is the user's."""
    settings = Settings.load()
    assert settings.database_url is None
    assert settings.broker_url is None
    assert (settings.extractor, settings.embedder) == ("rules", "wordllama")
    assert settings.home.is_absolute()
    assert settings == Settings.load()


@pytest.mark.parametrize("name", NAMES)
def test_each_setting_is_read_from_its_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`AFTERTURN_` and the name; upper or lower case; and only that one changes."""
    default = Settings.load()
    written, expected = OTHER_VALUES.get(name, ("", None))
    if not written:
        kept = getattr(default, name)
        expected = SECRET if kept is None else type(kept)(11)
        written = str(expected)
    for variable in (f"AFTERTURN_{name.upper()}", f"afterturn_{name}"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, written)
            changed = Settings.load()
        value = getattr(changed, name)
        assert (
            value.get_secret_value() if hasattr(value, "get_secret_value") else value
        ) == expected
        others = [n for n in NAMES if getattr(changed, n) != getattr(default, n)]
        assert others == [name]


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_variable_is_an_unset_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As compose files and shells write what they do not have."""
    default = Settings.load()
    monkeypatch.setenv(f"AFTERTURN_{name.upper()}", "")
    assert Settings.load() == default


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("AFTERTURN_DATABASEURL", "AFTERTURN_DATABASE_URL"),
        ("AFTERTURN_REDIS_URL", "AFTERTURN_BROKER_URL"),
        ("AFTERTURN_POOLSIZE", "AFTERTURN_POOL_SIZE"),
        ("AFTERTURN_MAX_ATEMPTS", "AFTERTURN_MAX_ATTEMPTS"),
        ("afterturn_lease_second", "AFTERTURN_LEASE_SECONDS"),
        ("AFTERTURN_POSTGRES_BINARIES", "AFTERTURN_POSTGRES_BIN"),
        ("AFTERTURN_", None),
        ("AFTERTURN_ZZZ", None),
    ],
)
def test_a_variable_that_is_no_setting_is_refused(
    variable: str, meant: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the name that it was probably meant to be, and without its value."""
    monkeypatch.setenv(variable, SECRET)
    with pytest.raises(ConfigurationError, match=f"{variable} is not a setting") as raised:
        Settings.load()
    assert raised.value.hint.startswith("Did you mean AFTERTURN_")
    if meant:
        assert raised.value.hint == f"Did you mean {meant}?"
    assert SECRET not in str(raised.value)


def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the prefix counts."""
    monkeypatch.setenv("AFTERTURNS", "x")
    monkeypatch.setenv("MY_AFTERTURN_POOL_SIZE", "x")
    Settings.load()


@pytest.mark.parametrize("name", [n for n in NAMES if type(getattr(Settings(), n)) in (int, float)])
@pytest.mark.parametrize("value", [SECRET, "-1", "nan", "inf", "1e300", " "])
def test_a_value_that_cannot_be_used_is_named_and_not_shown(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else the number may be, it is a number that time and memory can have."""
    if value == "1e300" and isinstance(getattr(Settings(), name), int):
        value = "1.5"
    monkeypatch.setenv(f"AFTERTURN_{name.upper()}", value)
    with pytest.raises(ConfigurationError, match=f"AFTERTURN_{name.upper()} cannot be used") as e:
        Settings.load()
    assert e.value.detail.startswith("Input should be")
    assert SECRET not in str(e.value)
    assert e.value.__cause__ is None


def test_durations_go_up_to_a_hundred_years() -> None:
    """Which stands for never."""
    assert Settings(working_seconds=SECONDS_MAX).working_seconds == SECONDS_MAX
    with pytest.raises(ValidationError, match="working_seconds"):
        Settings(working_seconds=SECONDS_MAX * 1.01)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("database_url", f"mysql://alice:{SECRET}@h/db", "'mysql'"),
        ("database_url", f"alice:{SECRET}@h/db", "none"),
        ("database_url", SECRET, "none"),
        ("database_url", f"host=h password={SECRET}", "none"),
        ("database_url", f"redis://:{SECRET}@h", "'redis'"),
        ("broker_url", f"amqp://alice:{SECRET}@h", "'amqp'"),
        ("broker_url", f"h:6379/{SECRET}", "none"),
    ],
)
def test_a_url_with_another_scheme_is_refused(
    name: str, value: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheme is shown with those that would do; the rest could be a password."""
    monkeypatch.setenv(f"AFTERTURN_{name.upper()}", value)
    with pytest.raises(ConfigurationError, match=f"AFTERTURN_{name.upper()} has the wrong") as e:
        Settings.load()
    assert e.value.detail.startswith(f"got {shown}, expected one of ")
    assert SECRET not in str(e.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("database_url", "postgresql://alice@/db?host=/tmp/run&port=5432"),
        ("database_url", "postgres://alice:x@[::1]:5432/db"),
        ("broker_url", "redis://h/0"),
        ("broker_url", "redis+socket:///tmp/valkey.sock"),
        ("broker_url", "unix:///tmp/valkey.sock?db=1"),
    ],
)
def test_urls_of_servers_are_taken_as_they_are(name: str, value: str) -> None:
    """Sockets and IPv6 included."""
    assert getattr(Settings(**{name: value}), name) == value  # type: ignore[arg-type]


def test_settings_can_be_logged() -> None:
    """Neither passwords in URLs nor keys stand in their text."""
    settings = Settings(
        database_url=f"postgresql://alice:{SECRET}@h/db",
        broker_url=f"redis://:{SECRET}@h/0",
        model_api_key=SECRET,
        flower_basic_auth=f"alice:{SECRET}",
    )
    assert SECRET not in repr(settings) + str(settings) + f"{settings!r}"
    assert settings.database_url is not None
    assert SECRET in settings.database_url


def test_settings_are_frozen_and_closed() -> None:
    """They are passed in, never changed; a misspelt name is refused without its value."""
    settings = Settings()
    with pytest.raises(ValidationError, match="frozen"):
        setattr(settings, "pool_size", 3)  # noqa: B010 - the type checker refuses it, too
    with pytest.raises(ValidationError, match="database_urll") as raised:
        Settings(database_urll=SECRET)  # type: ignore[call-arg]
    assert SECRET not in str(raised.value)
