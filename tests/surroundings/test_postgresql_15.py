"""PostgreSQL 15, as Debian ships it, beside the PostgreSQL 18 of the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path("/usr/lib/postgresql/15/bin")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not (BIN / "postgres").is_file(), reason="PostgreSQL 15 is not installed (postgresql-15)"
)
@pytest.mark.skipif(
    "AFTERTURN_DATABASE_URL" in os.environ, reason="the servers are given by their URLs"
)
def test_the_way_of_a_turn_holds_on_postgresql_15() -> None:
    """Staging, leases, order, the erase and its interleavings pass on servers of version 15."""
    environment = {**os.environ, "AFTERTURN_POSTGRES_BIN": str(BIN)}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/pipeline"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stdout[-3_000:]
