"""The reference and PostgreSQL, told the same story, hold the same memory at every step."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from afterturn.errors import AfterturnError
from afterturn.memory import Memory
from afterturn.model import Model
from afterturn.reading import TranscriptTurn
from afterturn.records import MemoryLayer, MemoryRecord, Source
from afterturn.scope import MemoryScope, scope_from_path
from afterturn.settings import Settings
from afterturn.testing import ReferenceMemory
from afterturn.testing.contracts.harness import Contract, Story, fresh_root, told
from afterturn.turns import ExtractionRequest, ExtractionResult

from .shared import shared_database


class Promoting:
    """Learns one fact a turn, in the scope that the turn's text names: its own or one above."""

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        (turn,) = request.turns
        scope, level = request.scope, int((turn.query or "0").split()[0])
        target = scope.ancestor(max(scope.depth - level, 2))
        fact = MemoryRecord(
            record_id=f"fact-{turn.turn_id}",
            text=f"learned from {turn.turn_id}",
            scope_path=target.path,
            layer=MemoryLayer.SEMANTIC,
            origin="test",
        )
        return ExtractionResult(records=(fact,))


class LifeStory(Story):
    """Turns, facts, flushes and erases; both memories are asked for everything after each."""

    branches = st.sampled_from([("al",), ("alice",), ("alice", "c-1"), ("alice", "c-2")])
    turn_ids = st.sampled_from(["t-1", "t-2", "t-3"])
    sessions = st.sampled_from([None, "one", "two"])

    def __init__(self) -> None:
        super().__init__()
        self.root = fresh_root()
        self.memories: tuple[Memory, Memory] = self.given

    @rule(branch=branches, turn_id=turn_ids, session=sessions, level=st.integers(0, 1))
    def say(self, branch: Sequence[str], turn_id: str, session: str | None, level: int) -> None:
        """A turn is handed over."""

        async def said(memory: Memory) -> Any:
            async with memory.turn(self.at(branch), session=session, turn_id=turn_id) as turn:
                return (await turn.finish(f"{level} levels up", f"{turn_id} noted")).known

        self.both(said)

    @rule()
    def drain(self) -> None:
        """All that waits is processed; of one scope alone, more may be than was asked for."""
        self.both(lambda memory: memory.drain(self.root, in_process=True))

    @rule(branch=branches, record_id=st.sampled_from(["a", "b"]))
    def remember(self, branch: Sequence[str], record_id: str) -> None:
        """A fact is written and flushed."""
        scope = self.at(branch)
        self.both(lambda memory: memory.remember(scope, f"{record_id} it is", record_id=record_id))

    @rule(branch=branches)
    def flush(self, branch: Sequence[str]) -> None:
        """What was acknowledged is recorded."""
        self.both(lambda memory: memory.flush(self.at(branch)))

    @rule(branch=branches, derived=st.sampled_from(["erase", "keep"]))
    def forget(self, branch: Sequence[str], derived: Any) -> None:
        """A subtree goes; how much was learned from it elsewhere is told alike."""

        async def forgotten(memory: Memory) -> Any:
            receipt = await memory.forget(self.at(branch), derived=derived)
            return receipt.derived_outside, receipt.counts.get("turns", 0)

        self.both(forgotten)

    @rule(branch=branches, turn_id=turn_ids)
    def forget_turn(self, branch: Sequence[str], turn_id: str) -> None:
        """One turn goes, with what was learned from it alone."""
        self.both(lambda memory: memory.forget_records(self.at(branch), turn_ids=[turn_id]))

    @rule(branch=branches, session=st.sampled_from(["one", "two"]))
    def forget_session(self, branch: Sequence[str], session: str) -> None:
        """One conversation goes."""
        self.both(lambda memory: memory.forget_records(self.at(branch), session=session))

    @rule(branch=branches, turn_id=turn_ids, side=st.sampled_from(["user", "assistant"]))
    def forget_side(self, branch: Sequence[str], turn_id: str, side: str) -> None:
        """One message goes."""
        name = f"{turn_id}:{side}:episodic"
        self.both(lambda memory: memory.forget_records(self.at(branch), record_ids=[name]))

    def at(self, branch: Sequence[str]) -> MemoryScope:
        """A scope of this story."""
        return MemoryScope.of(*self.root.segments, *branch)

    def both(self, act: Any) -> None:
        """Do it in both, and compare what came of it and what is held."""
        answers = []
        for memory in self.memories:
            try:
                told: Any = self.run(act(memory))
            except AfterturnError as error:
                told = type(error)
            answers.append(("" if isinstance(told, Model) else told, self.held(memory)))
        assert answers[0] == answers[1]

    def held(self, memory: Memory) -> list[tuple[Any, ...]]:
        """Everything under the story's root, without times."""

        async def collected() -> list[tuple[Any, ...]]:
            return [_plain(item) async for item in memory.export(self.root)]

        return sorted(self.run(collected()))


def _plain(item: MemoryRecord | TranscriptTurn) -> tuple[Any, ...]:
    if isinstance(item, TranscriptTurn):
        said = str(item.session), str(item.query), str(item.answer)
        return ("turn", item.scope_path, item.turn_id, *said)
    return ("record", item.scope_path, item.record_id, item.text, item.layer.value, _sources(item))


def _sources(record: MemoryRecord) -> str:
    def shown(source: Source) -> str:
        return f"{scope_from_path(source.turn_path).path} {source.turn_id}"

    return ", ".join(sorted(map(shown, record.sources)))


@pytest.fixture(scope="module")
def shared(home: Path, server_url: str, template_url: str, broker_url: str) -> Iterator[Settings]:
    with shared_database(home, server_url, broker_url) as settings:
        yield settings


def test_any_story_is_remembered_alike(shared: Settings) -> None:
    """Random lives of a few scopes: both answer alike and hold the same, step by step."""

    class Lives(Contract):
        examples, steps = 8, 20

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Memory, Memory]]:
        async with (
            Memory(shared, extractor=Promoting()) as real,
            ReferenceMemory(extractor=Promoting()) as reference,
        ):
            yield real, reference

    told(LifeStory, opened(), Lives().stories)
