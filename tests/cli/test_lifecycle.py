"""`afterturn forget` and `afterturn flush`, always without workers and with a dead broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from afterturn.errors import StaleTurn
from afterturn.memory import Memory
from afterturn.queries import MemoryQuery
from afterturn.records import MemoryLayer, MemoryRecord, Source
from afterturn.scope import MemoryScope
from afterturn.writes import WriteRequest

from .command import CommandLine

TENANT = MemoryScope.of("acme")
SCOPE = TENANT.child("alice")
ODD = TENANT.child("a/b %")


async def _stage(memory: Memory, scope: MemoryScope = SCOPE) -> None:
    async with memory.turn(scope, turn_id="t1") as turn:
        await turn.finish("I like quinces", "Noted")


async def _learn_elsewhere(memory: Memory) -> None:
    """A fact at the tenant that was learned from the turn alone."""
    await _stage(memory)
    record = MemoryRecord(
        record_id="fact",
        text="Somebody likes quinces",
        scope_path=TENANT.path,
        layer=MemoryLayer.SEMANTIC,
        origin="test",
        sources=(Source(turn_id="t1", turn_path=SCOPE.path),),
    )
    await memory.write(WriteRequest(scope=TENANT, records=(record,)))
    await memory.flush(TENANT)


async def _found(memory: Memory) -> list[str]:
    query = MemoryQuery(scope=SCOPE, text="what about quinces?", limit=10)
    return [each.record.text for each in (await memory.retrieve(query)).memories]


async def _held(memory: Memory) -> int:
    return len([item async for item in memory.export(TENANT)])


def test_a_flush_makes_the_turn_retrievable(alone: CommandLine, using: Callable[..., Any]) -> None:
    """After `flush` what was finished before is found, though no worker ever ran."""
    using(_stage)
    assert using(_found) == []
    outcome = alone.run("flush", "acme/alice", "--json")
    assert outcome.code == 0
    assert (outcome.json["kind"], outcome.json["outcome"]) == ("flush", "done")
    assert outcome.json["scope_path"] == "v1/acme/alice"
    assert "I like quinces" in using(_found)


def test_a_forget_leaves_nothing(alone: CommandLine, using: Callable[..., Any]) -> None:
    """After `forget` nothing is held, and the receipt counts what went."""
    using(_stage)
    alone.run("flush", "acme")
    outcome = alone.run(
        "forget", "acme/alice", "--requested-by", "dpo", "--reason", "T-7", "--json"
    )
    assert outcome.code == 0
    assert outcome.json["outcome"] == "done"
    assert outcome.json["counts"]["turns"] == 1
    assert outcome.json["counts"]["memories"] == 4
    assert outcome.json["log_head"]
    assert using(_held) == 0


def test_a_turn_under_way_is_refused_after_a_forget(
    alone: CommandLine, using: Callable[..., Any]
) -> None:
    """The command fences a turn that began before it, as any other erase does."""

    async def between(memory: Memory) -> None:
        turn = await memory.begin_turn(SCOPE)
        outcome = await asyncio.to_thread(alone.run, "forget", "acme")
        assert outcome.code == 0
        with pytest.raises(StaleTurn):
            await turn.finish("I like quinces", "Noted")

    using(between)


def test_a_person_reads_the_receipt(alone: CommandLine, using: Callable[..., Any]) -> None:
    """Without --json the receipt is told in lines, without any text of the memories."""
    using(_stage)
    shown = alone.run("forget", "acme/alice").stdout
    assert "forget, done" in shown
    assert "rows of turns" in shown
    assert "erase log" in shown
    assert "quinces" not in shown


@pytest.mark.parametrize(("derived", "outside", "held"), [("keep", 1, 1), ("erase", 0, 0)])
def test_derived_facts_elsewhere_are_kept_or_erased(
    alone: CommandLine, using: Callable[..., Any], derived: str, outside: int, held: int
) -> None:
    """--derived decides about a fact at the tenant that was learned from the erased turn."""
    using(_learn_elsewhere)
    outcome = alone.run("forget", "acme/alice", "--derived", derived, "--json")
    assert outcome.json["derived_outside"] == outside
    assert using(_held) == held


def test_segments_are_percent_encoded(alone: CommandLine, using: Callable[..., Any]) -> None:
    """A segment with a slash, a percent sign and a space can be named."""

    async def stage(memory: Memory) -> None:
        await _stage(memory, ODD)

    using(stage)
    outcome = alone.run("forget", "acme/a%2Fb%20%25", "--json")
    assert outcome.json["scope_path"] == ODD.path
    assert outcome.json["counts"]["turns"] == 1


def test_an_empty_scope_has_an_empty_receipt(alone: CommandLine) -> None:
    """Forgetting what was never there succeeds, and advances the generation all the same."""
    outcome = alone.run("forget", "nobody", "--json")
    assert outcome.code == 0
    assert not any(outcome.json["counts"].values())
    assert outcome.json["generation"] > 0


def test_the_installed_command_needs_no_workers_either(alone: CommandLine, elsewhere: Path) -> None:
    """By its full path, from any directory, with the takeover delay of the default settings."""
    settings = {k: v for k, v in alone.settings.items() if k != "AFTERTURN_TAKEOVER_SECONDS"}
    outcome = CommandLine(settings).installed("flush", "acme", "--json", cwd=elsewhere)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.json["outcome"] == "done"
