"""The contracts notice: without any one rule of the reference they fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import hypothesis
import pytest

from afterturn.extraction.rules import RuleExtractor
from afterturn.ports import MemoryExtractorPort
from afterturn.queries import MemoryQuery, RetrievalResult
from afterturn.records import MemoryLayer, MemoryRecord
from afterturn.scope import MemoryScope
from afterturn.testing import store as store_module
from afterturn.testing.contracts import (
    ExtractorContract,
    StoreContract,
    StorePorts,
    StoreReadingContract,
)
from afterturn.testing.contracts.harness import Contract
from afterturn.testing.ports import ReferenceRetrieval, ReferenceWriting
from afterturn.testing.store import HeldJob, ReferenceStore
from afterturn.turns import ExtractionRequest, ExtractionResult
from afterturn.writes import WriteReceipt, WriteRequest

from .test_reference import reference_ports


class _Quick:
    """Contracts whose failing stories are not made shorter: that one fails is enough here."""

    stories = hypothesis.settings(
        parent=Contract().stories,
        max_examples=30,
        stateful_step_count=15,
        phases=[hypothesis.Phase.generate],
        database=None,
    )


class Storing(_Quick, StoreContract):
    def ports(self) -> AbstractAsyncContextManager[StorePorts]:
        return reference_ports()


class Reading(_Quick, StoreReadingContract):
    def store(self) -> AbstractAsyncContextManager[StorePorts]:
        return reference_ports()


def broken_promises(contract: Contract) -> list[str]:
    """The tests of a contract that fail."""
    broken = []
    for name in sorted(dir(contract)):
        if name.startswith("test_"):
            try:
                getattr(contract, name)()
            except pytest.skip.Exception:
                pass
            except BaseException:  # noqa: BLE001 - however it fails, it fails
                broken.append(name)
    return broken


def test_the_reference_keeps_every_promise() -> None:
    """Else the list below would show nothing."""
    assert broken_promises(Storing()) == []
    assert broken_promises(Reading()) == []


# -- what is taken away

Mutant = Callable[[pytest.MonkeyPatch], None]
reading_mutants: dict[str, Mutant] = {}
storing_mutants: dict[str, Mutant] = {}


def mutant(of: dict[str, Mutant]) -> Callable[[Mutant], Mutant]:
    def named(function: Mutant) -> Mutant:
        of[function.__name__] = function
        return function

    return named


def _visible(rule: Callable[[str, str], bool]) -> Callable[[Any, MemoryScope], Iterator[Any]]:
    def visible(self: ReferenceStore, scope: MemoryScope) -> Iterator[MemoryRecord]:
        self.require_open(scope.path)
        return (r for (path, _), r in self.published.items() if rule(path, scope.path))

    return visible


@mutant(reading_mutants)
def everybody_sees_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ReferenceStore, "visible", _visible(lambda path, reader: path[:12] == reader[:12])
    )
    patch.setattr("afterturn.retrieval.gates.require_visible", lambda *_: None)


@mutant(reading_mutants)
def a_prefix_of_the_name_is_an_ancestor(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReferenceStore, "visible", _visible(lambda path, reader: reader.startswith(path)))
    patch.setattr("afterturn.retrieval.gates.require_visible", lambda *_: None)


@mutant(reading_mutants)
def readers_do_not_see_the_scopes_above(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReferenceStore, "visible", _visible(lambda path, reader: path == reader))


@mutant(reading_mutants)
def names_are_compared_without_case(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ReferenceStore,
        "visible",
        _visible(lambda path, reader: (reader.lower() + "/").startswith(path.lower() + "/")),
    )
    patch.setattr("afterturn.retrieval.gates.require_visible", lambda *_: None)


def _retrieving(
    change: Callable[[RetrievalResult, MemoryQuery], RetrievalResult],
    **widened: Any,
) -> Callable[[Any, MemoryQuery], Any]:
    original = ReferenceRetrieval.retrieve

    async def retrieve(self: ReferenceRetrieval, query: MemoryQuery) -> RetrievalResult:
        return change(await original(self, query.model_copy(update=widened)), query)

    return retrieve


@mutant(reading_mutants)
def the_limit_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReferenceRetrieval, "retrieve", _retrieving(lambda r, _: r, limit=1000))


@mutant(reading_mutants)
def nothing_dropped_is_named(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ReferenceRetrieval,
        "retrieve",
        _retrieving(lambda r, _: r.model_copy(update={"dropped": ()})),
    )


@mutant(reading_mutants)
def the_importance_is_judged_after_the_cap(patch: pytest.MonkeyPatch) -> None:
    def late(result: RetrievalResult, query: MemoryQuery) -> RetrievalResult:
        least = query.min_importance or 0.0
        good = tuple(m for m in result.memories if m.record.importance >= least)
        return result.model_copy(update={"memories": good})

    patch.setattr(ReferenceRetrieval, "retrieve", _retrieving(late, min_importance=None))


@mutant(reading_mutants)
def the_length_is_not_bounded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReferenceRetrieval, "retrieve", _retrieving(lambda r, _: r, max_chars=None))


@mutant(reading_mutants)
def the_layers_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReferenceRetrieval, "retrieve", _retrieving(lambda r, _: r, layers=None))


@mutant(reading_mutants)
def a_scan_stops_at_the_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReferenceRetrieval, "scan_candidates", ReferenceRetrieval.retrieve)


@mutant(reading_mutants)
def worst_first(patch: pytest.MonkeyPatch) -> None:
    original = ReferenceRetrieval._candidates

    def reversed_(self: ReferenceRetrieval, query: MemoryQuery) -> list[Any]:
        found = original(self, query)
        return [m.model_copy(update={"score": float(at)}) for at, m in enumerate(found)]

    patch.setattr(ReferenceRetrieval, "_candidates", reversed_)


@mutant(reading_mutants)
def an_outage_is_an_empty_answer(patch: pytest.MonkeyPatch) -> None:
    original = ReferenceRetrieval.retrieve

    async def retrieve(self: ReferenceRetrieval, query: MemoryQuery) -> RetrievalResult:
        return await original(self, query) if self._store.reachable else RetrievalResult()

    patch.setattr(ReferenceRetrieval, "retrieve", retrieve)


@mutant(reading_mutants)
def reading_uses_records_up(patch: pytest.MonkeyPatch) -> None:
    original = ReferenceRetrieval.retrieve

    async def retrieve(self: ReferenceRetrieval, query: MemoryQuery) -> RetrievalResult:
        found = await original(self, query)
        for memory in found.memories:
            del self._store.published[memory.record.scope_path, memory.record.record_id]
        return found

    patch.setattr(ReferenceRetrieval, "retrieve", retrieve)


@mutant(reading_mutants)
def odd_questions_are_not_cleaned(patch: pytest.MonkeyPatch) -> None:
    def strict(text: str) -> list[str]:
        return text.encode().decode().split()

    patch.setattr("afterturn.testing.ports.terms", strict)


@mutant(storing_mutants)
def nothing_waits_for_a_flush(patch: pytest.MonkeyPatch) -> None:
    def keep(self: ReferenceStore, record: MemoryRecord) -> str:
        self.publish(record)
        return "pending"

    patch.setattr(ReferenceStore, "keep", keep)


@mutant(storing_mutants)
def a_replacement_hides_what_was_flushed(patch: pytest.MonkeyPatch) -> None:
    original = ReferenceStore.keep

    def keep(self: ReferenceStore, record: MemoryRecord) -> str:
        status = original(self, record)
        self.published.pop((record.scope_path, record.record_id), None)
        return status

    patch.setattr(ReferenceStore, "keep", keep)


@mutant(storing_mutants)
def ids_are_unique_everywhere(patch: pytest.MonkeyPatch) -> None:
    original = ReferenceStore.keep

    def keep(self: ReferenceStore, record: MemoryRecord) -> str:
        for key in [k for k in self.pending if k[1] == record.record_id]:
            del self.pending[key]
        return original(self, record)

    patch.setattr(ReferenceStore, "keep", keep)


@mutant(storing_mutants)
def one_bad_record_fails_the_request(patch: pytest.MonkeyPatch) -> None:
    original = ReferenceWriting.write

    async def write(self: ReferenceWriting, request: WriteRequest) -> WriteReceipt:
        if any(not record.text.strip() for record in request.records):
            raise ValueError
        return await original(self, request)

    patch.setattr(ReferenceWriting, "write", write)


@mutant(storing_mutants)
def bad_records_are_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("afterturn.testing.ports.refusals", lambda *_, **__: {})


@mutant(storing_mutants)
def metadata_is_lost(patch: pytest.MonkeyPatch) -> None:
    original = ReferenceStore.keep

    def keep(self: ReferenceStore, record: MemoryRecord) -> str:
        return original(self, record.model_copy(update={"metadata": {}}))

    patch.setattr(ReferenceStore, "keep", keep)


@mutant(storing_mutants)
def no_token_is_asked_for(patch: pytest.MonkeyPatch) -> None:
    original = ReferenceStore.require_vouched

    def lenient(self: ReferenceStore, path: str, token: Any) -> None:
        if token is not None:
            original(self, path, token)

    patch.setattr(ReferenceStore, "require_vouched", lenient)


@mutant(storing_mutants)
def stale_tokens_pass(patch: pytest.MonkeyPatch) -> None:
    original = ReferenceStore.require_vouched

    def lenient(self: ReferenceStore, path: str, token: Any) -> None:
        if token is None:
            original(self, path, token)

    patch.setattr(ReferenceStore, "require_vouched", lenient)


@mutant(storing_mutants)
def only_the_own_number_counts(patch: pytest.MonkeyPatch) -> None:
    def numbers(self: ReferenceStore, path: str) -> list[int]:
        own = [0] * path.count("/")
        own[-1] = self.erase_numbers.get(path, 0)
        return own

    patch.setattr(ReferenceStore, "numbers", numbers)


@mutant(storing_mutants)
def a_forget_moves_no_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReferenceStore, "advance", lambda self, path: self.draw())


@mutant(storing_mutants)
def the_number_moves_to_where_it_was(patch: pytest.MonkeyPatch) -> None:
    def advance(self: ReferenceStore, path: str) -> int:
        self.erase_numbers[path] = 1
        return 1

    patch.setattr(ReferenceStore, "advance", advance)


@mutant(storing_mutants)
def a_forget_of_nothing_is_skipped(patch: pytest.MonkeyPatch) -> None:
    original = ReferenceStore.advance

    def advance(self: ReferenceStore, path: str) -> int:
        known = any(store_module.covers(path, key[0]) for key in (*self.pending, *self.published))
        return original(self, path) if known else self.erase_numbers.get(path, 0)

    patch.setattr(ReferenceStore, "advance", advance)


def _erasing(*tables: str, rule: Callable[[str, str], bool]) -> Callable[..., None]:
    def erase(self: ReferenceStore, path: str, counts: Counter[str]) -> None:
        for name in tables:
            table: dict[Any, Any] = getattr(self, name)
            for key in [key for key in table if rule(path, key[0])]:
                del table[key]
                counts[name] += 1

    return erase


@mutant(storing_mutants)
def a_forget_leaves_what_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReferenceStore, "_erase_subtree", _erasing("published", rule=store_module.covers))


@mutant(storing_mutants)
def a_forget_leaves_what_was_flushed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReferenceStore, "_erase_subtree", _erasing("pending", rule=store_module.covers))


@mutant(storing_mutants)
def a_forget_takes_its_own_scope_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ReferenceStore,
        "_erase_subtree",
        _erasing("published", "pending", rule=lambda path, each: path == each),
    )


@mutant(storing_mutants)
def a_forget_takes_whose_names_begin_alike(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ReferenceStore,
        "_erase_subtree",
        _erasing("published", "pending", rule=lambda path, each: each.startswith(path)),
    )


@mutant(storing_mutants)
def a_forget_is_like(patch: pytest.MonkeyPatch) -> None:
    """As SQL's LIKE would: an underscore stands for any character."""
    import re

    def like(path: str, each: str) -> bool:
        return (
            re.match(re.escape(path).replace("_", ".") + "(/|$)", each, re.IGNORECASE) is not None
        )

    patch.setattr(ReferenceStore, "_erase_subtree", _erasing("published", "pending", rule=like))


@mutant(storing_mutants)
def a_flush_publishes_everything(patch: pytest.MonkeyPatch) -> None:
    original = ReferenceStore.flush

    def flush(self: ReferenceStore, job: HeldJob) -> Any:
        for key in list(self.pending):
            self.publish(self.pending.pop(key))
        return original(self, job)

    patch.setattr(ReferenceStore, "flush", flush)


@mutant(storing_mutants)
def a_strict_forget_takes_what_was_learned(patch: pytest.MonkeyPatch) -> None:
    original = ReferenceStore._unlearn

    def unlearn(
        self: ReferenceStore, path: str, gone: Any, heard: Any, keeps: bool, counts: Any
    ) -> Any:
        return original(self, path, gone, heard, False, counts)

    patch.setattr(ReferenceStore, "_unlearn", unlearn)


@mutant(storing_mutants)
def what_was_learned_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReferenceStore, "_unlearn", lambda *_: (set(), 0))


@mutant(storing_mutants)
def a_receipt_counts_nothing(patch: pytest.MonkeyPatch) -> None:
    original = ReferenceStore._receipt

    def receipt(self: ReferenceStore, job: Any, outcome: Any, counts: Any, *rest: Any) -> Any:
        return original(self, job, outcome, Counter(), *rest)

    patch.setattr(ReferenceStore, "_receipt", receipt)


@pytest.mark.parametrize("name", reading_mutants)
def test_a_source_without_one_rule_breaks_the_contract(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever rule of reading is missing, some promise is broken."""
    reading_mutants[name](monkeypatch)
    assert broken_promises(Reading())


@pytest.mark.parametrize("name", storing_mutants)
def test_a_store_without_one_rule_breaks_the_contract(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever rule of writing, flushing or erasing is missing, some promise is broken."""
    storing_mutants[name](monkeypatch)
    assert broken_promises(Storing())


class _Wrong:
    """An extractor that works, but for one thing."""

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        return self.spoilt(request, await RuleExtractor().extract(request))

    def spoilt(self, request: ExtractionRequest, good: ExtractionResult) -> ExtractionResult:
        raise NotImplementedError


class Deaf(_Wrong):
    def spoilt(self, request: ExtractionRequest, good: ExtractionResult) -> ExtractionResult:
        return ExtractionResult()


class Misplacing(_Wrong):
    def spoilt(self, request: ExtractionRequest, good: ExtractionResult) -> ExtractionResult:
        below = request.scope.child("below").path
        moved = (r.model_copy(update={"scope_path": below}) for r in good.records)
        return good.model_copy(update={"records": tuple(moved)})


class OneIdForAll(_Wrong):
    def spoilt(self, request: ExtractionRequest, good: ExtractionResult) -> ExtractionResult:
        same = (r.model_copy(update={"record_id": "same"}) for r in good.records)
        return good.model_copy(update={"records": tuple(same)})


class Frail(_Wrong):
    def spoilt(self, request: ExtractionRequest, good: ExtractionResult) -> ExtractionResult:
        if not (request.turns[0].query or "").isascii():
            raise ValueError
        return good


class Talkative(_Wrong):
    def spoilt(self, request: ExtractionRequest, good: ExtractionResult) -> ExtractionResult:
        if good.records or (request.turns[0].query or "").strip():
            return good
        made_up = MemoryRecord(
            record_id="made-up",
            text="Nothing was said.",
            scope_path=request.scope.path,
            layer=MemoryLayer.SEMANTIC,
            origin="x",
        )
        return good.model_copy(update={"records": (made_up,)})


class Remembering(_Wrong):
    """Keeps the scope of whoever asked last, as a shared field does."""

    scope: MemoryScope

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        self.scope = request.scope
        await asyncio.sleep(0)
        return self.spoilt(request, await RuleExtractor().extract(request))

    def spoilt(self, request: ExtractionRequest, good: ExtractionResult) -> ExtractionResult:
        moved = (r.model_copy(update={"scope_path": self.scope.path}) for r in good.records)
        return good.model_copy(update={"records": tuple(moved)})


class Blocking(_Wrong):
    def extract(self, request: ExtractionRequest) -> ExtractionResult:  # type: ignore[override]
        return ExtractionResult()


@pytest.mark.parametrize(
    "kind", [Deaf, Misplacing, OneIdForAll, Frail, Talkative, Remembering, Blocking]
)
def test_an_extractor_with_one_fault_breaks_the_contract(kind: type[Any]) -> None:
    """Whatever is wrong with it, some promise is broken."""

    class Extracting(_Quick, ExtractorContract):
        def extractor(self) -> MemoryExtractorPort:
            made: MemoryExtractorPort = kind()
            return made

    assert broken_promises(Extracting())


def test_an_extractor_that_hides_its_outage_breaks_the_contract() -> None:
    """Neither an exception nor an empty answer says that the model is out of reach."""

    class Silent:
        async def extract(self, request: ExtractionRequest) -> ExtractionResult:
            return ExtractionResult()

    class Raising:
        async def extract(self, request: ExtractionRequest) -> ExtractionResult:
            raise ConnectionError

    for kind in (Silent, Raising):

        class Extracting(_Quick, ExtractorContract):
            def extractor(self) -> MemoryExtractorPort:
                return RuleExtractor()

            def without_model(self) -> MemoryExtractorPort:
                return kind()  # noqa: B023 - used at once

        assert broken_promises(Extracting()) == ["test_without_its_model_it_says_so"]
