"""`Memory` for code that does not await: web apps, scripts, notebooks.

Every call is handed to an event loop in one background thread and waited for, so any number of
threads may use one object at once. Nothing is written twice: each method is its asynchronous one,
called over there.

    calling threads          the loop's thread
    memory.flush(scope) ───▶ Memory.flush(scope)
          waits         ◀─── receipt

The thread and the connections are made at the first use, in the process that uses them. A process
that forked from one which had used them gets its own at its first use: sockets and threads of the
parent are never touched there, so a server may load the application before it forks.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

from afterturn.errors import ConfigurationError
from afterturn.memory import Memory
from afterturn.ports import (
    EmbeddingProvider,
    MemoryExtractorPort,
    MemoryLifecyclePort,
    MemoryRetrievalPort,
    MemoryWritePort,
)
from afterturn.reading import TranscriptTurn
from afterturn.records import MemoryRecord
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from afterturn.tickets import JobTicket, TurnTicket
from afterturn.turn import OnUnavailable, Turn

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")


class LoopThread:
    """An event loop in a thread of its own. Safe to use from any other thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon: a program that forgets to close must still be able to end.
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="afterturn-loop", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """The result of the coroutine; an interrupted caller cancels it.

        Raises `ConfigurationError` on the loop's own thread, where waiting would never end.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise ConfigurationError(
                "A blocking call was made on the memory's own thread",
                hint="Inside an extractor, an embedder or a source, await an asynchronous Memory.",
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread and its loop."""
        self.run(self._loop.shutdown_asyncgens())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@overload
def blocking(
    method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]: ...
@overload
def blocking(
    method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
    standin: Callable[[Any, R], S],
) -> Callable[Concatenate[Any, P], S]: ...
def blocking(
    method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
    standin: Callable[[Any, R], Any] | None = None,
) -> Callable[Concatenate[Any, P], Any]:
    """The method of the same name and arguments that waits; `standin` wraps what it returns."""
    name = method.__name__

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        loop, there = self._found()
        result = loop.run(getattr(there, name)(*args, **kwargs))
        return result if standin is None else standin(loop, result)

    return cast("Callable[Concatenate[Any, P], Any]", call)


class _StandIn(Generic[T]):
    """Stands for an object that lives on the loop."""

    def __init__(self, loop: LoopThread, there: T) -> None:
        self._loop = loop
        self._there = there

    def _found(self) -> tuple[LoopThread, T]:
        return self._loop, self._there


class BlockingTurnTicket(_StandIn[TurnTicket]):
    """`TurnTicket`, waited for without `await`."""

    @property
    def turn_id(self) -> str:
        """The turn's id."""
        return self._there.turn_id

    @property
    def status(self) -> str:
        """What the hand-over itself came to."""
        return self._there.status

    @property
    def reason(self) -> str:
        """Why it was not staged, else empty."""
        return self._there.reason

    @property
    def known(self) -> bool:
        """Whether the same turn had been handed over before."""
        return self._there.known

    wait = blocking(TurnTicket.wait)


class BlockingJobTicket(_StandIn[JobTicket]):
    """`JobTicket`, waited for without `await`."""

    @property
    def job_id(self) -> int:
        """The job's id."""
        return self._there.job_id

    wait = blocking(JobTicket.wait)
    progress = blocking(JobTicket.progress)


class BlockingTurn(_StandIn[Turn]):
    """`Turn` without `await`."""

    @property
    def scope(self) -> MemoryScope:
        """Where the turn happens."""
        return self._there.scope

    @property
    def turn_id(self) -> str:
        """The turn's id."""
        return self._there.turn_id

    @property
    def session(self) -> str | None:
        """The session it belongs to."""
        return self._there.session

    @property
    def token(self) -> tuple[tuple[str, int], ...]:
        """The erase numbers that covered the scope when the turn began."""
        return self._there.token

    retrieve = blocking(Turn.retrieve)
    finish = blocking(Turn.finish, BlockingTurnTicket)
    abandon = blocking(Turn.abandon)


class BlockingRetrieval(_StandIn[MemoryRetrievalPort]):
    """Reading alone."""

    retrieve = blocking(MemoryRetrievalPort.retrieve)


class BlockingWriting(_StandIn[MemoryWritePort]):
    """Writing alone."""

    write = blocking(MemoryWritePort.write)


class BlockingLifecycle(_StandIn[MemoryLifecyclePort]):
    """Flush, and a forget that stays strictly inside its scope."""

    flush = blocking(MemoryLifecyclePort.flush)
    forget = blocking(MemoryLifecyclePort.forget)


class BlockingMemory:
    """`Memory` without `await`; the arguments and errors are those of `Memory`.

    Opens at the first use, or in `with BlockingMemory() as memory:`; one object serves all threads
    of a process. Raises `ConfigurationError` after `close`.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        source: MemoryRetrievalPort | None = None,
        extractor: MemoryExtractorPort | None = None,
        embedder: EmbeddingProvider | None = None,
    ) -> None:
        self._use(partial(Memory, settings, source=source, extractor=extractor, embedder=embedder))

    @classmethod
    def over(cls, make: Callable[[], Memory]) -> Self:
        """A blocking memory over what `make` returns, `afterturn.testing.ReferenceMemory` say.

        `make` is called once here, and once in each process that forks from one in use.
        """
        memory = cls.__new__(cls)
        memory._use(make)
        return memory

    def _use(self, make: Callable[[], Memory]) -> None:
        self._make = make
        # Parts that do not fit are refused here, and not at the first use.
        self._memory = make()
        self._opened: tuple[LoopThread, Memory] | None = None
        self._closed = False
        self._opening = threading.Lock()
        _memories.add(self)

    @property
    def settings(self) -> Settings:
        """What the memory was set up with."""
        return self._memory.settings

    def open(self) -> Self:
        """Find the servers and connect; opening an open memory is legal."""
        self._closed = False
        self._found()
        return self

    def close(self) -> None:
        """Let go of the thread and the connections. What was finished is safe."""
        with self._opening:
            self._closed = True
            opened, self._opened = self._opened, None
        if opened is not None:
            loop, memory = opened
            try:
                loop.run(memory.close())
            finally:
                loop.stop()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    begin_turn = blocking(Memory.begin_turn, BlockingTurn)
    retrieve = blocking(Memory.retrieve)
    list = blocking(Memory.list)
    transcript = blocking(Memory.transcript)
    write = blocking(Memory.write)
    remember = blocking(Memory.remember)
    flush = blocking(Memory.flush)
    forget = blocking(Memory.forget)
    forget_records = blocking(Memory.forget_records)
    enqueue_flush = blocking(Memory.enqueue_flush, BlockingJobTicket)
    enqueue_forget = blocking(Memory.enqueue_forget, BlockingJobTicket)
    schedule_forget = blocking(Memory.schedule_forget)
    cancel_scheduled = blocking(Memory.cancel_scheduled)
    job = blocking(Memory.job)
    status = blocking(Memory.status)
    drain = blocking(Memory.drain)

    @contextmanager
    def turn(
        self,
        scope: MemoryScope,
        *,
        session: str | None = None,
        turn_id: str | None = None,
        on_unavailable: OnUnavailable = "raise",
    ) -> Iterator[BlockingTurn]:
        """A turn for the length of a block; never finished in it, it is abandoned."""
        turn = self.begin_turn(
            scope, session=session, turn_id=turn_id, on_unavailable=on_unavailable
        )
        try:
            yield turn
        finally:
            turn._there.leave()

    def export(self, scope: MemoryScope) -> Iterator[MemoryRecord | TranscriptTurn]:
        """Everything held under the scope, in a stream: turns as said, then records."""
        loop, memory = self._found()
        stream = cast("AsyncGenerator[MemoryRecord | TranscriptTurn]", memory.export(scope))
        try:
            while (item := loop.run(_next(stream))) is not None:
                yield item
        finally:
            loop.run(stream.aclose())

    @property
    def retrieval(self) -> BlockingRetrieval:
        """Reading alone."""
        loop, memory = self._found()
        return BlockingRetrieval(loop, memory.retrieval)

    @property
    def writing(self) -> BlockingWriting:
        """Writing alone."""
        loop, memory = self._found()
        return BlockingWriting(loop, memory.writing)

    @property
    def lifecycle(self) -> BlockingLifecycle:
        """Flush, and a forget that stays strictly inside its scope."""
        loop, memory = self._found()
        return BlockingLifecycle(loop, memory.lifecycle)

    def _found(self) -> tuple[LoopThread, Memory]:
        """The loop and the open memory of this process."""
        with self._opening:
            if self._closed:
                raise ConfigurationError(
                    "The memory is closed", hint="Open it again, or use it inside its `with` block."
                )
            if self._opened is None:
                loop = LoopThread()
                try:
                    loop.run(self._memory.open())
                except BaseException:
                    loop.stop()
                    raise
                self._opened = loop, self._memory
            return self._opened

    def _after_fork(self) -> None:
        """Start anew in a child: threads did not come along, and sockets are the parent's."""
        self._opening = threading.Lock()
        if self._opened is not None:
            _inherited.append(self._opened)
            self._opened = None
            self._memory = self._make()


async def _next(stream: AsyncIterator[T]) -> T | None:
    return await anext(stream, None)


_memories: weakref.WeakSet[BlockingMemory] = weakref.WeakSet()
# Kept for ever: taking them apart would speak on the parent's connections.
_inherited: list[object] = []


def _forked() -> None:
    for memory in list(_memories):
        memory._after_fork()


os.register_at_fork(after_in_child=_forked)
