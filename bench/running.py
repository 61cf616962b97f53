"""What several benchmarks start: a whole fleet on a home of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

STARTED = "afterturn is up"
BENCH = Path(__file__).resolve().parent


@contextmanager
def fleet(home: Path, extra: Mapping[str, str] | None = None) -> Iterator[None]:
    """`afterturn up` on this home, ready for work; started here, so that parts are found here."""
    command = [str(Path(sys.executable).with_name("afterturn")), "up", "--no-flower"]
    environment = {**os.environ, "AFTERTURN_HOME": str(home), **(extra or {})}
    with subprocess.Popen(
        command, env=environment, cwd=BENCH, stdout=subprocess.PIPE, text=True
    ) as up:
        assert up.stdout is not None
        try:
            for line in up.stdout:
                if STARTED in line:
                    break
            else:
                raise RuntimeError("afterturn up ended before it was ready")
            yield
        finally:
            up.terminate()
            up.stdout.read()
