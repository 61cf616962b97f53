"""Records as the SQL functions take them."""

from __future__ import annotations

from typing import Any

from afterturn.extraction.facts import fact_digest, fact_key
from afterturn.records import TURN_ORIGIN, MemoryRecord


def record_row(record: MemoryRecord, *, session: str | None = None) -> dict[str, Any]:
    """One element of `records` in `apply_turns` and `write_records`.

    What was learned says by which words or which key it is known; see `extraction.facts`.
    """
    learned: dict[str, Any] = {}
    if record.origin != TURN_ORIGIN:
        learned["digest"] = fact_digest(record.text)
        if fact_key(record):
            learned["key"] = True
    return {
        **learned,
        "record_id": record.record_id,
        "path": record.scope_path + "/",
        "layer": record.layer.value,
        "origin": record.origin,
        "text": record.text,
        "metadata": record.metadata,
        "importance": record.importance,
        "occurred_at": record.occurred_at.isoformat() if record.occurred_at else None,
        "session": session,
        "sources": [
            {"turn_id": source.turn_id, "turn_path": source.turn_path + "/"}
            for source in record.sources
        ],
    }
