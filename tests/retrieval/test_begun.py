"""A coroutine begun before it is awaited behaves as one that is awaited at once."""

from __future__ import annotations

import asyncio

import pytest

from afterturn.retrieval.begun import Begun


async def test_it_runs_to_its_first_wait_and_no_further() -> None:
    """What is before the first wait is done when it is made; the rest when it is awaited."""
    done: list[str] = []
    gate = asyncio.Event()

    async def work() -> int:
        done.append("asked")
        await gate.wait()
        await asyncio.sleep(0)
        done.append("answered")
        return 7

    begun = Begun(work())
    assert done == ["asked"]
    asyncio.get_running_loop().call_soon(gate.set)
    await asyncio.sleep(0)
    assert done == ["asked"]
    assert await begun == 7
    assert done == ["asked", "answered"]


async def test_one_that_never_waits_is_done_at_once() -> None:
    """Its result and its failure come out of the await, not before."""

    async def work(fails: bool) -> int:
        if fails:
            raise LookupError("nothing")
        return 7

    assert await Begun(work(False)) == 7
    begun = Begun(work(True))
    with pytest.raises(LookupError):
        await begun


async def test_timeouts_and_cancellation_reach_it() -> None:
    """It is part of the task that awaits it."""
    cleaned: list[str] = []

    async def work() -> None:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            cleaned.append("timed out")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cleaned.append("cancelled")
            raise

    async def caller() -> None:
        await Begun(work())

    task = asyncio.create_task(caller())
    while not cleaned:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == ["timed out", "cancelled"]


async def test_an_abandoned_one_cleans_up_and_says_nothing() -> None:
    """Also where cleaning up takes a wait, or fails, or it had failed already."""
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")
            raise LookupError("nothing")

    async def failing() -> None:
        raise LookupError("nothing")

    async def waiting(future: asyncio.Future[None]) -> None:
        await future

    await Begun(work()).abandon()
    await Begun(failing()).abandon()
    assert cleaned == ["up"]
    open_, done = asyncio.Future[None](), asyncio.Future[None]()
    begun, other = Begun(waiting(open_)), Begun(waiting(done))
    done.set_result(None)
    await begun.abandon()
    await other.abandon()
    assert open_.cancelled()  # as its maker expects
