"""Examples in tests: loaded as modules or run as programs, on the test's database."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import asyncpg
import pytest

from afterturn.settings import Settings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def environment(settings: Settings) -> dict[str, str]:
    """The settings of a test as another process needs them; no warning is let pass there."""
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(("AFTERTURN_", "AGENT_"))},
        "AFTERTURN_HOME": str(settings.home),
        "AFTERTURN_DATABASE_URL": str(settings.database_url),
        "AFTERTURN_BROKER_URL": str(settings.broker_url),
        "AFTERTURN_EMBEDDER": "none",
        "AFTERTURN_TAKEOVER_SECONDS": "0",
        "PYTHONUNBUFFERED": "1",
    }


@contextmanager
def loaded(name: str, variables: Mapping[str, str]) -> Iterator[ModuleType]:
    """An example as a module, with these variables set while it is used."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in variables.items():
            patch.setenv(variable, value)
        patch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        yield module


async def connections(settings: Settings) -> int:
    """How many connections to the test's database there are besides the one that asks."""
    connection = await asyncpg.connect(settings.database_url)
    try:
        return int(
            await connection.fetchval(
                "select count(*) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
        )
    finally:
        await connection.close()
