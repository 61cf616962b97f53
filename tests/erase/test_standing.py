"""From the request of an erase on, no text under its scope goes to a model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from afterturn.jobs.rings import RingPublisher
from afterturn.pipeline.runner import Runner
from afterturn.turns import ExtractionRequest, ExtractionResult
from tests.pipeline.conftest import CHAT_1, CHAT_2, Desk
from tests.pipeline.conftest import quiet as quiet

JOB = "select id from afterturn.jobs where kind = $1 and path = $2 and finished_at is null"
WAITS = """
select attempts, lease_token is null and ready_at > afterturn.clock() as waits
from afterturn.jobs where id = $1
"""


class Watched:
    """An extractor and an embedder that note what they were shown."""

    model_id = "watched"
    dim = 2

    def __init__(self) -> None:
        self.shown: list[str] = []

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        self.shown += [turn.query or "" for turn in request.turns]
        return ExtractionResult()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.shown += texts
        return np.ones((len(texts), self.dim), dtype=np.float32)


class Sharing(Watched):
    """The same for turns that share a call."""

    batch = True


@pytest.mark.parametrize("kind", ["extract", "embed"])
@pytest.mark.parametrize("watched", [Watched, Sharing])
async def test_work_under_a_standing_erase_waits_without_being_looked_at(
    desk: Desk, quiet: RingPublisher, kind: str, watched: type[Watched]
) -> None:
    """It is put off, no attempt counted; a neighbour's work is done meanwhile."""
    for scope in (CHAT_1, CHAT_2):
        await desk.record(await desk.stage(scope, "t1", query=f"of {scope.path}"))
    model = watched()
    runner = Runner(desk.database, desk.settings, quiet, model, model)
    waiting = await desk.value(JOB, kind, CHAT_1.stored_path)
    erase = await desk.enqueue_forget(CHAT_1, named={"turn_ids": ["another"]})
    async with asyncio.timeout(5):
        await runner.run(kind, [waiting])  # type: ignore[arg-type]
        neighbour = await desk.value(JOB, kind, CHAT_2.stored_path)
        await runner.run(kind, [neighbour] if neighbour else [])  # type: ignore[arg-type]
    assert {text for text in model.shown if CHAT_1.path in text} == set()
    assert any(CHAT_2.path in text for text in model.shown)
    assert await desk.rows(WAITS, waiting) == [{"attempts": 0, "waits": True}]
    await desk.run(erase)
    await desk.value(
        "update afterturn.jobs set ready_at = afterturn.clock() where id = $1", waiting
    )
    await runner.run(kind, [waiting])  # type: ignore[arg-type]
    assert any(CHAT_1.path in text for text in model.shown)
