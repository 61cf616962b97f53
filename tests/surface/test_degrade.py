"""A turn that degrades: the chat goes on, and every answer says what was missing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg
import pytest

from afterturn.errors import ErasePending, MemoryContractError, MemoryUnavailable, StaleTurn
from afterturn.memory import Memory
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from afterturn.testing import ReferenceMemory

_TERMINATE = "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1"

ALICE = MemoryScope.of("acme", "alice")


@pytest.fixture(params=["postgresql", "reference"])
async def memory(request: pytest.FixtureRequest, settings: Settings) -> AsyncIterator[Memory]:
    """An open memory that knows one fact, without workers."""
    made = ReferenceMemory() if request.param == "reference" else Memory(settings)
    async with made as opened:
        await opened.remember(ALICE, "Alice eats no meat.")
        yield opened


async def test_nothing_is_different_while_all_is_well(memory: Memory) -> None:
    """Found, handed over, and no reason given."""
    async with memory.turn(ALICE, on_unavailable="degrade") as turn:
        found = await turn.retrieve("what does she eat?")
        assert (len(found.memories), found.degraded) == (1, ())
        ticket = await turn.finish("a", "b")
    assert (ticket.status, ticket.reason) == ("staged", "")


async def test_a_standing_erase_is_an_empty_answer_and_a_refusal(memory: Memory) -> None:
    """At the beginning of a turn, and in the middle of one; without degrading it is an error."""
    under_way = await memory.begin_turn(ALICE, on_unavailable="degrade")
    strict = await memory.begin_turn(ALICE)
    erase = await memory.enqueue_forget(ALICE)
    begun_now = await memory.begin_turn(ALICE, on_unavailable="degrade")
    for turn in (under_way, begun_now):
        found = await turn.retrieve("what does she eat?")
        assert (found.memories, found.degraded) == ((), ("erase pending",))
        assert found.render() == ""
        ticket = await turn.finish("a", "b")
        assert (ticket.status, ticket.reason) == ("refused", "erase pending")
        assert (await ticket.wait()).status == "refused"
    with pytest.raises(ErasePending):
        await memory.begin_turn(ALICE)
    with pytest.raises(ErasePending):
        await strict.finish("a", "b")
    await erase.wait()


async def test_a_turn_from_before_an_erase_is_refused_and_leaves_nothing(memory: Memory) -> None:
    """Also one that began while the erase stood: it could vouch for nothing."""
    under_way = await memory.begin_turn(ALICE, on_unavailable="degrade")
    strict = await memory.begin_turn(ALICE)
    erase = await memory.enqueue_forget(ALICE)
    begun_meanwhile = await memory.begin_turn(ALICE, on_unavailable="degrade")
    await erase.wait()
    for turn in (under_way, begun_meanwhile):
        ticket = await turn.finish("My secret is tea.", "Noted.")
        assert (ticket.status, ticket.reason) == ("refused", "stale turn")
    with pytest.raises(StaleTurn):
        await strict.finish("a", "b")
    assert [item async for item in memory.export(ALICE)] == []


async def test_after_an_erase_the_same_id_is_a_new_turn(memory: Memory) -> None:
    """It can be used again at once, and is not known."""
    for text in ("before", "after"):
        async with memory.turn(ALICE, turn_id="t") as turn:
            ticket = await turn.finish(text, None)
        assert (ticket.status, ticket.known) == ("staged", False)
        await memory.flush(ALICE)
        assert [each.query for each in await memory.transcript(ALICE)] == [text]
        if text == "before":
            await memory.forget(ALICE)


async def test_a_mistake_of_the_program_is_no_outage(memory: Memory) -> None:
    """What cannot be honoured as put raises, degrading or not."""
    async with memory.turn(ALICE, on_unavailable="degrade") as turn:
        with pytest.raises(MemoryContractError):
            await turn.finish("a", "b", metadata={"k": object()})
    with pytest.raises(MemoryContractError):
        await memory.begin_turn(ALICE, session="no spaces", on_unavailable="degrade")


@asynccontextmanager
async def outage(server_url: str, settings: Settings) -> AsyncIterator[None]:
    """The server ends every connection to the test's database and takes no new ones."""
    name = urlsplit(str(settings.database_url)).path[1:]
    admin = await asyncpg.connect(server_url)
    await admin.execute(f'alter database "{name}" allow_connections false')
    await admin.fetch(_TERMINATE, name)
    yield
    await admin.execute(f'alter database "{name}" allow_connections true')
    await admin.close()


async def test_a_database_that_goes_away_is_an_empty_answer_and_a_ticket(
    settings: Settings, server_url: str
) -> None:
    """Begun before or during the outage; afterwards the same memory works, and nothing is lost."""
    async with Memory(settings) as memory:
        async with memory.turn(ALICE, turn_id="before") as turn:
            await turn.finish("before", None)
        under_way = await memory.begin_turn(ALICE, turn_id="t", on_unavailable="degrade")
        strict = await memory.begin_turn(ALICE, turn_id="s")
        async with outage(server_url, settings):
            begun_now = await memory.begin_turn(ALICE, on_unavailable="degrade")
            for turn in (under_way, begun_now):
                found = await turn.retrieve("anything")
                assert (found.memories, found.degraded) == ((), ("memory unavailable",))
                ticket = await turn.finish("during", None)
                assert (ticket.status, ticket.reason) == ("unavailable", "memory unavailable")
                assert (await ticket.wait()).status == "unavailable"
            for call in (memory.begin_turn(ALICE), strict.finish("a", "b"), memory.list(ALICE)):
                with pytest.raises(MemoryUnavailable):
                    await call
        # The outcome was unknown, so the same turn is finished again.
        assert (await under_way.finish("after", None)).status == "staged"
        assert (await strict.finish("after", None)).status == "staged"
        await memory.flush(ALICE)
        said = await memory.transcript(ALICE)
    assert {turn.turn_id for turn in said} == {"before", "t", "s"}
