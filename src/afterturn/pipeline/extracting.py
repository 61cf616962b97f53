"""Extraction of claimed turns: the model outside any transaction, each result applied as it comes.

A model call that hangs holds up nothing but its own turn: what is ready is written meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from afterturn.errors import MemoryContractError
from afterturn.extraction.run import Extracted, run_extraction
from afterturn.jobs.ledger import ClaimedTurn, Ledger
from afterturn.jobs.tally import Tally
from afterturn.pipeline.applying import TurnApplier, turn_work
from afterturn.ports import MemoryExtractorPort
from afterturn.scope import scope_from_stored_path
from afterturn.settings import Settings
from afterturn.turns import ExtractionRequest, FinishedTurn


class ExtractionStep:
    """Runs the extractor over claimed turns and applies what it learned."""

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        applier: TurnApplier,
        extractor: MemoryExtractorPort | None,
    ) -> None:
        self._ledger = ledger
        self._settings = settings
        self._applier = applier
        self._extractor = extractor

    async def extract(self, turns: Sequence[ClaimedTurn], tally: Tally) -> None:
        """Extract from each turn of the batch."""
        calls = {asyncio.create_task(self._learn(turn)): turn for turn in turns}
        try:
            waiting = set(calls)
            while waiting:
                ready, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                await self._apply([(calls[call], call.result()) for call in ready], tally)
        finally:
            for call in calls:
                call.cancel()

    async def _learn(self, turn: ClaimedTurn) -> Extracted | str:
        """What was learned, or why never to try again."""
        if self._extractor is None or turn.staged_at is None:
            return Extracted()
        request = ExtractionRequest(
            scope=scope_from_stored_path(turn.stored_path), turns=(finished_turn(turn),)
        )
        try:
            return await run_extraction(
                self._extractor, request, timeout_seconds=self._settings.model_timeout_seconds
            )
        except MemoryContractError as error:
            return f"contract: {type(error).__name__}"

    async def _apply(
        self, results: Sequence[tuple[ClaimedTurn, Extracted | str]], tally: Tally
    ) -> None:
        good: list[tuple[ClaimedTurn, Extracted]] = []
        for turn, result in results:
            if isinstance(result, str):
                # Final: recorded as given up at once, with what the extractor called it.
                good.append((turn, Extracted(reason=result)))
            elif result.degraded:
                verdict = await self._ledger.fail_turn(turn.lease, result.reason or "degraded")
                tally.failed(verdict, "degraded")
            else:
                good.append((turn, result))
        if good:
            work = [turn_work(turn, each.records, reason=each.reason) for turn, each in good]
            await self._applier.apply("extract", [turn for turn, _ in good], work, tally)


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
