"""A desk that stages turns and runs claimed jobs one by one, without any worker process."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from afterturn.database import Database
from afterturn.generations import Token, capture, vector_of
from afterturn.jobs.ledger import ClaimedJob, ClaimedTurn, Ledger
from afterturn.jobs.names import Kind
from afterturn.jobs.rings import RingPublisher
from afterturn.jobs.tally import Tally
from afterturn.lifecycle import Derived, forget_request
from afterturn.pipeline.applying import TurnApplier, turn_work
from afterturn.pipeline.lifecycle import LifecycleStep
from afterturn.pipeline.recording import Recorder
from afterturn.pipeline.staging import Staged, StagedTurn, stage
from afterturn.records import MemoryLayer, MemoryRecord, Source
from afterturn.scope import MemoryScope
from afterturn.settings import Settings

SOON = timedelta(seconds=5)


class Desk:
    """The spine's calls with few words."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self.ledger = Ledger(database, settings)
        # Nobody rings here: every job is claimed by its id.
        rings = RingPublisher("redis://127.0.0.1:1/0", settings)
        rings.close(0)
        self.applier = TurnApplier(self.ledger, rings, embed=True)
        self.recorder = Recorder(self.applier)
        self.lifecycle = LifecycleStep(
            database, self.ledger, settings, rings, self.recorder, embed=True
        )

    async def token(self, scope: MemoryScope) -> Token:
        async with self.database.connection() as conn:
            return await capture(conn, scope.path)

    async def stage(
        self,
        scope: MemoryScope,
        turn_id: str,
        *,
        token: Token | None = None,
        query: str | None = "a question",
        answer: str | None = "an answer",
        session: str | None = None,
    ) -> Staged:
        known = await self.token(scope) if token is None else token
        turn = StagedTurn(
            scope,
            turn_id,
            vector_of(scope.path, known),
            session,
            query,
            answer,
            None,
            {},
            None,
        )
        return await stage(self.database, turn, ring_after=SOON)

    async def claim(self, kind: Kind, job_id: int | None, *, lost: bool = False) -> ClaimedTurn:
        assert job_id is not None
        (turn,) = await self.ledger.claim_turns(kind, [job_id], limit=1, lost=lost)
        return turn

    async def record(self, staged: Staged) -> str:
        tally = Tally()
        await self.recorder.record([await self.claim("record", staged.record_job)], tally)
        return str(tally)

    async def extract_job(self, scope: MemoryScope, turn_id: str) -> ClaimedTurn:
        """Record a new turn and claim its extraction."""
        assert await self.record(await self.stage(scope, turn_id)) == "recorded 1"
        return await self.claim_extract(scope, turn_id)

    async def claim_extract(self, scope: MemoryScope, turn_id: str) -> ClaimedTurn:
        job_id = await self.value(
            "select id from afterturn.jobs where path=$1 and turn_id=$2 and kind='extract'",
            scope.stored_path,
            turn_id,
        )
        return await self.claim("extract", job_id)

    async def extract(self, turn: ClaimedTurn, *facts: MemoryRecord) -> str:
        """Apply facts as the extraction of a claimed extract job."""
        tally = Tally()
        await self.applier.apply("extract", [turn], [turn_work(turn, facts)], tally)
        return str(tally)

    async def enqueue(
        self, kind: str, scope: MemoryScope, request: dict[str, Any] | None = None
    ) -> int:
        return int(
            await self.value(
                "select job_id from afterturn.enqueue_lifecycle($1, $2, $3::jsonb, '5s')",
                kind,
                scope.stored_path,
                request or {},
            )
        )

    async def enqueue_forget(
        self,
        scope: MemoryScope,
        *,
        derived: Derived = "erase",
        named: dict[str, Any] | None = None,
    ) -> int:
        return await self.enqueue("forget", scope, forget_request(derived=derived, named=named))

    async def claim_job(self, job_id: int) -> ClaimedJob | None:
        return (await self.ledger.claim_lifecycle(job_id))[1]

    async def run(self, job_id: int) -> str:
        job = await self.claim_job(job_id)
        assert job is not None, "the job cannot be claimed now"
        tally = Tally()
        await self.lifecycle.run(job, tally)
        await self.ledger.unblock(job_id)
        return str(tally)

    async def forget(
        self,
        scope: MemoryScope,
        *,
        derived: Derived = "erase",
        named: dict[str, Any] | None = None,
    ) -> str:
        return await self.run(await self.enqueue_forget(scope, derived=derived, named=named))

    async def flush(self, scope: MemoryScope) -> str:
        return await self.run(await self.enqueue("flush", scope))

    async def value(self, sql: str, *args: Any) -> Any:
        async with self.database.connection() as conn:
            return await conn.fetchval(sql, *args)

    async def rows(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        async with self.database.connection() as conn:
            return [dict(row) for row in await conn.fetch(sql, *args)]

    async def texts(self, *, pending: bool = False) -> list[tuple[str, str]]:
        """(path, text) of every memory, in order."""
        rows = await self.rows(
            "select path, text from afterturn.memories where pending = $1 order by 1, 2", pending
        )
        return [(row["path"], row["text"]) for row in rows]

    async def outcome(self, job_id: int | None) -> tuple[str | None, str]:
        (row,) = await self.rows("select outcome, reason from afterturn.jobs where id=$1", job_id)
        return row["outcome"], row["reason"]

    async def expire_lease(self, job_id: int | None) -> None:
        """As if the worker that holds the job had shown no sign of life for the whole lease."""
        await self.value(
            "update afterturn.jobs set ready_at = afterturn.clock() - interval '1s', "
            "ring_at = afterturn.clock() - interval '1s' where id = $1",
            job_id,
        )


def fact(
    scope: MemoryScope, record_id: str, text: str, sources: Sequence[Source] = ()
) -> MemoryRecord:
    """A fact as an extractor gives it."""
    return MemoryRecord(
        record_id=record_id,
        text=text,
        scope_path=scope.path,
        layer=MemoryLayer.SEMANTIC,
        origin="extracted",
        sources=tuple(sources),
    )


@pytest.fixture
def quiet(settings: Settings) -> RingPublisher:
    """Rings that nobody hears."""
    publisher = RingPublisher("redis://127.0.0.1:1/0", settings)
    publisher.close(0)
    return publisher


@pytest.fixture
def desk(database: Database, settings: Settings) -> Desk:
    return Desk(database, settings)


ALICE = MemoryScope.of("acme", "alice")
CHAT_1 = ALICE.child("chat-1")
CHAT_2 = ALICE.child("chat-2")
