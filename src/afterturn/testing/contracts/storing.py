"""What a store must do that is written, flushed and erased: the write and lifecycle ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, rule

from afterturn.errors import ErasedScope, MemoryContractError, StaleTurn
from afterturn.records import MemoryLayer, MemoryRecord, Source
from afterturn.scope import MemoryScope, covering_paths, scope_from_path
from afterturn.testing.contracts.harness import (
    WORD,
    Contract,
    ReadPorts,
    StorePorts,
    Story,
    fresh_root,
    ids,
    question,
    record,
    told,
    with_ports,
)
from afterturn.testing.contracts.reading import RetrievalContract
from afterturn.writes import Token, WriteReceipt, WriteRequest

_LOOK_ALIKES = ("al", "alice2", "al_ce", "ali%", "ALICE")


class StoreContract(Contract):
    """Derive from it and give `ports`.

    What the retrieval port of the store must do is in `RetrievalContract`; `reading_ports` makes
    the ports for it out of these.
    """

    def ports(self) -> AbstractAsyncContextManager[StorePorts]:
        """The store under test, opened for one test."""
        raise NotImplementedError

    # -- writing

    @with_ports
    async def test_what_is_written_waits_for_a_flush(self, ports: StorePorts) -> None:
        """Pending records are not found; after a flush they are."""
        scope = fresh_root().child("alice")
        receipt = await _write(ports, scope, record(scope, "r"))
        assert [(each.record_id, each.status) for each in receipt.outcomes] == [("r", "pending")]
        assert await _seen(ports, scope) == {}
        assert (await ports.lifecycle.flush(scope)).outcome == "done"
        assert set(await _seen(ports, scope)) == {"r"}

    @with_ports
    async def test_the_same_id_in_the_same_scope_replaces(self, ports: StorePorts) -> None:
        """Readers keep the flushed text until a flush swaps it; then there is one, the new one."""
        scope = fresh_root()
        old, new = (record(scope, "r", text=f"{text} {WORD}") for text in ("old", "new"))
        await _write(ports, scope, old)
        await ports.lifecycle.flush(scope)
        receipt = await _write(ports, scope, new)
        assert receipt.outcomes[0].status == "updated"
        assert await _seen(ports, scope) == {"r": old.text}
        await ports.lifecycle.flush(scope)
        assert await _seen(ports, scope) == {"r": new.text}

    @with_ports
    async def test_the_last_of_several_writes_is_what_a_flush_publishes(
        self, ports: StorePorts
    ) -> None:
        """Replaced while pending, a text is never seen."""
        scope = fresh_root()
        for at in range(3):
            await _write(ports, scope, record(scope, "r", text=f"version {at} {WORD}"))
        await ports.lifecycle.flush(scope)
        assert await _seen(ports, scope) == {"r": f"version 2 {WORD}"}

    @with_ports
    async def test_the_same_id_in_another_scope_is_another_record(self, ports: StorePorts) -> None:
        """Ids are unique within their scope only; also for the same words."""
        root = fresh_root()
        alice, bob = root.child("alice"), root.child("bob")
        for scope in (alice, bob):
            await _write(ports, scope, record(scope, "r", text=f"the same {WORD}"))
        await ports.lifecycle.flush(root)
        await ports.lifecycle.forget(alice)
        assert await _seen(ports, alice) == {}
        assert set(await _seen(ports, bob)) == {"r"}

    @with_ports
    async def test_one_bad_record_goes_alone(self, ports: StorePorts) -> None:
        """Its outcome says `refused` and why, without its text; the others are written."""
        scope = fresh_root().child("alice")
        receipt = await _write(
            ports,
            scope,
            record(scope, "first"),
            record(scope, "blank", text=" \n "),
            record(scope.child("below"), "elsewhere"),
            record(scope, "first", text=f"again {WORD}"),
            record(scope, "last"),
        )
        assert [(each.record_id, each.status) for each in receipt.outcomes] == [
            ("first", "pending"),
            ("blank", "refused"),
            ("elsewhere", "refused"),
            ("first", "refused"),
            ("last", "pending"),
        ]
        assert all(bool(each.reason) == (each.status == "refused") for each in receipt.outcomes)
        assert not any(WORD in each.reason for each in receipt.outcomes)
        await ports.lifecycle.flush(scope)
        assert set(await _seen(ports, scope)) == {"first", "last"}

    @with_ports
    async def test_an_empty_request_is_an_empty_receipt(self, ports: StorePorts) -> None:
        """Nothing asked, nothing done."""
        assert (await _write(ports, fresh_root())).outcomes == ()

    @with_ports
    async def test_every_field_is_kept(self, ports: StorePorts) -> None:
        """Text in any script, layer, origin, metadata, importance, time and sources."""
        scope = fresh_root().child("alice")
        kept = record(
            scope,
            "r:1.a-b_c",
            text=f"Ünïcode 🌍 港 and\nlines about the {WORD}",
            layer=MemoryLayer.PROCEDURAL,
            origin="somewhere",
            metadata={"k": [1, {"ü": None}], "session": "s"},
            importance=0.75,
            occurred_at=datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
            sources=(Source(turn_id="t", turn_path=scope.child("chat").path),),
        )
        await _write(ports, scope, kept)
        await ports.lifecycle.flush(scope)
        (memory,) = (await ports.retrieval.scan_candidates(question(scope))).memories
        assert memory.record.recorded_at is not None
        assert memory.record.model_copy(update={"recorded_at": None}) == kept

    @with_ports
    async def test_what_no_store_can_hold_is_replaced(self, ports: StorePorts) -> None:
        """NUL and lone surrogates become U+FFFD."""
        scope = fresh_root()
        await _write(ports, scope, record(scope, "r", text=f"a\x00b\ud83d {WORD}"))
        await ports.lifecycle.flush(scope)
        assert await _seen(ports, scope) == {"r": f"a\ufffdb\ufffd {WORD}"}

    # -- tokens

    @with_ports
    async def test_a_write_without_a_token_is_for_scopes_never_erased(
        self, ports: StorePorts
    ) -> None:
        """It vouches for nothing: fine at first, `ErasedScope` after an erase there or above."""
        root = fresh_root()
        alice, bob = root.child("alice"), root.child("bob")
        assert (await _bare(ports, alice)).outcomes[0].status == "pending"
        await ports.lifecycle.forget(alice)
        for scope in (alice, alice.child("chat")):
            with pytest.raises(ErasedScope):
                await _bare(ports, scope)
        assert (await _bare(ports, bob)).outcomes[0].status == "pending"

    @with_ports
    async def test_a_token_from_before_an_erase_is_stale(self, ports: StorePorts) -> None:
        """For the erased scope and all below it; not beside it, and not above it."""
        root = fresh_root()
        alice, bob = root.child("alice"), root.child("bob")
        chat = alice.child("chat")
        tokens = {scope: await ports.capture(scope) for scope in (root, alice, chat, bob)}
        await ports.lifecycle.forget(alice)
        for scope in (alice, chat):
            with pytest.raises(StaleTurn):
                await _bare(ports, scope, token=tokens[scope])
            assert (await _bare(ports, scope, token=await ports.capture(scope))).outcomes
        for scope in (root, bob):
            assert (await _bare(ports, scope, token=tokens[scope])).outcomes

    @with_ports
    async def test_a_token_of_an_ancestor_scope_does_not_do(self, ports: StorePorts) -> None:
        """It does not vouch for what was erased below it; one of a stranger is refused."""
        root = fresh_root()
        alice = root.child("alice")
        await ports.lifecycle.forget(alice)
        with pytest.raises(StaleTurn):
            await _bare(ports, alice, token=await ports.capture(root))
        with pytest.raises(MemoryContractError):
            await _bare(ports, root.child("bob"), token=await ports.capture(alice))

    @with_ports
    async def test_a_stale_write_leaves_nothing(self, ports: StorePorts) -> None:
        """Refused as a whole: no flush brings any of it out."""
        scope = fresh_root()
        token = await ports.capture(scope)
        await ports.lifecycle.forget(scope)
        with pytest.raises(StaleTurn):
            await _bare(ports, scope, token=token)
        await ports.lifecycle.flush(scope)
        assert await _seen(ports, scope) == {}

    @with_ports
    async def test_a_record_of_an_erased_source_is_refused(self, ports: StorePorts) -> None:
        """Alone, and with a reason: what was erased is not named again. Nor is what was kept."""
        alice = fresh_root().child("alice")
        chat = alice.child("chat")
        source = Source(turn_id="t", turn_path=chat.path)
        await _write(ports, alice, record(alice, "kept", sources=(source,)))
        await ports.lifecycle.flush(alice)
        await ports.lifecycle.forget(chat)
        receipt = await _write(
            ports, alice, record(alice, "late", sources=(source,)), record(alice, "other")
        )
        assert [each.status for each in receipt.outcomes] == ["refused", "pending"]
        assert receipt.outcomes[0].reason
        await ports.lifecycle.flush(alice)
        assert set(await _seen(ports, alice)) == {"kept", "other"}

    # -- flush

    @with_ports
    async def test_a_flush_publishes_its_subtree_alone(self, ports: StorePorts) -> None:
        """What waits below is published; what waits beside and above goes on waiting."""
        root = fresh_root()
        alice = root.child("alice")
        others = [root.child(name) for name in _LOOK_ALIKES]
        for scope in (root, alice, alice.child("chat"), *others):
            await _write(ports, scope, record(scope, "r"))
        await ports.lifecycle.flush(alice)
        assert set(await _paths(ports, alice.child("chat"))) == {
            alice.path,
            alice.child("chat").path,
        }
        for scope in (root, *others):
            assert await _paths(ports, scope) == []
        await ports.lifecycle.flush(root)
        for scope in others:
            assert set(await _paths(ports, scope)) == {root.path, scope.path}

    @with_ports
    async def test_a_flush_of_nothing_changes_nothing(self, ports: StorePorts) -> None:
        """Its receipt counts nothing, and readers see what they saw."""
        scope = fresh_root()
        await _write(ports, scope, record(scope, "r"))
        await ports.lifecycle.flush(scope)
        for empty in (scope, scope.child("empty")):
            receipt = await ports.lifecycle.flush(empty)
            assert (receipt.outcome, sum(receipt.counts.values())) == ("done", 0)
        assert set(await _seen(ports, scope)) == {"r"}

    # -- forget

    @with_ports
    async def test_a_forget_takes_its_subtree_in_every_state(self, ports: StorePorts) -> None:
        """Published and pending, at the scope and below; no later flush brings anything back."""
        root = fresh_root()
        alice = root.child("alice")
        chat = alice.child("chat")
        for scope in (alice, chat):
            await _write(ports, scope, record(scope, "published"))
        await ports.lifecycle.flush(root)
        for scope in (alice, chat):
            await _write(ports, scope, record(scope, "pending"))
            await _write(ports, scope, record(scope, "published", text=f"newer {WORD}"))
        receipt = await ports.lifecycle.forget(alice)
        assert sum(receipt.counts.values()) >= 6
        await ports.lifecycle.flush(root)
        assert await _paths(ports, chat) == []

    @with_ports
    async def test_a_forget_touches_nothing_beyond(self, ports: StorePorts) -> None:
        """Not the scope above, not those beside, whatever their names look like."""
        root = fresh_root()
        alice = root.child("alice")
        others = [root, *(root.child(name) for name in _LOOK_ALIKES)]
        for scope in (alice, *others):
            await _write(ports, scope, record(scope, "published"))
        await ports.lifecycle.flush(root)
        for scope in others:
            await _write(ports, scope, record(scope, "pending"))
        before = {scope: await _records(ports, scope) for scope in others}
        await ports.lifecycle.forget(alice)
        assert {scope: await _records(ports, scope) for scope in others} == before
        await ports.lifecycle.flush(root)
        for scope in others:
            assert set(await _seen(ports, scope)) == {"published", "pending"}

    @with_ports
    async def test_a_forget_of_nothing_counts_nothing_and_still_moves_the_number(
        self, ports: StorePorts
    ) -> None:
        """So that a turn which had begun is stale all the same."""
        scope = fresh_root().child("alice")
        token = await ports.capture(scope)
        first = await ports.lifecycle.forget(scope)
        second = await ports.lifecycle.forget(scope)
        assert sum((*first.counts.values(), *second.counts.values())) == 0
        assert 0 < first.generation < second.generation
        with pytest.raises(StaleTurn):
            await _bare(ports, scope, token=token)

    @with_ports
    async def test_a_receipt_says_what_was_done_where_and_when(self, ports: StorePorts) -> None:
        """Kind, scope, outcome, an id of its own, times in order."""
        scope = fresh_root().child("alice")
        receipts = [
            await ports.lifecycle.flush(scope),
            await ports.lifecycle.forget(scope),
            await ports.lifecycle.flush(scope),
        ]
        assert [each.kind for each in receipts] == ["flush", "forget", "flush"]
        assert {each.scope_path for each in receipts} == {scope.path}
        assert {each.outcome for each in receipts} == {"done"}
        assert len({each.job_id for each in receipts}) == 3
        assert all(each.requested_at <= each.completed_at for each in receipts)

    @with_ports
    async def test_an_erased_scope_can_be_used_again_at_once(self, ports: StorePorts) -> None:
        """With a new token: the same ids are new records."""
        scope = fresh_root().child("alice")
        for at in range(3):
            await _write(ports, scope, record(scope, "r", text=f"life {at} {WORD}"))
            await ports.lifecycle.flush(scope)
            assert await _seen(ports, scope) == {"r": f"life {at} {WORD}"}
            await ports.lifecycle.forget(scope)
            assert await _seen(ports, scope) == {}

    @with_ports
    async def test_what_was_learned_elsewhere_stays_and_is_counted(self, ports: StorePorts) -> None:
        """The port's forget is strict: a fact promoted out of the erased scope is left standing."""
        alice = fresh_root().child("alice")
        chat = alice.child("chat")
        source = Source(turn_id="t", turn_path=chat.path)
        await _write(ports, alice, record(alice, "fact", sources=(source,)))
        await ports.lifecycle.flush(alice)
        receipt = await ports.lifecycle.forget(chat)
        assert receipt.derived_outside == 1
        assert set(await _seen(ports, alice)) == {"fact"}

    @with_ports
    async def test_flushes_and_erases_side_by_side_keep_apart(self, ports: StorePorts) -> None:
        """Many scopes at once: each ends as if it had been alone."""
        root = fresh_root()
        scopes = [root.child(f"user-{at}") for at in range(6)]

        async def live(at: int, scope: MemoryScope) -> None:
            await _write(ports, scope, record(scope, "r"))
            await ports.lifecycle.flush(scope)
            if at % 2:
                await ports.lifecycle.forget(scope)

        await asyncio.gather(*(live(at, scope) for at, scope in enumerate(scopes)))
        for at, scope in enumerate(scopes):
            assert set(await _seen(ports, scope)) == (set() if at % 2 else {"r"})

    def test_any_story_of_a_store(self) -> None:
        """Random writes with tokens old and new, flushes, erases: readers see what a model says."""
        told(StoreStory, self.ports(), self.stories)


class StoreStory(Story):
    """A store and the plainest model of one."""

    branches = st.sampled_from(
        [(), ("al",), ("alice",), ("alice", "chat-4"), ("alice", "chat-42"), ("al", "ice")]
    )
    tokens: Bundle[tuple[MemoryScope, Token, int]] = Bundle("tokens")

    def __init__(self) -> None:
        super().__init__()
        self.root = fresh_root()
        self.step = 0
        self.published: dict[tuple[MemoryScope, str], str] = {}
        self.pending: dict[tuple[MemoryScope, str], str] = {}
        self.erased: dict[MemoryScope, int] = {}

    @rule(target=tokens, branch=branches)
    def begin(self, branch: tuple[str, ...]) -> tuple[MemoryScope, Token, int]:
        """A turn begins, and keeps its token for whenever it may write."""
        self.step += 1
        scope = self._scope(branch)
        return scope, self.run(self.given.capture(scope)), self.step

    @rule(begun=tokens, record_id=st.sampled_from(["a", "b"]))
    def write(self, begun: tuple[MemoryScope, Token, int], record_id: str) -> None:
        """It writes: refused exactly when its scope was erased since it began."""
        scope, token, at = begun
        self.step += 1
        kept = record(scope, record_id, text=f"step {self.step} {WORD}")
        request = WriteRequest(scope=scope, records=(kept,), token=token)
        if self._erased_at(scope) > at:
            with pytest.raises(StaleTurn):
                self.run(self.given.writing.write(request))
            return
        self.run(self.given.writing.write(request))
        self.pending[scope, record_id] = kept.text

    @rule(branch=branches)
    def write_bare(self, branch: tuple[str, ...]) -> None:
        """A write without a token: refused exactly where there was ever an erase."""
        self.step += 1
        scope = self._scope(branch)
        kept = record(scope, "c", text=f"step {self.step} {WORD}")
        request = WriteRequest(scope=scope, records=(kept,))
        if self._erased_at(scope):
            with pytest.raises(ErasedScope):
                self.run(self.given.writing.write(request))
            return
        self.run(self.given.writing.write(request))
        self.pending[scope, "c"] = kept.text

    @rule(branch=branches)
    def flush(self, branch: tuple[str, ...]) -> None:
        """What waits in a subtree becomes readable."""
        self.step += 1
        scope = self._scope(branch)
        self.run(self.given.lifecycle.flush(scope))
        for key in [key for key in self.pending if scope.covers(key[0])]:
            self.published[key] = self.pending.pop(key)
        self.look()

    @rule(branch=branches)
    def forget(self, branch: tuple[str, ...]) -> None:
        """A subtree goes."""
        self.step += 1
        scope = self._scope(branch)
        self.run(self.given.lifecycle.forget(scope))
        for table in (self.published, self.pending):
            for key in [key for key in table if scope.covers(key[0])]:
                del table[key]
        self.erased[scope] = self.step
        self.look()

    @rule()
    def look(self) -> None:
        """Every reader sees what the model says."""
        for branch in ((), ("alice", "chat-4"), ("alice", "chat-42"), ("al", "ice")):
            reader = self._scope(branch)
            found = self.run(_texts(self.given, reader))
            assert found == {
                (scope.path, record_id): text
                for (scope, record_id), text in self.published.items()
                if scope.covers(reader)
            }

    def _scope(self, branch: Sequence[str]) -> MemoryScope:
        return MemoryScope.of(*self.root.segments, *branch)

    def _erased_at(self, scope: MemoryScope) -> int:
        paths = (scope_from_path(path) for path in covering_paths(scope.path))
        return max(self.erased.get(each, 0) for each in paths)


def reading_ports(
    opened: AbstractAsyncContextManager[StorePorts],
) -> AbstractAsyncContextManager[ReadPorts]:
    """The ports of `RetrievalContract` for the store of a `StoreContract`."""

    @asynccontextmanager
    async def ports() -> AsyncIterator[ReadPorts]:
        async with opened as store:

            async def keep(records: Sequence[MemoryRecord]) -> None:
                by_scope: dict[str, list[MemoryRecord]] = {}
                for each in records:
                    by_scope.setdefault(each.scope_path, []).append(each)
                for path, those in by_scope.items():
                    await _write(store, scope_from_path(path), *those)
                    await store.lifecycle.flush(scope_from_path(path))

            yield ReadPorts(store.retrieval, keep, unreachable=store.unreachable)

    return ports()


class StoreReadingContract(RetrievalContract):
    """`RetrievalContract` for a store: derive from it and give `store`."""

    def store(self) -> AbstractAsyncContextManager[StorePorts]:
        """The store under test, opened for one test."""
        raise NotImplementedError

    def ports(self) -> AbstractAsyncContextManager[ReadPorts]:
        """Its retrieval, filled by its own writing."""
        return reading_ports(self.store())


async def _write(ports: StorePorts, scope: MemoryScope, *records: MemoryRecord) -> WriteReceipt:
    token = await ports.capture(scope)
    return await ports.writing.write(WriteRequest(scope=scope, records=records, token=token))


async def _bare(
    ports: StorePorts, scope: MemoryScope, *, token: Token | None = None
) -> WriteReceipt:
    return await ports.writing.write(
        WriteRequest(scope=scope, records=(record(scope, "r"),), token=token)
    )


async def _records(ports: StorePorts, scope: MemoryScope) -> list[MemoryRecord]:
    """The records at exactly this scope that its readers see."""
    found = await ports.retrieval.scan_candidates(question(scope))
    records = (memory.record for memory in found.memories)
    return sorted(
        (each for each in records if each.scope_path == scope.path), key=lambda r: r.record_id
    )


async def _seen(ports: StorePorts, scope: MemoryScope) -> dict[str, str]:
    return {each.record_id: each.text for each in await _records(ports, scope)}


async def _paths(ports: StorePorts, reader: MemoryScope) -> list[str]:
    found = await ports.retrieval.scan_candidates(question(reader))
    assert len(ids(found)) == len(found.memories)
    return [memory.record.scope_path for memory in found.memories]


async def _texts(ports: StorePorts, reader: MemoryScope) -> dict[tuple[str, str], str]:
    found = await ports.retrieval.scan_candidates(question(reader))
    return {
        (memory.record.scope_path, memory.record.record_id): memory.record.text
        for memory in found.memories
    }
