"""How a contract is run: its ports are opened in a loop of its own, for one test."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, Protocol, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from afterturn.ports import MemoryLifecyclePort, MemoryRetrievalPort, MemoryWritePort
from afterturn.queries import MemoryQuery, RetrievalResult
from afterturn.records import MemoryLayer, MemoryRecord
from afterturn.scope import MemoryScope
from afterturn.writes import Token

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)

WORD = "harbour"
"""Stands in every text and every question, so that each record is a candidate."""


class Source(Protocol):
    """A retrieval port that can be scanned."""

    async def retrieve(self, query: MemoryQuery) -> RetrievalResult:
        """See `MemoryRetrievalPort`."""

    async def scan_candidates(self, query: MemoryQuery) -> RetrievalResult:
        """See `CandidateScan`."""


@dataclass(frozen=True)
class ReadPorts:
    """A source, and how the test fills it.

    `keep` makes records readable by whatever way the store has; their scopes lie under a root that
    nothing else uses. `unreachable` is the same source over a store that is out of reach.
    """

    source: Source
    keep: Callable[[Sequence[MemoryRecord]], Awaitable[None]]
    unreachable: MemoryRetrievalPort | None = None


@dataclass(frozen=True)
class StorePorts:
    """The ports of one store. `capture` gives the token of a turn that begins now at a scope."""

    retrieval: Source
    writing: MemoryWritePort
    lifecycle: MemoryLifecyclePort
    capture: Callable[[MemoryScope], Awaitable[Token]]
    unreachable: MemoryRetrievalPort | None = None


class Contract:
    """The base of the contracts.

    `examples` is how many random stories are tried, `steps` how long each may be.
    """

    examples = 25
    steps = 25

    @property
    def stories(self) -> settings:
        """Hypothesis's settings for the state machine."""
        return settings(
            max_examples=self.examples,
            stateful_step_count=self.steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )


class HasPorts(Protocol[P_co]):
    """A contract whose ports are opened for each test."""

    def ports(self) -> AbstractAsyncContextManager[P_co]:
        """The ports under test."""


def with_ports(test: Callable[[Any, P], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
    """A test that awaits, as one that pytest can call without a plugin."""

    @wraps(test)
    def run(self: HasPorts[P]) -> None:
        async def opened() -> None:
            async with self.ports() as ports:
                await test(self, ports)

        asyncio.run(opened())

    # pytest would look through it and take `ports` for a fixture.
    del run.__wrapped__
    return run


def fresh_root() -> MemoryScope:
    """A scope that no other test uses."""
    return MemoryScope.of(f"contract-{uuid.uuid4().hex}")


def record(scope: MemoryScope, record_id: str, **fields: Any) -> MemoryRecord:
    """A record whose text holds the word that every question asks for."""
    return MemoryRecord.model_validate(
        {
            "record_id": record_id,
            "text": f"{record_id} is about the {WORD}",
            "scope_path": scope.path,
            "layer": MemoryLayer.SEMANTIC,
            "origin": "contract",
            **fields,
        }
    )


def question(scope: MemoryScope, **bounds: Any) -> MemoryQuery:
    """A question that every record answers."""
    return MemoryQuery.model_validate({"scope": scope, "text": f"the {WORD}", **bounds})


def ids(result: RetrievalResult) -> list[str]:
    """The ids of what came back, best first."""
    return [memory.record.record_id for memory in result.memories]


class Story(RuleBasedStateMachine):
    """A state machine over ports that were opened for it; `told` runs one."""

    runner: ClassVar[asyncio.Runner]
    given: ClassVar[Any]

    def run(self, work: Awaitable[P]) -> P:
        """What the coroutine returns."""
        return self.runner.run(_awaited(work))


def told(story: type[Story], opened: AbstractAsyncContextManager[Any], stories: settings) -> None:
    """Run a state machine over ports that are opened once for all of its stories."""
    with asyncio.Runner() as runner:
        given = runner.run(_awaited(opened.__aenter__()))
        try:
            bound = type(story.__name__, (story,), {"runner": runner, "given": given})
            run_state_machine_as_test(bound, settings=stories)
        finally:
            runner.run(_awaited(opened.__aexit__(None, None, None)))


async def _awaited(work: Awaitable[P]) -> P:
    return await work
