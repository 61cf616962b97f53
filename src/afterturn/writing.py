"""The write port on PostgreSQL."""

from __future__ import annotations

from typing import Any

from afterturn.database import Database
from afterturn.errors import MemoryContractError
from afterturn.generations import vector_of
from afterturn.intake import checked_text
from afterturn.pipeline.rows import record_row
from afterturn.records import MemoryRecord
from afterturn.settings import Settings
from afterturn.writes import RecordOutcome, WriteReceipt, WriteRequest

_WRITE = "select * from afterturn.write_records($1, $2::bigint[], $3::jsonb)"


class PostgresWriting:
    """Keeps records as pending."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    async def write(self, request: WriteRequest) -> WriteReceipt:
        """Keep the request's records until a flush publishes them; one bad record goes alone.

        Raises `ErasePending` while an erase of the scope stands, `StaleTurn` when the token is no
        longer exact, `ErasedScope` when there is none and the scope was erased before.
        """
        vector = None
        if request.token is not None:
            vector = vector_of(request.scope.path, request.token)
        rows: list[dict[str, Any]] = []
        refused: dict[int, str] = {}
        seen: set[str] = set()
        for at, record in enumerate(request.records):
            reason = self._defect(request, record, seen)
            if reason:
                refused[at] = reason
            else:
                seen.add(record.record_id)
                session = record.metadata.get("session")
                rows.append(
                    record_row(record, session=session if isinstance(session, str) else None)
                )
        written = await self._database.rows(_WRITE, request.scope.stored_path, vector, rows)
        status = {row["record_id"]: row["status"] for row in written}
        return WriteReceipt(
            outcomes=tuple(
                RecordOutcome(record_id=record.record_id, status="refused", reason=refused[at])
                if at in refused
                else RecordOutcome(record_id=record.record_id, status=status[record.record_id])
                for at, record in enumerate(request.records)
            )
        )

    def _defect(self, request: WriteRequest, record: MemoryRecord, seen: set[str]) -> str:
        if record.scope_path != request.scope.path:
            return "its scope_path is not the request's scope"
        if record.record_id in seen:
            return "its record_id stands twice in the request"
        if not record.text.strip():
            return "its text is blank"
        try:
            checked_text(record.text, what="text", bytes_max=self._settings.text_bytes_max)
        except MemoryContractError as error:
            return f"{error.message} ({error.detail})"
        return ""
