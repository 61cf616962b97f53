"""Extraction of claimed turns: the model outside any transaction, each result applied as it comes.

A model call that hangs holds up nothing but its own turns: what is ready is written meanwhile.
What becomes of turns whose call came to nothing:

    model out of reach     they wait, no attempt counted, and few calls probe (`ModelGate`)
    anything else          tried again later, each by itself, up to the limit
    rubbish, or refused    of several turns: each by itself; of one: given up at once
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, TypeAlias

from afterturn.database import Database
from afterturn.errors import MemoryContractError
from afterturn.extraction.gate import ModelGate
from afterturn.extraction.run import Extracted, run_extraction
from afterturn.jobs.ledger import ClaimedTurn, Ledger
from afterturn.jobs.tally import Tally
from afterturn.pipeline.applying import TurnApplier, turn_work
from afterturn.pipeline.batches import Batch, any_turns
from afterturn.ports import MemoryExtractorPort
from afterturn.reading import record_from
from afterturn.records import MemoryRecord
from afterturn.scope import scope_from_stored_path
from afterturn.settings import Settings
from afterturn.turns import ExtractionRequest, FinishedTurn

Call: TypeAlias = list[ClaimedTurn]

BYTES_A_TOKEN: Final = 4
"""A rough measure for English; other scripts have more tokens in as many bytes, none twice."""

TURNS_TOGETHER: Final = 8
"""Turns of one batch of an extractor that takes one turn a request."""

BATCHES_AT_ONCE: Final = 4
"""Such batches at work at a time."""

RELATED_MAX: Final = 50
RETRY_AFTER_SECONDS_MAX: Final = 3_600.0

_RELATED = """
select m.*, '[]'::jsonb as sources from afterturn.related_facts($1, $2) m
"""


class ExtractionStep:
    """Claims turns as calls of the extractor, makes the calls, and applies what it learned."""

    def __init__(
        self,
        database: Database,
        ledger: Ledger,
        settings: Settings,
        applier: TurnApplier,
        extractor: MemoryExtractorPort | None,
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._settings = settings
        self._applier = applier
        self._extractor = extractor
        self._related = min(int(getattr(extractor, "related", 0) or 0), RELATED_MAX)
        self._gate = ModelGate(settings.retry_base_seconds, settings.retry_cap_seconds)
        self._under_way: dict[int, float] = {}  # the first job of each batch, when it was claimed
        # Several turns of a scope go into one call.
        self._shares_calls = bool(getattr(extractor, "batch", False))
        self._any_turns = any_turns(
            ledger, "extract", min(TURNS_TOGETHER, settings.batch_turns_max)
        )
        self.at_once: Final = settings.model_calls_max if self._shares_calls else BATCHES_AT_ONCE

    async def claim(self, ids: Sequence[int], room: int) -> tuple[list[Batch], bool]:
        """Waiting turns, the named ones first, and whether none is left; none while the model is
        away. Where calls are shared each batch is a call, else some turns of any scopes."""
        room = self._gate.room(room, self._count_under_way())
        if room == 0:
            return [], True
        batches, is_dry = await (self._calls if self._shares_calls else self._any_turns)(ids, room)
        self._under_way.update((batch[0].lease.job_id, time.monotonic()) for batch in batches)
        return batches, is_dry

    def _count_under_way(self) -> int:
        """Batches claimed and not ended; one that was cancelled before it began lapses."""
        lapsed = time.monotonic() - 2 * self._settings.model_timeout_seconds
        self._under_way = {job: at for job, at in self._under_way.items() if at > lapsed}
        return len(self._under_way)

    async def _calls(self, ids: Sequence[int], room: int) -> tuple[list[Batch], bool]:
        calls = await self._ledger.claim_extracts(
            ids,
            calls=room,
            turns=self._settings.batch_turns_max,
            bytes_max=self._settings.model_batch_tokens * BYTES_A_TOKEN,
        )
        return list(calls), len(calls) < room

    async def extract(self, turns: Sequence[ClaimedTurn], tally: Tally) -> None:
        """Extract from the turns of one claimed batch and end their jobs."""
        # A turn that an erase has taken is not shown; applying its job says so.
        shown = [turn for turn in turns if turn.staged_at is not None]
        gone = [[turn] for turn in turns if turn.staged_at is None]
        calls = [shown] if self._shares_calls and shown else [[turn] for turn in shown]
        running = await self._begin(calls, tally)
        self._under_way[turns[0].lease.job_id] = time.monotonic()
        try:
            await self._apply([(call, Extracted()) for call in gone], tally)
            while running:
                ready, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                ended = [(running.pop(task), task.result()) for task in ready]
                running |= await self._begin(await self._apply(ended, tally), tally)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self._under_way.pop(turns[0].lease.job_id, None)

    async def _begin(
        self, calls: Sequence[Call], tally: Tally
    ) -> dict[asyncio.Task[Extracted], Call]:
        """Make the calls, but for those under a standing erase: their text is shown to nobody."""
        erasing = await self._ledger.under_erase({call[0].stored_path for call in calls})
        for call in calls:
            if call[0].stored_path in erasing:
                await self._ledger.put_off([turn.lease for turn in call])
                for turn in call:
                    tally.applied("extract", "erasing", turn.lease.job_id)
        shown = [call for call in calls if call[0].stored_path not in erasing]
        return {asyncio.create_task(self._learn(call)): call for call in shown}

    async def _learn(self, call: Call) -> Extracted:
        if self._extractor is None:
            return Extracted()
        request = ExtractionRequest(
            scope=scope_from_stored_path(call[0].stored_path),
            turns=tuple(finished_turn(turn) for turn in call),
            related=await self._related_to(call[0].stored_path),
        )
        try:
            learned = await run_extraction(
                self._extractor, request, timeout_seconds=self._settings.model_timeout_seconds
            )
        except MemoryContractError as error:
            learned = Extracted(
                degraded=True, cause="unusable", reason=f"contract: {type(error).__name__}"
            )
        if learned.cause != "unavailable":
            self._gate.reached()
        if learned.usage.calls:
            await self._ledger.count_usage(
                call[0].stored_path, [turn.lease for turn in call], learned.usage
            )
        return learned

    async def _related_to(self, stored_path: str) -> tuple[MemoryRecord, ...]:
        if not self._related:
            return ()
        rows = await self._database.rows(_RELATED, stored_path, self._related)
        return tuple(record_from(row) for row in rows)

    async def _apply(self, results: Sequence[tuple[Call, Extracted]], tally: Tally) -> list[Call]:
        """Write what was learned. Returns calls to be made again, each without a turn that went."""
        good: list[tuple[Call, Extracted]] = []
        for call, learned in results:
            if learned.degraded:
                await self._put_back(call, learned, tally)
            else:
                good.append((call, learned))
            if learned.refused:
                tally.add("facts refused", learned.refused)
        turns = [turn for call, _ in good for turn in call]
        if not turns:
            return []
        work = [each for call, learned in good for each in work_of(call, learned)]
        verdicts = await self._applier.apply("extract", turns, work, tally)
        again = [
            [turn for turn in call if verdicts.get(turn.lease.job_id) == "again"]
            for call, _ in good
        ]
        return [call for call in again if call]

    async def _put_back(self, call: Call, learned: Extracted, tally: Tally) -> None:
        wait = 0.0
        if learned.cause == "unavailable":
            wait = self._gate.missed(min(learned.retry_after_seconds, RETRY_AFTER_SECONDS_MAX))
        for turn in call:
            if learned.cause == "unavailable":
                verdict = await self._ledger.defer_turn(turn.lease, learned.reason, wait)
            elif learned.cause == "unusable" and len(call) == 1:
                verdict = await self._ledger.give_up_turn(turn.lease, learned.reason)
            else:
                verdict = await self._ledger.fail_turn(turn.lease, learned.reason)
            tally.failed("extract", verdict, "degraded", turn.lease.job_id)


def work_of(call: Call, learned: Extracted) -> list[dict[str, object]]:
    """The elements of `apply_turns` for one call; a fact goes with the last turn it rests on."""
    place = {(turn.turn_id, turn.stored_path): at for at, turn in enumerate(call)}
    records: list[list[MemoryRecord]] = [[] for _ in call]
    for record in learned.records:
        own = [place.get((s.turn_id, s.turn_path + "/"), -1) for s in record.sources]
        records[max([0, *own])].append(record)
    shared = {"call": str(call[0].lease.job_id)} if len(call) > 1 else {}
    reason = learned.reason or (f"{learned.refused} facts refused" if learned.refused else "")
    return [
        {**turn_work(turn, records[at], reason=reason), **shared} for at, turn in enumerate(call)
    ]


def finished_turn(turn: ClaimedTurn) -> FinishedTurn:
    """The turn as extractors see it: session and names stand in its metadata."""
    metadata = dict(turn.metadata)
    if turn.session:
        metadata["session"] = turn.session
    if turn.names:
        metadata["names"] = list(turn.names)
    return FinishedTurn(
        turn_id=turn.turn_id,
        scope=scope_from_stored_path(turn.stored_path),
        query=turn.query,
        answer=turn.answer,
        occurred_at=turn.occurred_at or turn.staged_at,
        metadata=metadata,
    )
