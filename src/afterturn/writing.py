"""The write port on PostgreSQL."""

from __future__ import annotations

from afterturn.database import Database
from afterturn.generations import vector_of
from afterturn.pipeline.rows import record_row
from afterturn.records import MemoryRecord
from afterturn.settings import Settings
from afterturn.writes import WriteReceipt, WriteRequest, checked_request, receipt_of, refusals

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
        checked_request(request)
        vector = None
        if request.token is not None:
            vector = vector_of(request.scope.path, request.token)
        refused = refusals(request, text_bytes_max=self._settings.text_bytes_max)
        rows = [
            record_row(record, session=_session(record))
            for at, record in enumerate(request.records)
            if at not in refused
        ]
        written = await self._database.rows(_WRITE, request.scope.stored_path, vector, rows)
        return receipt_of(request, refused, {row["record_id"]: row["status"] for row in written})


def _session(record: MemoryRecord) -> str | None:
    session = record.metadata.get("session")
    return session if isinstance(session, str) else None
