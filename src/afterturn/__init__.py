"""afterturn: long-term memory for LLM agents, handed over after the turn and erasable for good.

Names are imported when they are first used, so that a process that needs one of them (the command
line above all) does not wait for numpy, asyncpg and the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from afterturn.blocking import BlockingMemory
    from afterturn.extraction.validation import validate_extractor
    from afterturn.memory import Memory
    from afterturn.ports import (
        CandidateScan,
        EmbeddingProvider,
        MemoryExtractorPort,
        MemoryLifecyclePort,
        MemoryRetrievalPort,
        MemoryWritePort,
    )
    from afterturn.queries import Dropped, MemoryQuery, RetrievalResult
    from afterturn.reading import TranscriptTurn
    from afterturn.receipts import LifecycleReceipt
    from afterturn.records import MemoryLayer, MemoryRecord, Source, turn_records
    from afterturn.retrieved import RetrievedMemory
    from afterturn.schedules import Schedule
    from afterturn.scope import MAX_DEPTH, MemoryScope, covering_paths, scope_from_path
    from afterturn.settings import Settings
    from afterturn.status import MemoryStatus
    from afterturn.tickets import JobTicket, TurnTicket
    from afterturn.turn import Turn
    from afterturn.turns import ExtractionRequest, ExtractionResult, FinishedTurn, TurnOutcome
    from afterturn.writes import RecordOutcome, Token, WriteReceipt, WriteRequest

__all__ = [
    "MAX_DEPTH",
    "BlockingMemory",
    "CandidateScan",
    "Dropped",
    "EmbeddingProvider",
    "ExtractionRequest",
    "ExtractionResult",
    "FinishedTurn",
    "JobTicket",
    "LifecycleReceipt",
    "Memory",
    "MemoryExtractorPort",
    "MemoryLayer",
    "MemoryLifecyclePort",
    "MemoryQuery",
    "MemoryRecord",
    "MemoryRetrievalPort",
    "MemoryScope",
    "MemoryStatus",
    "MemoryWritePort",
    "RecordOutcome",
    "RetrievalResult",
    "RetrievedMemory",
    "Schedule",
    "Settings",
    "Source",
    "Token",
    "TranscriptTurn",
    "Turn",
    "TurnOutcome",
    "TurnTicket",
    "WriteReceipt",
    "WriteRequest",
    "covering_paths",
    "scope_from_path",
    "turn_records",
    "validate_extractor",
]

_HOMES: Final = {
    "blocking": ("BlockingMemory",),
    "extraction.validation": ("validate_extractor",),
    "memory": ("Memory",),
    "ports": (
        "CandidateScan",
        "EmbeddingProvider",
        "MemoryExtractorPort",
        "MemoryLifecyclePort",
        "MemoryRetrievalPort",
        "MemoryWritePort",
    ),
    "queries": ("Dropped", "MemoryQuery", "RetrievalResult"),
    "reading": ("TranscriptTurn",),
    "receipts": ("LifecycleReceipt",),
    "records": ("MemoryLayer", "MemoryRecord", "Source", "turn_records"),
    "retrieved": ("RetrievedMemory",),
    "schedules": ("Schedule",),
    "scope": ("MAX_DEPTH", "MemoryScope", "covering_paths", "scope_from_path"),
    "settings": ("Settings",),
    "status": ("MemoryStatus",),
    "tickets": ("JobTicket", "TurnTicket"),
    "turn": ("Turn",),
    "turns": ("ExtractionRequest", "ExtractionResult", "FinishedTurn", "TurnOutcome"),
    "writes": ("RecordOutcome", "Token", "WriteReceipt", "WriteRequest"),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # else every name would pass for one

    def __getattr__(name: str) -> Any:
        """A public name, imported from its module at first use."""
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """The public names, whether imported yet or not."""
        return sorted({*globals(), *__all__})
