"""The blocking facade: the same surface, from any thread, beside a running loop, after a fork."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from afterturn.blocking import (
    BlockingJobTicket,
    BlockingLifecycle,
    BlockingMemory,
    BlockingRetrieval,
    BlockingTurn,
    BlockingTurnTicket,
    BlockingWriting,
)
from afterturn.database import Database
from afterturn.errors import ConfigurationError, MemoryContractError
from afterturn.memory import Memory
from afterturn.ports import MemoryLifecyclePort, MemoryRetrievalPort, MemoryWritePort
from afterturn.queries import MemoryQuery
from afterturn.records import MemoryRecord
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from afterturn.tickets import JobTicket, TurnTicket
from afterturn.turn import Turn
from afterturn.turns import ExtractionRequest, ExtractionResult

SCOPE = MemoryScope.of("acme", "alice")
PAIRS: list[tuple[type, type, set[str]]] = [
    (BlockingMemory, Memory, {"open", "close", "turn", "export"}),
    (BlockingTurn, Turn, {"leave"}),
    (BlockingTurnTicket, TurnTicket, set()),
    (BlockingJobTicket, JobTicket, set()),
    (BlockingRetrieval, MemoryRetrievalPort, set()),
    (BlockingWriting, MemoryWritePort, set()),
    (BlockingLifecycle, MemoryLifecyclePort, set()),
]


@pytest.fixture
def memory(settings: Settings) -> Iterator[BlockingMemory]:
    with BlockingMemory(settings) as opened:
        yield opened


def _methods(kind: type) -> set[str]:
    return {
        name
        for name, member in vars(kind).items()
        if not name.startswith("_") and inspect.isfunction(member)
    }


@pytest.mark.parametrize(("blocking", "awaited", "by_hand"), PAIRS)
def test_each_method_is_there_with_the_same_arguments(
    blocking: type, awaited: type, by_hand: set[str]
) -> None:
    """What can be awaited can be called, under the same name and with the same arguments."""
    assert _methods(blocking) | by_hand == _methods(awaited) | by_hand
    for name in _methods(awaited) - {"leave"}:
        here, there = getattr(blocking, name), getattr(awaited, name)
        assert not inspect.iscoroutinefunction(here)
        assert list(inspect.signature(here).parameters.values()) == list(
            inspect.signature(there).parameters.values()
        )
        assert here.__doc__


def test_attributes_are_those_of_the_awaited(memory: BlockingMemory) -> None:
    """What a turn and its tickets hold can be read."""
    with memory.turn(SCOPE, session="s", turn_id="t") as turn:
        assert (turn.scope, turn.session, turn.turn_id, turn.token) == (SCOPE, "s", "t", ())
        ticket = turn.finish("a question", "an answer")
    assert (ticket.turn_id, ticket.status, ticket.reason, ticket.known) == (
        "t",
        "staged",
        "",
        False,
    )
    assert memory.enqueue_flush(SCOPE).job_id > 0
    assert memory.settings.embedder == "none"


def test_the_way_of_a_turn_without_await(memory: BlockingMemory) -> None:
    """Begin, retrieve, finish, drain, list, export, forget: as with await."""
    memory.remember(SCOPE, "Alice eats no meat.", record_id="diet")
    with memory.turn(SCOPE) as turn:
        found = turn.retrieve("what does she eat?")
        assert [each.record.record_id for each in found.memories] == ["diet"]
        ticket = turn.finish("What shall I cook?", "A lentil soup.")
    memory.drain(SCOPE, in_process=True)
    assert ticket.wait(5).status == "done"
    assert [each.turn_id for each in memory.transcript(SCOPE)] == [ticket.turn_id]
    assert "diet" in [each.record_id for each in memory.list(SCOPE)]
    kinds = {type(each).__name__ for each in memory.export(SCOPE)}
    assert kinds == {"MemoryRecord", "TranscriptTurn"}
    found = memory.retrieval.retrieve(MemoryQuery(scope=SCOPE, text="soup"))
    assert found.memories
    receipt = memory.enqueue_forget(SCOPE, requested_by="alice").wait()
    assert memory.job(receipt.job_id) is not None
    assert list(memory.export(SCOPE)) == []
    assert memory.status().outstanding == 0
    assert memory.lifecycle.flush(SCOPE).outcome == "done"


def test_a_block_that_is_left_abandons_its_turn(memory: BlockingMemory) -> None:
    """Whatever leaves the block, an unfinished turn stays unfinished."""
    with pytest.raises(ZeroDivisionError), memory.turn(SCOPE) as turn:
        raise ZeroDivisionError
    with pytest.raises(MemoryContractError, match="abandoned"):
        turn.finish("a", "b")


def test_an_export_that_is_left_early_holds_nothing(memory: BlockingMemory) -> None:
    """The stream ends with its reader."""
    for number in range(3):
        memory.remember(SCOPE, f"fact {number}")
    stream = memory.export(SCOPE)
    assert isinstance(next(stream), MemoryRecord)
    stream.close()  # type: ignore[attr-defined]
    memory.close()  # would wait for a connection still in use


def test_eight_scopes_with_fifty_turns_at_once_on_one_object(
    memory: BlockingMemory, settings: Settings
) -> None:
    """Every scope gets its own turns, all of them, and no other's; no connection is left over."""

    def talk(number: int) -> None:
        scope = MemoryScope.of("acme", f"user-{number % 8}")
        with memory.turn(scope, turn_id=f"t-{number}") as turn:
            turn.retrieve("marker")
            turn.finish(f"marker {number % 8} {number}", None)

    with ThreadPoolExecutor(32) as threads:
        list(threads.map(talk, range(8 * 50)))
    memory.drain(MemoryScope.of("acme"), in_process=True)
    for user in range(8):
        said = memory.transcript(MemoryScope.of("acme", f"user-{user}"), limit=100)
        assert {turn.query for turn in said} == {
            f"marker {user} {number}" for number in range(user, 400, 8)
        }
    assert memory.status().outstanding == 0


async def test_it_may_be_called_where_a_loop_runs(settings: Settings) -> None:
    """As in a notebook: the caller's loop waits, and its own tasks go on afterwards."""
    with BlockingMemory(settings) as memory:
        memory.remember(SCOPE, "Alice eats no meat.")
        assert await asyncio.to_thread(lambda: len(memory.list(SCOPE))) == 1


def test_closing_ends_the_thread_and_opening_begins_anew(settings: Settings) -> None:
    """No thread remains, a closed memory says so, and it may be opened again."""
    before = threading.active_count()
    memory = BlockingMemory(settings)
    assert threading.active_count() == before
    memory.remember(SCOPE, "Alice eats no meat.")
    memory.close()
    memory.close()
    assert threading.active_count() == before
    with pytest.raises(ConfigurationError, match="closed"):
        memory.list(SCOPE)
    with memory.open():
        assert len(memory.list(SCOPE)) == 1
    assert threading.active_count() == before


def test_errors_are_those_of_the_awaited_memory(settings: Settings) -> None:
    """Wrong parts are refused when they are put together, wrong arguments when they are given."""
    with pytest.raises(ConfigurationError, match="scan_candidates"):
        BlockingMemory(settings, source=_NoScan())
    with BlockingMemory(settings) as memory, pytest.raises(MemoryContractError, match="session"):
        memory.begin_turn(SCOPE, session="no spaces")


def test_a_memory_that_cannot_open_leaves_no_thread(settings: Settings) -> None:
    """The error comes out and nothing remains; a later try is a new one."""
    before = threading.active_count()
    nowhere = settings.model_copy(update={"database_url": "postgresql://nobody@127.0.0.1:1/x"})
    memory = BlockingMemory(nowhere)
    for _ in range(2):
        with pytest.raises(Exception, match="cannot be reached"):
            memory.status()
    assert threading.active_count() == before


def test_a_call_on_its_own_thread_is_refused(settings: Settings) -> None:
    """An extractor that calls the memory it works for is told so and never hangs."""
    errors: list[BaseException] = []

    class Calling:
        async def extract(self, request: ExtractionRequest) -> ExtractionResult:
            try:
                owner.status()
            except ConfigurationError as error:
                errors.append(error)
            return ExtractionResult()

    with BlockingMemory(settings, extractor=Calling()) as owner:
        with owner.turn(SCOPE) as turn:
            turn.finish("a", "b")
        owner.drain(SCOPE, in_process=True)
    assert ["own thread" in str(error) for error in errors] == [True]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_gets_a_thread_and_connections_of_its_own(
    memory: BlockingMemory, database: Database
) -> None:
    """Children of a process that used the memory work with it, and so does the parent after."""
    memory.remember(SCOPE, "Alice eats no meat.", record_id="parent")
    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            code = 1
            try:
                memory.remember(SCOPE, f"child {number} was here", record_id=f"child-{number}")
                code = 0 if len(memory.list(SCOPE)) >= 2 else 2
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0, 0, 0]
    assert [each.record_id for each in memory.list(SCOPE)] == [
        "child-0",
        "child-1",
        "child-2",
        "parent",
    ]


class _NoScan:
    async def retrieve(self, query: MemoryQuery) -> Any:
        raise AssertionError
