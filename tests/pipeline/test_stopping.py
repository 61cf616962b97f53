"""What a runner does with the work at hand when its process is to end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from afterturn.database import Database
from afterturn.jobs.rings import RingPublisher
from afterturn.pipeline.runner import Runner
from afterturn.settings import Settings
from afterturn.turns import ExtractionRequest, ExtractionResult
from tests.pipeline.conftest import CHAT_1, CHAT_2, Desk

OPEN = "select attempts, lease_token is null as free from afterturn.jobs where kind = 'extract'"


class Hanging:
    """A model that answers about CHAT_2 and never about CHAT_1."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answered = asyncio.Event()

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        if request.scope == CHAT_1:
            self.asked.set()
            await asyncio.Event().wait()
        self.answered.set()
        return ExtractionResult()


class Flat:
    """An embedder to whom all texts are the same."""

    model_id = "flat"
    dim = 2

    def embed(self, texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.ones((len(texts), self.dim), np.float32)


class Stopping:
    """The word that the worker is to end."""

    said = False

    def __call__(self) -> bool:
        return self.said


async def _ids(desk: Desk, kind: str) -> list[int]:
    rows = await desk.rows("select id from afterturn.jobs where kind = $1 order by id", kind)
    return [row["id"] for row in rows]


async def test_others_are_extracted_beside_a_call_that_hangs(
    desk: Desk, database: Database, settings: Settings, quiet: RingPublisher
) -> None:
    """A turn that arrives while a model call hangs is claimed and done by the same run."""
    model = Hanging()
    runner = Runner(database, settings, quiet, model, None)
    await desk.record(await desk.stage(CHAT_1, "t1"))
    running = asyncio.create_task(runner.run("extract", await _ids(desk, "extract")))
    await model.asked.wait()
    await desk.record(await desk.stage(CHAT_2, "t2"))
    await model.answered.wait()
    while len(await _ids(desk, "extract")) > 1:
        await asyncio.sleep(0.01)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_vectors_are_made_beside_a_call_that_hangs(
    desk: Desk, database: Database, settings: Settings, quiet: RingPublisher
) -> None:
    """The embed job of a scope does not wait for the process that waits for a model."""
    model = Hanging()
    runner = Runner(database, settings, quiet, model, Flat())
    await desk.record(await desk.stage(CHAT_1, "t1"))
    running = asyncio.create_task(runner.run("extract", await _ids(desk, "extract")))
    await model.asked.wait()
    lacking = "select count(*) from afterturn.memories where embedding is null"
    while await desk.value(lacking):
        await asyncio.sleep(0.01)
    assert await _ids(desk, "embed") == []
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("is_stopping", [True, False])
async def test_cancelled_work_is_given_back_only_when_the_worker_ends(
    desk: Desk, database: Database, settings: Settings, quiet: RingPublisher, is_stopping: bool
) -> None:
    """A worker that ends frees the turn and counts no attempt; work cut off at its time limit
    stays leased and counted, so that it cannot go on for ever."""
    model, stopping = Hanging(), Stopping()
    runner = Runner(database, settings, quiet, model, None, stopping=stopping)
    await desk.record(await desk.stage(CHAT_1, "t1"))
    running = asyncio.create_task(runner.run("extract", await _ids(desk, "extract")))
    await model.asked.wait()
    stopping.said = is_stopping
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (job,) = await desk.rows(OPEN)
    assert job == ({"attempts": 0, "free": True} if is_stopping else {"attempts": 1, "free": False})


async def test_a_worker_that_ends_claims_no_more(
    desk: Desk, database: Database, settings: Settings, quiet: RingPublisher
) -> None:
    """A backlog stays for others; nothing of it is held."""
    stopping = Stopping()
    stopping.said = True
    runner = Runner(database, settings, quiet, None, None, stopping=stopping)
    await desk.stage(CHAT_1, "t1")
    ids = await _ids(desk, "record")
    assert await runner.run("record", ids) == "nothing to do"
    stopping.said = False
    assert await runner.run("record", ids) == "recorded 1"
