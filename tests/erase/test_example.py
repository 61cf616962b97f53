"""The example of the how-to runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_table.py"


def test_the_example_of_an_own_table(database_url: str, broker_url: str) -> None:
    """Drafts begun before an erase are refused, and new ones are kept."""
    environment = {
        **os.environ,
        "AFTERTURN_DATABASE_URL": database_url,
        "AFTERTURN_BROKER_URL": broker_url,
        "AFTERTURN_EXTRACTOR": "none",
        "AFTERTURN_EMBEDDER": "none",
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "refused: The turn began before an erase that covers its scope",
        "drafts left: 0",
        "refused: The turn began before an erase that covers its scope",
        "drafts left: 0",
        "new drafts: 1",
    ]
