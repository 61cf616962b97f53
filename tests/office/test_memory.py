"""Scheduling from code."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from afterturn import BlockingMemory, Memory, MemoryScope
from afterturn.errors import MemoryContractError
from afterturn.settings import Settings

ALICE = MemoryScope.of("acme", "alice")


async def test_an_erase_is_scheduled_and_cancelled(settings: Settings) -> None:
    """What is returned says when, for whom and why; memory goes on until then."""
    at = datetime.now(UTC) + timedelta(days=1)
    async with Memory(settings) as memory:
        made = await memory.schedule_forget(
            ALICE, at=at, derived="keep", requested_by="dpo", reason="T-1"
        )
        assert (made.kind, made.state, made.due_at) == ("forget", "waiting", at)
        assert (made.scope_path, made.derived, made.requested_by) == (ALICE.path, "keep", "dpo")
        await memory.remember(ALICE, "likes quinces")
        assert (await memory.cancel_scheduled(made.schedule_id)).state == "cancelled"
        assert (await memory.cancel_scheduled(made.schedule_id)).state == "cancelled"
        with pytest.raises(MemoryContractError, match="no such schedule"):
            await memory.cancel_scheduled(made.schedule_id + 1)


async def test_what_cannot_be_scheduled(settings: Settings) -> None:
    """A naive time, the past, a fate of derived facts that there is none of, a long reason."""
    soon = datetime.now(UTC) + timedelta(hours=1)
    async with Memory(settings) as memory:
        with pytest.raises(MemoryContractError, match="no time zone"):
            await memory.schedule_forget(ALICE, at=soon.replace(tzinfo=None))
        with pytest.raises(MemoryContractError, match="in the past"):
            await memory.schedule_forget(ALICE, at=soon - timedelta(days=1))
        with pytest.raises(MemoryContractError, match="derived"):
            await memory.schedule_forget(ALICE, at=soon, derived="some")  # type: ignore[arg-type]
        with pytest.raises(MemoryContractError, match="too long"):
            await memory.schedule_forget(ALICE, at=soon, reason="x" * 501)


def test_without_await(settings: Settings) -> None:
    """The same in a program that does not await."""
    at = datetime.now(UTC) + timedelta(days=1)
    with BlockingMemory(settings) as memory:
        made = memory.schedule_forget(ALICE, at=at)
        assert memory.cancel_scheduled(made.schedule_id).state == "cancelled"
