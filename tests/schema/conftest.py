"""A database without afterturn."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.schema.databases import new_database


@pytest.fixture
async def empty_url(server_url: str) -> AsyncIterator[str]:
    """The URL of an empty database."""
    async with new_database(server_url) as url:
        yield url
