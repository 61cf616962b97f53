"""What a retrieval port and a scan must do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from afterturn.errors import MemoryUnavailable
from afterturn.queries import MemoryQuery, RetrievalResult
from afterturn.records import MemoryLayer, MemoryRecord
from afterturn.scope import MemoryScope, scope_from_path
from afterturn.testing.contracts.harness import (
    WORD,
    Contract,
    ReadPorts,
    Story,
    fresh_root,
    ids,
    question,
    record,
    told,
    with_ports,
)

# Names that a careless comparison takes for one another, and the scopes below two of them.
_NAMES = ("al", "alice", "alice2", "al_ce", "al%", "ALICE")
_BRANCHES: tuple[tuple[str, ...], ...] = (
    (),
    *((name,) for name in _NAMES),
    ("alice", "chat-4"),
    ("alice", "chat-42"),
    ("al", "ice"),
    ("alice", "chat-4", "deep"),
)
_ODD_QUESTIONS = (
    "",
    "   ",
    "?!",
    f"{WORD} \x00 {WORD}",
    f"{WORD} \ud83d",
    f"{WORD} 🌍 港 ميناء",
    f"{WORD} ' OR 1=1 -- %_\\",
    f"{WORD} " * 2_000,
)


class RetrievalContract(Contract):
    """Derive from it and give `ports`."""

    def ports(self) -> AbstractAsyncContextManager[ReadPorts]:
        """The source under test, opened for one test."""
        raise NotImplementedError

    @with_ports
    async def test_a_reader_sees_its_own_scope_and_those_above(self, ports: ReadPorts) -> None:
        """Never a sibling's, a descendant's, or one whose name only looks alike."""
        root = fresh_root()
        scopes = [_scope(root, branch) for branch in _BRANCHES]
        await ports.keep([record(scope, f"r-{at}") for at, scope in enumerate(scopes)])
        for reader in scopes:
            expected = {f"r-{at}" for at, scope in enumerate(scopes) if scope.covers(reader)}
            for found in (
                await ports.source.retrieve(question(reader, limit=50)),
                await ports.source.scan_candidates(question(reader)),
            ):
                assert set(ids(found)) == expected
                require_visible(reader, found)

    @with_ports
    async def test_nothing_remembered_is_an_empty_answer(self, ports: ReadPorts) -> None:
        """No error, nothing made up."""
        found = await ports.source.retrieve(question(fresh_root()))
        assert (found.memories, found.dropped) == ((), ())
        assert (await ports.source.scan_candidates(question(fresh_root()))).memories == ()

    @with_ports
    async def test_never_more_than_the_limit_and_the_rest_is_accounted_for(
        self, ports: ReadPorts
    ) -> None:
        """What was a candidate and does not come back stands in `dropped`, with a reason."""
        scope = await _filled(ports, 7)
        for limit in (-1, 0, 1, 3, 7, 50):
            found = await ports.source.retrieve(question(scope, limit=limit))
            assert len(found.memories) == min(max(limit, 0), 7)
            dropped = [each.record_id for each in found.dropped]
            assert sorted([*ids(found), *dropped]) == [f"r-{at}" for at in range(7)]
            assert all(each.reason for each in found.dropped)

    @with_ports
    async def test_a_scan_knows_no_limit(self, ports: ReadPorts) -> None:
        """All candidates, whatever the limit, the importance or the length asked for."""
        scope = await _filled(ports, 12)
        whole = await ports.source.scan_candidates(question(scope))
        assert len(whole.memories) == 12
        for bounds in ({"limit": 1}, {"limit": 0}, {"min_importance": 1.0}, {"max_chars": 1}):
            assert set(ids(await ports.source.scan_candidates(question(scope, **bounds)))) == set(
                ids(whole)
            )

    @with_ports
    async def test_best_first(self, ports: ReadPorts) -> None:
        """Scores never rise from one to the next, and the limit takes the first."""
        scope = await _filled(ports, 9)
        whole = await ports.source.retrieve(question(scope, limit=9))
        scores = [memory.score for memory in whole.memories]
        assert scores == sorted(scores, reverse=True)
        assert ids(await ports.source.retrieve(question(scope, limit=4))) == ids(whole)[:4]

    @with_ports
    async def test_the_same_question_gets_the_same_answer(self, ports: ReadPorts) -> None:
        """Reading changes nothing."""
        scope = await _filled(ports, 9)
        first = await ports.source.retrieve(question(scope, limit=5))
        for _ in range(3):
            assert ids(await ports.source.retrieve(question(scope, limit=5))) == ids(first)

    @with_ports
    async def test_what_a_gate_rejects_costs_no_place(self, ports: ReadPorts) -> None:
        """Unimportant records do not push three important ones out of an answer of three."""
        scope = fresh_root()
        # Whatever decides between equals, some unimportant ones come before important ones.
        low, high = ("a", "c", "e", "g"), ("b", "d", "f")
        await ports.keep([record(scope, each, importance=0.1) for each in low])
        await ports.keep([record(scope, each, importance=0.9) for each in high])
        found = await ports.source.retrieve(question(scope, limit=3, min_importance=0.5))
        assert sorted(ids(found)) == sorted(high)
        assert {each.record_id for each in found.dropped} == set(low)

    @with_ports
    async def test_only_the_layers_asked_for(self, ports: ReadPorts) -> None:
        """One, two, or all."""
        scope = fresh_root()
        await ports.keep([record(scope, layer.value, layer=layer) for layer in MemoryLayer])
        for layers in (
            [MemoryLayer.SEMANTIC],
            [MemoryLayer.PROCEDURAL, MemoryLayer.PROSPECTIVE],
            list(MemoryLayer),
        ):
            for found in (
                await ports.source.retrieve(question(scope, layers=layers)),
                await ports.source.scan_candidates(question(scope, layers=layers)),
            ):
                assert set(ids(found)) == {layer.value for layer in layers}
                assert {memory.record.layer for memory in found.memories} == set(layers)

    @with_ports
    async def test_the_characters_are_bounded(self, ports: ReadPorts) -> None:
        """The texts returned are together no longer than asked for."""
        scope = await _filled(ports, 9)
        size = len(record(scope, "r-0").text)
        found = await ports.source.retrieve(question(scope, max_chars=3 * size))
        assert len(found.memories) == 3

    @with_ports
    async def test_a_record_comes_back_as_it_was_kept(self, ports: ReadPorts) -> None:
        """Its id, text, layer and importance."""
        scope = fresh_root()
        kept = record(
            scope,
            "r:1.a-b_c",
            text=f"Ünïcode 🌍 港 and\nlines about the {WORD}",
            layer=MemoryLayer.EPISODIC,
            importance=0.75,
        )
        await ports.keep([kept])
        (memory,) = (await ports.source.retrieve(question(scope))).memories
        given = memory.record
        assert (given.record_id, given.text, given.layer) == (
            kept.record_id,
            kept.text,
            kept.layer,
        )
        assert given.importance == pytest.approx(kept.importance)

    @with_ports
    async def test_any_question_may_be_asked(self, ports: ReadPorts) -> None:
        """Blank, odd, hostile or long: an answer, and never anybody else's."""
        scope = await _filled(ports, 3)
        for text in _ODD_QUESTIONS:
            found = await ports.source.retrieve(MemoryQuery(scope=scope, text=text))
            assert set(ids(found)) <= {"r-0", "r-1", "r-2"}

    @with_ports
    async def test_many_readers_at_once_get_their_own(self, ports: ReadPorts) -> None:
        """Eight scopes, asked sixty-four times side by side."""
        root = fresh_root()
        scopes = [root.child(f"user-{at}") for at in range(8)]
        await ports.keep([record(scope, f"r-{at}") for at, scope in enumerate(scopes)])
        found = await asyncio.gather(
            *(ports.source.retrieve(question(scopes[at % 8])) for at in range(64))
        )
        assert [ids(each) for each in found] == [[f"r-{at % 8}"] for at in range(64)]

    @with_ports
    async def test_out_of_reach_is_an_error(self, ports: ReadPorts) -> None:
        """`MemoryUnavailable`, since an empty answer would mean that nothing is remembered."""
        if ports.unreachable is None:
            pytest.skip("the ports give no source that is out of reach")
        with pytest.raises(MemoryUnavailable):
            await ports.unreachable.retrieve(question(fresh_root()))

    def test_any_story_of_reading(self) -> None:
        """Random records in random scopes: every answer is what a model of the rules allows."""
        told(ReadingStory, self.ports(), self.stories)


class ReadingStory(Story):
    """Records come, questions are asked."""

    branches = st.sampled_from(_BRANCHES)

    def __init__(self) -> None:
        super().__init__()
        self.root = fresh_root()
        self.kept: dict[str, MemoryRecord] = {}

    @rule(
        branch=branches,
        layer=st.sampled_from(list(MemoryLayer)),
        importance=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]),
    )
    def keep(self, branch: tuple[str, ...], layer: MemoryLayer, importance: float) -> None:
        """One more record."""
        scope = _scope(self.root, branch)
        kept = record(scope, f"r-{len(self.kept)}", layer=layer, importance=importance)
        self.run(self.given.keep([kept]))
        self.kept[kept.record_id] = kept

    @rule(
        branch=branches,
        limit=st.integers(0, 12),
        layers=st.none() | st.lists(st.sampled_from(list(MemoryLayer)), min_size=1, unique=True),
        least=st.none() | st.sampled_from([0.25, 0.75]),
    )
    def ask(
        self,
        branch: tuple[str, ...],
        limit: int,
        layers: list[MemoryLayer] | None,
        least: float | None,
    ) -> None:
        """The answer and what was dropped are together all that may be seen."""
        reader = _scope(self.root, branch)
        query = question(reader, limit=limit, layers=layers, min_importance=least)
        seen = {
            each.record_id: each
            for each in self.kept.values()
            if scope_from_path(each.scope_path).covers(reader)
            and (layers is None or each.layer in layers)
        }
        good = [each for each in seen.values() if least is None or each.importance >= least]
        found = self.run(self.given.source.retrieve(query))
        assert len(found.memories) == min(limit, len(good))
        assert {*ids(found), *(each.record_id for each in found.dropped)} == set(seen)
        require_visible(reader, found)
        scanned = self.run(self.given.source.scan_candidates(query))
        assert set(ids(scanned)) == set(seen)
        require_visible(reader, scanned)


def require_visible(reader: MemoryScope, found: RetrievalResult) -> None:
    """Every record that came back says that the reader may see it."""
    for memory in found.memories:
        assert scope_from_path(memory.record.scope_path).covers(reader)


async def _filled(ports: ReadPorts, count: int) -> MemoryScope:
    scope = fresh_root().child("alice")
    await ports.keep([record(scope, f"r-{at}") for at in range(count)])
    return scope


def _scope(root: MemoryScope, branch: Sequence[str]) -> MemoryScope:
    return MemoryScope.of(*root.segments, *branch)
