"""An extractor whose model takes half a second and says when it has begun: for `erase_race.py`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from afterturn import ExtractionRequest, ExtractionResult, MemoryRecord


class SlowExtractor:
    """Learns what was said as one fact for the turn's scope and one for the scope above."""

    def __init__(self, calls: Path, seconds: float) -> None:
        self._calls = calls
        self._seconds = seconds

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        (turn,) = request.turns
        (self._calls / turn.turn_id).touch()
        await asyncio.sleep(self._seconds)
        return ExtractionResult(
            records=tuple(
                MemoryRecord(
                    record_id=f"fact:{turn.turn_id}:{scope.depth}",
                    text=f"The user said: {turn.query} ({scope.depth})",
                    scope_path=scope.path,
                    layer="semantic",
                    origin="extracted",
                )
                for scope in (request.scope, request.scope.ancestor(1))
            )
        )


def make() -> SlowExtractor:
    """Made by the worker; the folder comes from its environment."""
    return SlowExtractor(
        Path(os.environ["SLOW_EXTRACTOR_CALLS"]), float(os.environ["SLOW_EXTRACTOR_SECONDS"])
    )
