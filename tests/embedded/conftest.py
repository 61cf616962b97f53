"""Homes of their own under a short path (sockets), and proof that nothing of them stays."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterturn import embedded

from .running import wait_until, working_below


@pytest.fixture
def home() -> Iterator[Path]:
    """A fresh home; afterwards its servers are stopped and no process works in it."""
    path = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    try:
        yield path
        embedded.stop(path)
        wait_until(lambda: not working_below(path), "processes of the home ended")
    finally:
        embedded.stop(path)
        shutil.rmtree(path, ignore_errors=True)
