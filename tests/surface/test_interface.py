"""The public interface, pinned: names, signatures, fields. A change here is a change for users."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Container
from typing import Any

import pytest

import afterturn
from afterturn import errors, ports
from afterturn.model import Model
from afterturn.records import MemoryLayer, turn_records

_NAMES = """
MAX_DEPTH BlockingMemory CandidateScan Dropped EmbeddingProvider ExtractionRequest ExtractionResult
FinishedTurn JobTicket LifecycleReceipt Memory MemoryExtractorPort MemoryLayer MemoryLifecyclePort
MemoryQuery MemoryRecord MemoryRetrievalPort MemoryScope MemoryStatus MemoryWritePort RecordOutcome
RetrievalResult RetrievedMemory Schedule Settings Source Token TranscriptTurn Turn TurnOutcome
TurnTicket WriteReceipt WriteRequest covering_paths scope_from_path turn_records validate_extractor
"""

NAMES = _NAMES.split()

ERRORS = {
    "AfterturnError": Exception,
    "MemoryUnavailable": errors.AfterturnError,
    "ErasePending": errors.MemoryUnavailable,
    "MemoryContractError": errors.AfterturnError,
    "StaleTurn": errors.MemoryContractError,
    "ErasedScope": errors.MemoryContractError,
    "NotMigrated": errors.MemoryContractError,
    "ScopeViolation": errors.AfterturnError,
    "ConfigurationError": errors.AfterturnError,
}

# The arguments of each method, without their types.
SIGNATURES = {
    "Memory": {
        "__init__": "(settings=None, *, source=None, extractor=None, embedder=None)",
        "open": "()",
        "close": "()",
        "turn": "(scope, *, session=None, turn_id=None, on_unavailable='raise')",
        "begin_turn": "(scope, *, session=None, turn_id=None, on_unavailable='raise')",
        "retrieve": "(query)",
        "list": "(scope, layers=None, after=None, limit=100)",
        "transcript": "(scope, session=None, limit=50)",
        "export": "(scope)",
        "write": "(request)",
        "remember": "(scope, text, *, layer=<MemoryLayer.SEMANTIC: 'semantic'>, importance=0.5, "
        "record_id=None)",
        "flush": "(scope)",
        "forget": "(scope, *, derived='erase', requested_by='', reason='')",
        "forget_records": "(scope, *, record_ids=(), turn_ids=(), session=None, derived='erase', "
        "requested_by='', reason='')",
        "enqueue_flush": "(scope)",
        "enqueue_forget": "(scope, *, derived='erase', requested_by='', reason='')",
        "schedule_forget": "(scope, *, at, derived='erase', requested_by='', reason='')",
        "cancel_scheduled": "(schedule_id)",
        "job": "(job_id)",
        "status": "()",
        "drain": "(scope, timeout=None, *, in_process=False)",
    },
    "Turn": {
        "retrieve": "(text, *, limit=8, layers=None, min_relevance=None, min_importance=None, "
        "max_chars=None, now=None)",
        "finish": "(query, answer, *, names=None, metadata=None, occurred_at=None)",
        "abandon": "()",
    },
    "TurnTicket": {"wait": "(timeout=None)"},
    "JobTicket": {"wait": "(timeout=None)"},
    "MemoryScope": {
        "of": "(*segments)",
        "ancestor": "(level)",
        "child": "(segment)",
        "covers": "(other)",
    },
    "MemoryRetrievalPort": {"retrieve": "(query)"},
    "CandidateScan": {"scan_candidates": "(query)"},
    "MemoryWritePort": {"write": "(request)"},
    "MemoryLifecyclePort": {"flush": "(scope)", "forget": "(scope)"},
    "MemoryExtractorPort": {"extract": "(request)"},
    "EmbeddingProvider": {"embed": "(texts)"},
    "RetrievalResult": {"render": "()"},
}

# More fields may join; these stay, in this order.
FIELDS = {
    "MemoryRecord": "record_id text scope_path layer origin metadata importance occurred_at "
    "recorded_at sources",
    "Source": "turn_id turn_path",
    "MemoryQuery": "scope text limit layers min_relevance min_importance max_chars now",
    "RetrievalResult": "memories dropped degraded",
    "RetrievedMemory": "record score signals",
    "Dropped": "record_id reason",
    "WriteRequest": "scope records token",
    "WriteReceipt": "outcomes",
    "RecordOutcome": "record_id status reason",
    "LifecycleReceipt": "job_id kind scope_path outcome counts derived_outside not_covered "
    "generation requested_at completed_at log_head",
    "ExtractionRequest": "scope turns related",
    "ExtractionResult": "records degraded reason",
    "FinishedTurn": "turn_id scope query answer occurred_at metadata",
    "TurnOutcome": "status recorded extracted reason",
    "TranscriptTurn": "turn_id scope_path session query answer names metadata happened_at",
}


def test_the_front_door_has_these_names() -> None:
    """`__all__` is exactly this, sorted, and every name can be had and is found by `dir`."""
    assert sorted(afterturn.__all__) == sorted(NAMES)
    assert len(set(afterturn.__all__)) == len(afterturn.__all__)
    for name in afterturn.__all__:
        assert getattr(afterturn, name) is not None
        assert name in dir(afterturn)
    with pytest.raises(AttributeError, match="no attribute 'Memroy'"):
        _ = afterturn.Memroy  # type: ignore[attr-defined]


def test_a_star_import_brings_all_of_it() -> None:
    """Lazily imported names are names like any other."""
    code = f"from afterturn import *; {'; '.join(NAMES)}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_package_alone_loads_nothing_heavy() -> None:
    """Importing it costs no numpy, no database driver, no pydantic."""
    heavy = {"numpy", "asyncpg", "pydantic"}
    code = f"import afterturn, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"


def test_every_public_thing_is_documented() -> None:
    """Names, their public methods and properties."""
    for name in set(NAMES) - {"MAX_DEPTH", "Token"}:
        thing = getattr(afterturn, name)
        assert thing.__doc__, name
        for member, value in vars(thing).items() if isinstance(thing, type) else ():
            if not member.startswith("_") and (
                inspect.isfunction(value) or isinstance(value, property)
            ):
                assert inspect.getdoc(value), f"{name}.{member}"


@pytest.mark.parametrize("kind", sorted(SIGNATURES))
def test_methods_take_what_is_documented(kind: str) -> None:
    """Names, order, kinds and defaults; others may only join by name, with defaults."""
    for method, expected in SIGNATURES[kind].items():
        thing = getattr(getattr(afterturn, kind), method)
        documented = set(re.findall(r"\w+", expected))
        joined = [each for each in _parameters(thing) if each.name not in documented]
        assert {each.kind for each in joined} <= {inspect.Parameter.KEYWORD_ONLY}, method
        assert not any(each.default is inspect.Parameter.empty for each in joined), method
        assert _shown(thing, documented) == expected, method


def test_functions_take_what_is_documented() -> None:
    """Pure functions of the front door."""
    assert _shown(afterturn.turn_records) == (
        "(*, query, answer, scope, extra_metadata=None, turn_id=None)"
    )
    assert _shown(afterturn.scope_from_path) == "(path)"
    assert _shown(afterturn.covering_paths) == "(path)"
    assert _shown(afterturn.validate_extractor) == "(extractor)"
    assert afterturn.MAX_DEPTH == 8


@pytest.mark.parametrize("kind", sorted(FIELDS))
def test_models_have_these_fields(kind: str) -> None:
    """Fields that are documented stay; others may only come after them, with defaults."""
    model: type[Model] = getattr(afterturn, kind)
    documented = FIELDS[kind].split()
    assert list(model.model_fields)[: len(documented)] == documented
    for name in list(model.model_fields)[len(documented) :]:
        assert not model.model_fields[name].is_required(), name
    assert model.model_config["frozen"]
    assert model.model_config["extra"] == "forbid"


def test_layers_and_attributes() -> None:
    """The five layers; what a scope, a turn and the tickets hold."""
    assert [layer.value for layer in MemoryLayer] == [
        "working",
        "episodic",
        "semantic",
        "procedural",
        "prospective",
    ]
    scope = afterturn.MemoryScope.of("acme", "alice")
    assert (scope.path, scope.segments, scope.depth) == ("v1/acme/alice", ("acme", "alice"), 2)
    assert scope.root == afterturn.MemoryScope.of("acme")


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_errors_have_one_root(name: str) -> None:
    """Each is where users expect it in the tree and carries message, detail and hint."""
    kind: type[Any] = getattr(errors, name)
    assert kind.__bases__ == (ERRORS[name],)
    error = kind("what happened", detail="the values", hint="what to do")
    assert (error.message, error.detail, error.hint) == (
        "what happened",
        "the values",
        "what to do",
    )


def test_no_other_error_is_public() -> None:
    """The tree is complete."""
    assert {n for n, v in vars(errors).items() if inspect.isclass(v)} == set(ERRORS)


def test_ports_can_be_told_at_runtime() -> None:
    """A port is a protocol that `isinstance` knows."""
    for name in ("MemoryRetrievalPort", "CandidateScan", "MemoryWritePort", "MemoryLifecyclePort"):
        assert not isinstance(object(), getattr(ports, name))


def test_turn_records_are_pure() -> None:
    """The same arguments with an id give the same records."""
    given: dict[str, Any] = {
        "query": "a",
        "answer": "b",
        "scope": afterturn.MemoryScope.of("acme"),
        "turn_id": "t",
    }
    assert turn_records(**given) == turn_records(**given)


def _parameters(thing: Any) -> list[inspect.Parameter]:
    """The arguments without `self` and without types."""
    parameters = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in inspect.signature(thing).parameters.values()
    ]
    return parameters[1:] if parameters and parameters[0].name == "self" else parameters


def _shown(thing: Any, documented: Container[str] | None = None) -> str:
    """The arguments, all or those that are documented, as Python writes them."""
    parameters = _parameters(thing)
    if documented is not None:
        parameters = [each for each in parameters if each.name in documented]
    return str(inspect.Signature(parameters))
