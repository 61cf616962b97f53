"""What the erase tests share."""

from __future__ import annotations

import pytest

from afterturn.database import Database
from afterturn.settings import Settings
from tests.pipeline.conftest import Desk


@pytest.fixture
def desk(database: Database, settings: Settings) -> Desk:
    return Desk(database, settings)
