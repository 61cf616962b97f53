"""Handing conversations over, on a real database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from afterturn.database import Database
from afterturn.errors import MemoryContractError
from afterturn.importing.conversation import Conversation
from afterturn.importing.draining import Drain
from afterturn.importing.importer import Importer, Tally
from afterturn.importing.locomo import read_locomo
from afterturn.memory import Memory
from afterturn.records import MemoryRecord
from afterturn.scope import MemoryScope
from afterturn.settings import Settings

from .writing import locomo

SCOPE = MemoryScope.of("acme", "alice")
LEASE = """
update afterturn.jobs set lease_token = gen_random_uuid(),
    ready_at = afterturn.clock() + interval '1 hour'
where kind = 'record' and finished_at is null
"""
GIVE_BACK = "update afterturn.jobs set lease_token = null, ready_at = afterturn.clock()"


@pytest.fixture
async def memory(settings: Settings) -> AsyncIterator[Memory]:
    """An open memory without workers."""
    async with Memory(settings) as opened:
        yield opened


async def _import(memory: Memory, database: Database, *entries: Any) -> Tally:
    conversations = _read(*entries)
    importer = Importer(memory, database, SCOPE)
    await importer.hand_over(conversations)
    await memory.drain(SCOPE, in_process=True)
    await importer.account()
    return importer.tally


def _read(*entries: Any) -> Sequence[Conversation]:
    return read_locomo(list(entries)).conversations


async def test_a_message_is_a_turn_with_one_side(memory: Memory, database: Database) -> None:
    """The transcript of the child scope is the conversation, in order, with names and captions."""
    tally = await _import(memory, database, locomo("chat-1", messages=40, sessions=2))
    turns = await memory.transcript(SCOPE.child("chat-1"), limit=1000)
    assert tally.recorded == tally.taken == tally.turns == len(turns) == 80
    assert [turn.turn_id for turn in turns] == [
        f"chat-1:D{session}:{number}" for session in (1, 2) for number in range(1, 41)
    ]
    first, second = turns[0], turns[1]
    assert (first.query, first.answer) == ("chat-1 says 1-1 about boats", None)
    assert (second.query, second.answer) == (None, "chat-1 says 1-2 about boats")
    assert first.names == second.names == ("Ann", "Bob")
    assert first.session == "session_1"
    assert first.metadata["caption"] == "a photo of boat 0"


async def test_what_is_imported_is_retrievable_once(memory: Memory, database: Database) -> None:
    """A question finds the message, and finds it only once."""
    await _import(memory, database, locomo("chat-1", messages=30))
    async with memory.turn(SCOPE.child("chat-1")) as turn:
        found = await turn.retrieve("what was said in 1-17 about boats?", limit=30)
    texts = [memory.record.text for memory in found.memories]
    assert texts.count("chat-1 says 1-17 about boats") == 1


async def test_importing_again_changes_nothing(memory: Memory, database: Database) -> None:
    """The second time every message is known, and memory holds exactly what it held."""
    entries = locomo("chat-1", messages=10), locomo("chat-2", messages=10)
    await _import(memory, database, *entries)
    before = [item async for item in memory.export(SCOPE)]
    tally = await _import(memory, database, *entries)
    assert (tally.taken, tally.known, tally.turns) == (0, 20, 20)
    assert [item async for item in memory.export(SCOPE)] == before


async def test_an_import_goes_on_where_one_ended(memory: Memory, database: Database) -> None:
    """Messages that came later are taken; those known are not taken twice."""
    await _import(memory, database, locomo("chat-1", messages=5))
    tally = await _import(memory, database, locomo("chat-1", messages=8))
    assert (tally.taken, tally.known, tally.recorded) == (3, 5, 8)


async def test_two_imports_at_once_record_each_message_once(
    memory: Memory, database: Database
) -> None:
    """Whoever hands a message over first, it is there once."""
    conversations = _read(locomo("chat-1", messages=60))
    importers = [Importer(memory, database, SCOPE) for _ in range(2)]
    await asyncio.gather(*(importer.hand_over(conversations) for importer in importers))
    await memory.drain(SCOPE, in_process=True)
    records = [each async for each in memory.export(SCOPE) if isinstance(each, MemoryRecord)]
    said = [r.record_id for r in records if r.layer == "episodic" and r.origin == "turn"]
    assert len(said) == len(set(said)) == 60


async def test_blank_messages_and_refused_ones_are_counted(
    memory: Memory, database: Database, settings: Settings
) -> None:
    """A blank message has nothing to record; one that is too large is refused with the limit."""
    entry = locomo("chat-1", messages=3)
    entry["conversation"]["session_1"][0]["text"] = "  "
    entry["conversation"]["session_1"][1]["text"] = "x" * (settings.text_bytes_max + 1)
    tally = await _import(memory, database, entry)
    assert (tally.taken, tally.blank, tally.recorded) == (1, 1, 1)
    (refusal,) = tally.refused
    assert refusal.turn_id == "chat-1:D1:2"
    assert str(settings.text_bytes_max) in refusal.reason
    assert "xxx" not in refusal.reason


async def test_a_scope_too_deep_is_refused_before_anything_is_handed_over(
    memory: Memory, database: Database
) -> None:
    """Below the deepest scope there is no room for a conversation."""
    deep = MemoryScope.of(*"abcdefgh")
    with pytest.raises(MemoryContractError, match="too deep"):
        await Importer(memory, database, deep).hand_over(_read(locomo()))
    assert (await memory.status()).outstanding == 0


async def test_an_importer_works_itself_when_nobody_else_does(
    memory: Memory, database: Database
) -> None:
    """Without a worker the drain takes over, says so, and ends with nothing outstanding."""
    await Importer(memory, database, SCOPE).hand_over(_read(locomo(messages=20)))
    told: list[str] = []
    left: list[int] = []
    drain = Drain(
        memory,
        database,
        patience_seconds=0.05,
        on_left=left.append,
        on_takeover=lambda: told.append("takeover"),
    )
    assert await drain.run(SCOPE) is True
    assert told == ["takeover"]
    assert left[0] > 0
    assert left[-1] == 0


async def test_the_work_is_left_to_whoever_holds_a_lease(
    memory: Memory, database: Database
) -> None:
    """While somebody holds a lease the drain waits, however long; then it may take over."""
    await Importer(memory, database, SCOPE).hand_over(_read(locomo(messages=3)))
    await database.value(LEASE)
    polls = asyncio.Semaphore(0)
    told: list[str] = []
    drain = Drain(
        memory,
        database,
        patience_seconds=0.0,
        on_left=lambda _left: polls.release(),
        on_takeover=lambda: told.append("takeover"),
    )
    task = asyncio.create_task(drain.run(SCOPE))
    for _ in range(4):
        await polls.acquire()
    assert told == []
    await database.value(GIVE_BACK)
    assert await task is True
    assert told == ["takeover"]
