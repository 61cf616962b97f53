"""An event loop on a thread of its own, for tasks that are plain functions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ORDER_SECONDS: Final = 4.0


class LoopThread:
    """Runs coroutines on one loop from any thread; must be made after a fork, never before."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_log_without_text)
        self._thread = threading.Thread(target=self._main, name="afterturn-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
        """The coroutine's result; it is cancelled when the wait ends early, for whatever reason,
        and has a moment to put things in order.

        Raises what the coroutine raises, `TimeoutError` after `timeout` seconds.
        """
        ended = threading.Event()

        async def noted() -> T:
            try:
                return await coroutine
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(noted(), self._loop)
        try:
            return future.result(timeout)
        except BaseException:
            if future.cancel():
                ended.wait(_ORDER_SECONDS)
            raise

    def close(self, last: Coroutine[Any, Any, None] | None = None, timeout: float = 5.0) -> None:
        """Run `last`, cancel what still runs, end the thread; waits `timeout` at most for each."""
        if last is not None:
            with contextlib.suppress(Exception):
                self.run(last, timeout)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout)

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            self._loop.close()


def _log_without_text(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What nobody awaited is logged by type: its text could be somebody's memory."""
    error = context.get("exception")
    logger.error("on the loop: %s", type(error).__name__ if error else "unknown")
