"""Direct writes: records that wait for a flush."""

from __future__ import annotations

from typing import Literal

from afterturn.model import Model
from afterturn.records import MemoryRecord
from afterturn.scope import MemoryScope

Token = tuple[tuple[str, int], ...]
"""The erase generations that cover a scope: (path, number) for each path that had an erase,
root first; empty where nothing was ever erased."""


class WriteRequest(Model):
    """Records for `scope`; their own `scope_path` must equal it."""

    scope: MemoryScope
    records: tuple[MemoryRecord, ...]
    token: Token | None = None


class RecordOutcome(Model):
    """What became of one record of a write."""

    record_id: str
    status: Literal["pending", "updated", "refused"]
    reason: str = ""


class WriteReceipt(Model):
    """One outcome a record, in the order of the request."""

    outcomes: tuple[RecordOutcome, ...]
