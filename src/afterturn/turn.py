"""One turn of a conversation: begun, read for, and handed over or abandoned."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, Protocol

from afterturn.errors import (
    AfterturnError,
    ErasePending,
    MemoryContractError,
    MemoryUnavailable,
    StaleTurn,
)
from afterturn.generations import vector_of
from afterturn.intake import (
    checked_list,
    checked_metadata,
    checked_text,
    checked_time,
    clean_text,
)
from afterturn.model import refusing
from afterturn.pipeline.staging import StagedTurn, Verdict
from afterturn.ports import MemoryRetrievalPort
from afterturn.queries import MemoryQuery, RetrievalResult
from afterturn.records import MemoryLayer
from afterturn.redaction import redacted
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from afterturn.tickets import TurnTicket
from afterturn.turns import StageStatus, TurnOutcome
from afterturn.writes import Token

logger = logging.getLogger(__name__)

OnUnavailable = Literal["raise", "degrade"]


class TurnDesk(Protocol):
    """Where a turn reads and is handed over; `afterturn.parts` has it."""

    @property
    def source(self) -> MemoryRetrievalPort:
        """Retrieval."""

    async def stage(self, turn: StagedTurn) -> Verdict:
        """Keep the turn for good."""

    async def outcome(self, scope: MemoryScope, turn_id: str) -> TurnOutcome:
        """What has become of it so far."""


class Turn:
    """A turn that has begun; `Memory.turn` makes it.

    `token` is what the turn vouches for: the erase numbers that covered its scope when it began.
    After an erase that covers the scope, `finish` is refused.
    """

    def __init__(
        self,
        *,
        scope: MemoryScope,
        turn_id: str,
        session: str | None,
        token: Token,
        degraded: str,
        on_unavailable: OnUnavailable,
        desk: TurnDesk,
        settings: Settings,
    ) -> None:
        self.scope = scope
        self.turn_id = turn_id
        self.session = session
        self.token = token
        # Now and not in `finish`, whose caller waits for it.
        self._numbers = vector_of(scope.path, token)
        self._degraded = degraded
        self._on_unavailable = on_unavailable
        self._desk = desk
        self._settings = settings
        self._abandoned = False
        self._handed_over = False

    async def retrieve(
        self,
        text: str,
        *,
        limit: int = 8,
        layers: Sequence[MemoryLayer] | None = None,
        min_relevance: float | None = None,
        min_importance: float | None = None,
        max_chars: int | None = None,
        now: datetime | None = None,
    ) -> RetrievalResult:
        """What is remembered about `text` in the turn's scope; see `MemoryQuery` for the bounds.

        Runs in this process. With `on_unavailable="degrade"` an outage or a standing erase gives
        an empty result whose `degraded` says why; otherwise it raises.
        """
        with refusing("question"):
            query = MemoryQuery(
                scope=self.scope,
                text=text,
                limit=limit,
                layers=None if layers is None else tuple(checked_list(layers, what="layers")),
                min_relevance=min_relevance,
                min_importance=min_importance,
                max_chars=max_chars,
                now=now,
            )
        if self._degraded:
            return RetrievalResult(degraded=(self._degraded,))
        try:
            return await self._desk.source.retrieve(query)
        except MemoryUnavailable as error:
            if self._on_unavailable == "raise":
                raise
            return RetrievalResult(degraded=(why(error),))

    async def finish(
        self,
        query: str | None,
        answer: str | None,
        *,
        names: tuple[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        occurred_at: datetime | None = None,
    ) -> TurnTicket:
        """Hand the exchange over; it is durable when this returns, and the rest happens elsewhere.

        `names` are the speakers' names, the query's first. Again with the same scope and
        `turn_id` is the same turn: what was handed over first stands, this text is not kept, the
        ticket is `known` and a warning is logged. Raises `StaleTurn` when the scope was erased
        since the turn began, `ErasePending` while an erase stands, `MemoryUnavailable` when the
        outcome is unknown (finish again). With `on_unavailable="degrade"` the ticket's status says
        so.
        """
        if self._abandoned:
            raise MemoryContractError(
                "The turn was abandoned", detail=self.turn_id, hint="Begin a new turn."
            )
        staged = self._checked(query, answer, names, metadata, occurred_at)
        self._handed_over = True
        if not (staged.query or "").strip() and not (staged.answer or "").strip():
            return self._ticket("blank", "nothing to record")
        try:
            return await self._stage(staged)
        except (MemoryUnavailable, StaleTurn) as error:
            if self._on_unavailable == "raise":
                raise
            refused = isinstance(error, (StaleTurn, ErasePending))
            return self._ticket("refused" if refused else "unavailable", why(error))

    async def abandon(self) -> None:
        """End the turn without a trace: nothing was staged, nothing remains.

        Raises `MemoryContractError` once it was handed over: what was said can be erased then.
        """
        if self._handed_over:
            raise MemoryContractError(
                "The turn was handed over already",
                detail=self.turn_id,
                hint="Erase it: memory.forget_records(scope, turn_ids=[turn.turn_id]).",
            )
        self._abandoned = True

    def leave(self) -> None:
        """What the end of a `memory.turn` block does: an unfinished turn is abandoned."""
        self._abandoned = not self._handed_over

    def _checked(
        self,
        query: str | None,
        answer: str | None,
        names: tuple[str, str] | None,
        metadata: Mapping[str, Any] | None,
        occurred_at: datetime | None,
    ) -> StagedTurn:
        return StagedTurn(
            scope=self.scope,
            turn_id=self.turn_id,
            token=self._numbers,
            session=self.session,
            query=self._text(query, what="query"),
            answer=self._text(answer, what="answer"),
            names=_checked_names(names),
            metadata=checked_metadata(metadata),
            occurred_at=checked_time(occurred_at, what="occurred_at"),
        )

    def _text(self, text: str | None, *, what: str) -> str | None:
        if text is None:
            return None
        checked = checked_text(text, what=what, bytes_max=self._settings.text_bytes_max)
        return redacted(checked) if self._settings.redact else checked

    async def _stage(self, staged: StagedTurn) -> TurnTicket:
        verdict = await self._desk.stage(staged)
        if verdict == "erasing":
            raise ErasePending(
                "An erase that covers this scope has not completed", hint="Begin a new turn then."
            )
        if verdict == "stale":
            raise StaleTurn(
                "The turn began before an erase that covers its scope", hint="Begin a new turn."
            )
        if verdict == "known":
            # The id alone: whether it was said in other words is not asked.
            logger.warning("turn %s was handed over before; what it said then stands", self.turn_id)
        return self._ticket("staged", "", known=verdict == "known")

    def _ticket(self, status: StageStatus, reason: str, *, known: bool = False) -> TurnTicket:
        return TurnTicket(
            self.turn_id,
            status,
            reason=reason,
            known=known,
            outcome=partial(self._desk.outcome, self.scope, self.turn_id),
            timeout=self._settings.wait_timeout_seconds,
        )


def why(error: AfterturnError) -> str:
    """A short reason for `degraded` and tickets."""
    if isinstance(error, ErasePending):
        return "erase pending"
    if isinstance(error, StaleTurn):
        return "stale turn"
    return "memory unavailable"


def _checked_names(names: tuple[str, str] | None) -> tuple[str, str] | None:
    if names is None:
        return None
    pair = isinstance(names, tuple | list) and len(names) == 2
    if not pair or not all(isinstance(n, str) and 0 < len(n) <= 200 for n in names):
        raise MemoryContractError(
            "names must be two texts of 1 to 200 characters",
            hint="Pass the speaker of the query first, then that of the answer.",
        )
    return clean_text(names[0]), clean_text(names[1])
