"""A real browser without a window."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's package chromium")


def page(url: str, *options: str) -> str:
    """What stands on the page once its scripts have run."""
    with tempfile.TemporaryDirectory(prefix="at-chromium-") as profile:
        done = subprocess.run(
            [
                str(CHROMIUM),
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--no-first-run", "--disable-background-networking", "--disable-sync"),
                *(f"--user-data-dir={profile}", "--window-size=1400,900"),
                *("--virtual-time-budget=4000", "--timeout=20000"),
                *(options or ("--dump-dom",)),
                url,
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


def photograph(url: str, file: Path) -> None:
    """A picture of the page."""
    page(url, f"--screenshot={file}")
