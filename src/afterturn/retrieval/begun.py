"""A coroutine that is begun at once and awaited later, without a task of its own."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Coroutine, Generator
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Begun(Generic[T]):
    """Runs a coroutine up to its first wait, so that what it waits for is under way.

    Await it once for the rest, from the task that made it, or `abandon` it. A task would take two
    more rounds of the event loop, which is much of what a question to a small scope takes; from
    Python 3.12 on, a task can be started eagerly and only the second of them remains.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._is_over = False
        self._result: T | None = None
        self._failure: BaseException | None = None
        self._waits_for: Any = None
        self._go_on()

    def __await__(self) -> Generator[Any, Any, T]:
        while not self._is_over:
            try:
                sent = yield self._waits_for
            except BaseException as error:  # noqa: BLE001 - it is the coroutine's to handle
                self._go_on(error)
            else:
                self._go_on(None, sent)
        if self._failure is not None:
            raise self._failure
        return cast("T", self._result)

    async def abandon(self) -> None:
        """Cancel it and wait until it has cleaned up; what it fails with is nobody's concern."""
        # As a task does: who made the future that is waited for must see it cancelled.
        if not self._is_over and not (self._waits_for and self._waits_for.cancel()):
            self._go_on(CancelledError())
        with suppress(Exception, CancelledError):
            await self

    def _go_on(self, error: BaseException | None = None, sent: Any = None) -> None:
        try:
            if error is not None:
                self._waits_for = self._coroutine.throw(error)
            else:
                self._waits_for = self._coroutine.send(sent)
        except StopIteration as end:
            self._result, self._is_over = end.value, True
        except BaseException as failure:  # noqa: BLE001 - raised to whoever awaits it
            self._failure, self._is_over = failure, True
