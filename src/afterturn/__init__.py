"""afterturn: long-term memory for LLM agents, handed over after the turn and erasable for good."""

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
from afterturn.scope import MAX_DEPTH, MemoryScope, covering_paths, scope_from_path
from afterturn.settings import Settings
from afterturn.status import MemoryStatus
from afterturn.tickets import JobTicket, TurnTicket
from afterturn.turn import Turn
from afterturn.turns import ExtractionRequest, ExtractionResult, FinishedTurn, TurnOutcome
from afterturn.writes import RecordOutcome, Token, WriteReceipt, WriteRequest

__all__ = [
    "MAX_DEPTH",
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
]
