"""The extractor of the torture: the `rules`, in the moods of a model.

A turn's metadata says the mood (`plain`, `fail`, `rubbish`, `foreign`, `hang`, `die`), for how
many `seconds` it thinks, and with `lift` to which ancestor its facts are promoted. Workers find
this module through PYTHONPATH as `AFTERTURN_EXTRACTOR=thinker:build`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from typing import Any, cast

from afterturn import (
    ExtractionRequest,
    ExtractionResult,
    MemoryLayer,
    MemoryRecord,
    MemoryScope,
)
from afterturn.extraction.rules import RuleExtractor


class Thinker:
    """`MemoryExtractorPort`."""

    def __init__(self) -> None:
        self._rules = RuleExtractor()

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        """One turn at a time; in its mood."""
        turn = request.turns[0]
        mood = str(turn.metadata.get("mood", "plain"))
        if mood == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if mood == "hang":
            await asyncio.Event().wait()
        await asyncio.sleep(float(turn.metadata.get("seconds", 0.0)))
        if mood == "fail":
            raise RuntimeError(f"the model refused: {turn.query}")
        if mood == "rubbish":
            return cast(ExtractionResult, _rubbish(turn.query or ""))
        if mood == "foreign":
            return _foreign(turn.query or "nothing")
        found = await self._rules.extract(request)
        lift = int(turn.metadata.get("lift", 0))
        return found if not lift else _lifted(found, turn.scope, lift)


def build() -> Thinker:
    """The factory."""
    return Thinker()


def _lifted(found: ExtractionResult, scope: MemoryScope, level: int) -> ExtractionResult:
    """The facts at an ancestor. Ids are made unique there: another scope may use the turn id."""
    target = scope.ancestor(level).path
    place = hashlib.sha256(scope.path.encode()).hexdigest()[:12]
    records = [
        record.model_copy(update={"scope_path": target, "record_id": f"{record.record_id}:{place}"})
        for record in found.records
    ]
    return ExtractionResult(records=tuple(records))


def _foreign(text: str) -> ExtractionResult:
    """A record beside the turn's scope."""
    record = MemoryRecord(
        record_id="foreign",
        text=text,
        scope_path=MemoryScope.of("stranger").path,
        layer=MemoryLayer.SEMANTIC,
        origin="extracted",
    )
    return ExtractionResult(records=(record,))


def _rubbish(text: str) -> Any:
    """What no port allows; it quotes the turn, so that a careless log would show it."""
    return {"records": [text], "reason": text}
