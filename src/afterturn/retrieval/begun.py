"""A coroutine that is begun at once and awaited later, without a task of its own."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Coroutine, Generator
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Begun(Generic[T]):
    """Runs a coroutine up to its first wait, so that what it waits for is under way.

    Await it once for the rest, from the task that made it, or `abandon` it. A task would take two
    more rounds of the event loop, which is much of what a question to a small scope takes; from
    Python 3.12 on, a task can be started eagerly and only the second of them remains.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._result: list[T] = []
        self._failure: BaseException | None = None
        self._waits_for: Any = None
        self._go_on()

    def __await__(self) -> Generator[Any, Any, T]:
        while not self._result:
            if self._failure is not None:
                raise self._failure
            try:
                sent = yield self._waits_for
            except BaseException as error:  # noqa: BLE001 - it is the coroutine's to handle
                self._go_on(error)
            else:
                self._go_on(None, sent)
        return self._result[0]

    async def abandon(self) -> None:
        """Cancel it and wait until it has cleaned up; what it fails with is nobody's concern."""
        if not self._result and self._failure is None:
            self._go_on(CancelledError())
        with suppress(BaseException):
            await self

    def _go_on(self, error: BaseException | None = None, sent: Any = None) -> None:
        try:
            if error is not None:
                self._waits_for = self._coroutine.throw(error)
            else:
                self._waits_for = self._coroutine.send(sent)
        except StopIteration as end:
            self._result.append(end.value)
        except BaseException as failure:  # noqa: BLE001 - raised to whoever awaits it
            self._failure = failure
