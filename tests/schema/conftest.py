"""A database without afterturn, and a desk that runs jobs one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.pipeline.conftest import desk
from tests.schema.databases import new_database

__all__ = ["desk"]


@pytest.fixture
async def empty_url(server_url: str) -> AsyncIterator[str]:
    """The URL of an empty database."""
    async with new_database(server_url) as url:
        yield url
