"""Direct writes: records that wait for a flush."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from afterturn.errors import MemoryContractError
from afterturn.intake import checked_text
from afterturn.model import Model
from afterturn.records import MemoryRecord
from afterturn.scope import MemoryScope

Token = tuple[tuple[str, int], ...]
"""The erase generations that cover a scope: (path, number) for each path that had an erase,
root first; empty where nothing was ever erased."""

ERASED_SOURCE: Final = "one of its sources was erased; leave that source out or do not write it"


class WriteRequest(Model):
    """Records for `scope`; their own `scope_path` must equal it."""

    scope: MemoryScope
    records: tuple[MemoryRecord, ...]
    token: Token | None = None


def checked_request(request: WriteRequest) -> WriteRequest:
    """The request itself; anything else, a record among them, is refused by its type."""
    if not isinstance(request, WriteRequest):
        raise MemoryContractError(
            "What is written must be a WriteRequest",
            detail=f"got {type(request).__name__}",
            hint="Write WriteRequest(scope=scope, records=[...]), or `remember` one fact.",
        )
    return request


class RecordOutcome(Model):
    """What became of one record of a write."""

    record_id: str
    status: Literal["pending", "updated", "refused"]
    reason: str = ""


class WriteReceipt(Model):
    """One outcome a record, in the order of the request."""

    outcomes: tuple[RecordOutcome, ...]


def refusals(request: WriteRequest, *, text_bytes_max: int) -> dict[int, str]:
    """Why records of a request cannot be kept, by their place in it; the others can."""
    refused: dict[int, str] = {}
    seen: set[str] = set()
    for at, record in enumerate(request.records):
        reason = _defect(record, request.scope, seen, text_bytes_max)
        if reason:
            refused[at] = reason
        else:
            seen.add(record.record_id)
    return refused


def _defect(record: MemoryRecord, scope: MemoryScope, seen: set[str], text_bytes_max: int) -> str:
    if record.scope_path != scope.path:
        return "its scope_path is not the request's scope"
    if record.record_id in seen:
        return "its record_id stands twice in the request"
    if not record.text.strip():
        return "its text is blank"
    try:
        checked_text(record.text, what="text", bytes_max=text_bytes_max)
    except MemoryContractError as error:
        return f"{error.message} ({error.detail})"
    return ""


def receipt_of(
    request: WriteRequest,
    refused: Mapping[int, str],
    status: Mapping[str, Literal["pending", "updated", "erased"]],
) -> WriteReceipt:
    """One outcome a record: what was refused, and what became of the others by their ids.

    `erased` refuses a record because of what it was learned from.
    """

    def outcome(at: int, record_id: str) -> RecordOutcome:
        if at in refused:
            return RecordOutcome(record_id=record_id, status="refused", reason=refused[at])
        kept = status[record_id]
        if kept == "erased":
            return RecordOutcome(record_id=record_id, status="refused", reason=ERASED_SOURCE)
        return RecordOutcome(record_id=record_id, status=kept)

    return WriteReceipt(
        outcomes=tuple(outcome(at, each.record_id) for at, each in enumerate(request.records))
    )
