"""The recall scorer's adapter: retrieval as a user gets it, through the whole pipeline.

    make recall SCORER=score.py DATA="--data locomo=locomo.json --data beam=beam100k"

`make_retriever` is a factory without arguments. Each retriever indexes one conversation in a scope
of its own (write, flush, drain, all of it in this process) and answers with `Memory.retrieve`.
Records are any objects with id, text, speaker, when, session, extra (a caption) and position.
`AFTERTURN_EMBEDDER` chooses the embedder. Without `AFTERTURN_HOME` and server URLs the embedded
servers live in a temporary home, removed at the end.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import shutil
import tempfile
import threading
import uuid
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

from afterturn import (
    Memory,
    MemoryLayer,
    MemoryQuery,
    MemoryRecord,
    MemoryScope,
    Settings,
    WriteRequest,
    embedded,
)

ROLES = frozenset({"user", "assistant"})
BATCH = 500

T = TypeVar("T")


class Record(Protocol):
    """A message as the scorer gives it."""

    id: str
    text: str
    speaker: str
    when: datetime | None
    session: str
    extra: str
    position: int


class Retriever:
    """One conversation in one scope."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._scope = MemoryScope.of("recall", uuid.uuid4().hex)
        self._ids: dict[str, str] = {}

    def index(self, records: Sequence[Record]) -> None:
        """Write, flush and drain the conversation."""
        self._bench.run(self._index(records))

    def search(self, query: str, k: int, now: datetime | None) -> list[str]:
        """The ids of the best `k` records, best first."""
        asked = MemoryQuery(scope=self._scope, text=query, limit=k, now=_aware(now))
        found = self._bench.run(self._bench.memory.retrieve(asked))
        if found.degraded:
            raise RuntimeError(f"retrieval was degraded: {found.degraded}")
        return [self._ids[memory.record.record_id] for memory in found.memories]

    def close(self) -> None:
        """Erase the conversation."""
        self._bench.run(self._bench.memory.forget(self._scope))

    async def _index(self, records: Sequence[Record]) -> None:
        memory = self._bench.memory
        made = [self._record(record, place) for place, record in enumerate(records)]
        kept = [record for record in made if record is not None]
        for start in range(0, len(kept), BATCH):
            batch = tuple(kept[start : start + BATCH])
            receipt = await memory.write(WriteRequest(scope=self._scope, records=batch))
            refused = [o for o in receipt.outcomes if o.status == "refused"]
            if refused:
                raise RuntimeError(f"{len(refused)} records refused: {refused[0].reason}")
        await memory.flush(self._scope)
        await memory.drain(self._scope, timeout=600, in_process=True)

    def _record(self, record: Record, place: int) -> MemoryRecord | None:
        if not record.text.strip() and not record.extra.strip():
            return None
        record_id = f"r{place}"
        self._ids[record_id] = record.id
        metadata = {"session": re.sub(r"[^A-Za-z0-9:._-]", "-", record.session)[:200]}
        if record.speaker in ROLES:
            metadata["speaker"] = record.speaker
        elif record.speaker:
            metadata["speaker_name"] = record.speaker
        if record.extra:
            metadata["caption"] = record.extra
        when = _aware(record.when)
        return MemoryRecord(
            record_id=record_id,
            text=record.text if record.text.strip() else record.extra,
            scope_path=self._scope.path,
            layer=MemoryLayer.EPISODIC,
            origin="recall-bench",
            metadata={key: value for key, value in metadata.items() if value},
            # Messages of one session often share its time: their order is told in milliseconds.
            occurred_at=when + timedelta(milliseconds=record.position) if when else None,
        )


class Bench:
    """The memory that all retrievers of this process share, on a loop of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        settings = Settings.load()
        self._own_home: Path | None = None
        if not os.environ.get("AFTERTURN_HOME") and settings.database_url is None:
            self._own_home = Path(tempfile.mkdtemp(prefix="at-recall-"))
            settings = settings.model_copy(update={"home": self._own_home})
        self.memory = Memory(settings)
        atexit.register(self.close)
        self.run(self.memory.open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine on the bench's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Stop and remove servers of our own. Too late for the memory: executors are gone."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        if self._own_home is not None:
            embedded.stop(self._own_home)
            shutil.rmtree(self._own_home, ignore_errors=True)


_bench: Bench | None = None


def make_retriever() -> Retriever:
    """A retriever for one conversation."""
    global _bench  # noqa: PLW0603 - servers are started once a process
    if _bench is None:
        _bench = Bench()
    return Retriever(_bench)


def _aware(when: datetime | None) -> datetime | None:
    return when.replace(tzinfo=UTC) if when is not None and when.tzinfo is None else when
