"""Staging: the one transaction after which a finished turn cannot be lost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

from afterturn import metrics
from afterturn.database import Database
from afterturn.scope import MemoryScope, covering_paths

Verdict = Literal["staged", "known", "erasing", "stale"]

_STAGE = "select afterturn.stage_turn($1::text[], $2, $3::bigint[], $4, $5, $6, $7, $8, $9, $10)"
_COUNT_STAGED: Final = metrics.STAGED.labels("staged")


class StagedTurn(NamedTuple):
    """What a caller hands over: checked text, the token as a vector over the covering paths."""

    scope: MemoryScope
    turn_id: str
    token: Sequence[int]
    session: str | None
    query: str | None
    answer: str | None
    names: tuple[str, str] | None
    metadata: Mapping[str, Any]
    occurred_at: datetime | None


class Staged(NamedTuple):
    """The verdict, and the job to ring when the turn was new."""

    verdict: Verdict
    record_job: int | None


async def stage(database: Database, turn: StagedTurn, *, ring_after: timedelta) -> Staged:
    """Stage a turn in one round trip; it is on disk when this returns.

    `ring_after` is when the sweep may ring the job should the caller's own ring be lost. Raises
    `MemoryUnavailable` when the outcome is unknown: stage again with the same id.
    """
    began = time.monotonic()
    told = await database.value(
        _STAGE,
        [f"{path}/" for path in covering_paths(turn.scope.path)],
        turn.turn_id,
        list(turn.token),
        turn.session,
        turn.query,
        turn.answer,
        list(turn.names) if turn.names else None,
        dict(turn.metadata) or None,
        turn.occurred_at,
        ring_after,
    )
    metrics.STAGE_SECONDS.observe(time.monotonic() - began)
    if told.isdecimal():
        _COUNT_STAGED.inc()
        return Staged("staged", int(told))
    metrics.STAGED.labels(told).inc()
    return Staged(told, None)
