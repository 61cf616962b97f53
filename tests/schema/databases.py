"""Databases of a test's own, beside the migrated one."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from tests.conftest import database_named

_names = itertools.count(1)


@asynccontextmanager
async def new_database(server_url: str) -> AsyncIterator[str]:
    """The URL of an empty database that goes when the block ends."""
    name = f"at_empty_{os.getpid()}_{next(_names)}"
    admin = await asyncpg.connect(server_url)
    try:
        await admin.execute(f'create database "{name}"')
        yield database_named(server_url, name)
        await admin.execute(f'drop database if exists "{name}" with (force)')
    finally:
        await admin.close()
