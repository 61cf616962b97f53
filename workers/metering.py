"""A worker's metrics: where its processes count, and the process that serves what they counted."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import billiard

from afterturn.errors import ConfigurationError
from afterturn.fleet import port_is_free
from afterturn.processes import Launch, spawn
from afterturn.settings import Settings

_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


def start(settings: Settings) -> None:
    """Serve this worker's metrics if AFTERTURN_METRICS_PORT asks for it.

    Must come before anything is counted and before the pool forks. Raises `ConfigurationError`
    when the port is taken.
    """
    if not settings.metrics_port:
        return
    if not port_is_free(settings.metrics_address, settings.metrics_port):
        raise ConfigurationError(
            "The port for metrics is taken",
            detail=f"{settings.metrics_address}:{settings.metrics_port}",
            hint="Each worker of a machine needs one of its own: `afterturn worker "
            "--metrics-port`.",
        )
    directory = Path(tempfile.mkdtemp(prefix="afterturn-metrics-"))
    os.environ[_DIRECTORY] = str(directory)
    from prometheus_client import values

    # A file a place in the pool and not a process: processes are replaced for years.
    values.ValueClass = values.MultiProcessValue(_place)  # type: ignore[no-untyped-call]  # no types
    command = [sys.executable, "-P", "-m", "workers", "metrics", "--directory", str(directory)]
    spawn(command, Launch(env=_environment(settings)))


def _environment(settings: Settings) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name != _DIRECTORY}
    return {**env, "AFTERTURN_METRICS_PORT": str(settings.metrics_port)}


def _place() -> str:
    """The same for a process of the pool and for the one that replaces it after its end."""
    index = getattr(billiard.current_process(), "index", None)
    return "main" if index is None else f"place-{index}"
