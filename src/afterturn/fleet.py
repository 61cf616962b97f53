"""The worker fleet seen from outside: where it lies and the commands that start its parts.

The packages `tasks` and `workers` are never importable in an application: the wheel carries them as
data, and each command puts that folder on the path of its own process only, first, and leaves the
current directory out (`-P`). So an application with a `tasks` package of its own keeps it, and
the workers keep theirs. Its extractor is still found: installed, through PYTHONPATH, or in the
current directory, which a worker searches last.
"""

from __future__ import annotations

import asyncio
import difflib
import ipaddress
import os
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from pydantic import SecretStr

from afterturn.errors import ConfigurationError
from afterturn.jobs.names import ALL_QUEUES
from afterturn.settings import PREFIX, Settings

EXIT_MISCONFIGURED: Final = 78  # EX_CONFIG: starting again will not help
EXIT_UNAVAILABLE: Final = 75  # EX_TEMPFAIL

# Variables of the host application that Celery or Flower would obey over our settings.
_FOREIGN: Final = (
    "CELERY_BROKER_URL",
    "CELERY_BROKER_READ_URL",
    "CELERY_BROKER_WRITE_URL",
    "CELERY_RESULT_BACKEND",
    "CELERY_LOADER",
    "CELERY_CONFIG_MODULE",
)
_FOREIGN_PREFIX: Final = "FLOWER_"


@dataclass(frozen=True)
class FleetCommand:
    """A command line and the whole environment it needs."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def fleet_directory() -> Path:
    """The folder with `tasks` and `workers`: in the installed package, or the checkout's root."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "_fleet", package.parents[1]):
        if (candidate / "workers" / "__main__.py").is_file():
            return candidate
    raise ConfigurationError(
        "The worker fleet is not where it should be",
        detail=f"looked in {package / '_fleet'} and {package.parents[1]}",
        hint="Install afterturn from its wheel, or work in a whole checkout.",
    )


def queue_names(text: str | Iterable[str]) -> tuple[str, ...]:
    """Queues as they are written on a command line: `record,extract` or their full names.

    Raises `ConfigurationError` that names the nearest queue.
    """
    words = text.split(",") if isinstance(text, str) else list(text)
    known = {name.removeprefix("afterturn."): name for name in ALL_QUEUES}
    found: dict[str, None] = {}
    for word in (word.strip() for word in words):
        short = word.removeprefix("afterturn.")
        if short not in known:
            near = difflib.get_close_matches(short, known, n=1, cutoff=0.0)[0]
            raise ConfigurationError(
                f"{word or 'An empty word'} is not a queue",
                detail=f"there are {', '.join(known)}",
                hint=f"Did you mean {near}?",
            )
        found[known[short]] = None
    return tuple(found)


def worker_command(
    queues: Sequence[str] = ALL_QUEUES,
    concurrency: int | None = None,
    name: str | None = None,
    *,
    settings: Settings | None = None,
    ready_file: Path | None = None,
    metrics_port: int | None = None,
) -> FleetCommand:
    """A worker for these queues; `ready_file` appears once it consumes."""
    options = ["worker", "--queues", ",".join(queue_names(queues))]
    if concurrency is not None:
        options += ["--concurrency", str(concurrency)]
    if name is not None:
        options += ["--name", name]
    if ready_file is not None:
        options += ["--ready-file", str(ready_file)]
    if metrics_port is not None:
        options += ["--metrics-port", str(metrics_port)]
    return _command(options, settings)


def beat_command(*, settings: Settings | None = None) -> FleetCommand:
    """The clock that has the workers sweep; several at once do no harm."""
    return _command(["beat"], settings)


def flower_command(settings: Settings) -> FleetCommand:
    """Flower, read-only. Raises `ConfigurationError` where strangers could look in."""
    check_flower(settings)
    return _command(["flower"], settings)


def check_flower(settings: Settings) -> None:
    """Refuse Flower on an address that others reach unless they have to log in."""
    login = settings.flower_basic_auth
    if login is not None:
        user, separator, password = login.get_secret_value().partition(":")
        if not (user and separator and password):
            raise ConfigurationError(
                "AFTERTURN_FLOWER_BASIC_AUTH cannot be used",
                detail="it is not of the form user:password",
            )
    elif not settings.flower_read_only:
        raise ConfigurationError(
            "Flower would let everybody on this machine stop workers",
            detail="AFTERTURN_FLOWER_READ_ONLY is false",
            hint="Set AFTERTURN_FLOWER_BASIC_AUTH=user:password, or leave it read-only.",
        )
    elif not _is_loopback(settings.flower_address):
        raise ConfigurationError(
            "Flower would be open to everybody who reaches this machine",
            detail=f"AFTERTURN_FLOWER_ADDRESS is {settings.flower_address}",
            hint="Set AFTERTURN_FLOWER_BASIC_AUTH=user:password, or keep the address 127.0.0.1.",
        )


def port_is_free(address: str, port: int) -> bool:
    """Whether something could listen there now. Raises `OSError` for an unknown address."""
    family, kind, protocol, _, target = socket.getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(target)
        except OSError:
            return False
    return True


def environment(settings: Settings | None) -> dict[str, str]:
    """The environment for a part of the fleet: this one, ours first on the path, plus `settings`.

    Everything that was set by hand travels as variables, secrets too: a command line is public.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in _FOREIGN and not name.startswith(_FOREIGN_PREFIX)
    }
    paths = [str(fleet_directory()), env.get("PYTHONPATH", "")]
    env.setdefault("OPENBLAS_NUM_THREADS", "1")  # the processes of a worker share the cores
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if settings is not None:
        for field in settings.model_fields_set:
            value = getattr(settings, field)
            name = PREFIX + field.upper()
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
    return env


def with_servers(settings: Settings, *, database: bool = True) -> Settings:
    """These settings with both URLs: a missing one is that of the embedded server.

    Beat and Flower need only the broker (`database=False`).

    Blocks until the embedded servers answer and keeps them for this process. An embedded database
    is migrated; one given by URL is not. Raises `ConfigurationError`, `MemoryUnavailable`.
    """
    postgres = database and settings.database_url is None
    valkey = settings.broker_url is None
    if not (postgres or valkey):
        return settings
    from afterturn.embedded import ensure
    from afterturn.migrations import migrate

    servers = ensure(settings.home, postgres=postgres, valkey=valkey)
    urls: dict[str, str | None] = {}
    if valkey:
        urls["broker_url"] = servers.broker_url
    if postgres:
        urls["database_url"] = servers.database_url
        asyncio.run(migrate(str(servers.database_url), settings))
    return settings.model_copy(update=urls)


def execute(command: FleetCommand) -> NoReturn:
    """Become this command: signals and the exit code are then its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command.argv[0], command.argv, dict(command.env))  # noqa: S606 - no shell wanted


def _command(options: Sequence[str], settings: Settings | None) -> FleetCommand:
    argv = (sys.executable, "-P", "-m", "workers", *options)
    return FleetCommand(argv, environment(settings))


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
