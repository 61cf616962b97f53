"""The extractor that asks a model: any OpenAI-compatible endpoint, few calls, honest failures.

One request is one call, and one more when the answer was no use. Only a turn that is too long for
a call is shown in several pieces; what some of them give is kept although others fail.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Self

from afterturn.errors import ConfigurationError
from afterturn.extraction.answer import read_answer
from afterturn.extraction.chat import ChatModel, ModelFailure, Spent
from afterturn.extraction.drafts import Drafts
from afterturn.extraction.policy import FactPolicy
from afterturn.extraction.prompt import messages, repair, turn_line
from afterturn.extraction.sentences import pieces
from afterturn.logs import silence_clients
from afterturn.settings import Settings
from afterturn.turns import ExtractionRequest, ExtractionResult, FinishedTurn

if TYPE_CHECKING:
    from openai import AsyncOpenAI

PIECES_MAX: Final = 64
PIECES_AT_ONCE: Final = 4

_CHARACTERS_A_TOKEN: Final = 4
_LEFT_SECONDS_MAX: Final = 1.0
_LEFT_SHARE: Final = 0.2
"""Of the time an extraction may take this much is left for saying what became of it."""
_UNBROKEN: Final = re.compile(r"\S{200,}")


class MemoryExtractionService:
    """`MemoryExtractorPort` on the `openai` client (extra `openai`).

    `client` is an `AsyncOpenAI` of your own; else one is made of `base_url` and `api_key`, which
    default to what that client reads from its environment. `timeout_seconds` bounds a whole
    extraction. The scope of facts comes from `policy`, never from the model.
    """

    batch = True
    related = 20

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout_seconds: float = 60.0,
        call_tokens: int = 6_000,
        policy: FactPolicy | None = None,
        client: AsyncOpenAI | None = None,
    ) -> None:
        if not model:
            raise ConfigurationError(
                "The extraction model has no name", hint="Set AFTERTURN_MODEL to it."
            )
        _require_openai()
        if client is None and base_url is None and not (api_key or os.environ.get(_KEY)):
            raise ConfigurationError(
                "The extraction model's endpoint is not known",
                hint="Set AFTERTURN_MODEL_BASE_URL, and AFTERTURN_MODEL_API_KEY if it needs one.",
            )
        self._model = model
        self._base_url = base_url
        self._api_key = api_key
        self._call_seconds = timeout_seconds - min(_LEFT_SECONDS_MAX, timeout_seconds * _LEFT_SHARE)
        self._characters = call_tokens * _CHARACTERS_A_TOKEN
        self._policy = policy or FactPolicy()
        self._client = client
        self._made: AsyncOpenAI | None = None
        self._chat: ChatModel | None = None

    @classmethod
    def from_settings(cls, settings: Settings, *, policy: FactPolicy | None = None) -> Self:
        """With `AFTERTURN_MODEL` and the settings that belong to it."""
        key = settings.model_api_key
        return cls(
            settings.model,
            base_url=settings.model_base_url,
            api_key=key.get_secret_value() if key else None,
            timeout_seconds=settings.model_timeout_seconds,
            call_tokens=settings.model_batch_tokens,
            policy=policy or FactPolicy.from_settings(settings),
        )

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        """Facts of the turns, each with the turns that state it; raises nothing of the model's."""
        spent = Spent()
        drafts = Drafts(request.turns, self._policy)
        until = time.monotonic() + self._call_seconds
        shown = self._shown(request.turns)
        failures: list[ModelFailure] = []
        gate = asyncio.Semaphore(PIECES_AT_ONCE)

        async def look_at(numbers: Sequence[int], lines: Sequence[str]) -> None:
            async with gate:
                try:
                    await self._look_at(request, numbers, lines, drafts, spent, until)
                except ModelFailure as failure:
                    failures.append(failure)

        async with asyncio.TaskGroup() as group:
            for numbers, lines in shown[:PIECES_MAX]:
                group.create_task(look_at(numbers, lines))
        lost = len(failures) + max(0, len(shown) - PIECES_MAX)
        if failures and lost == len(shown):
            return _nothing(failures, spent)
        parts = [f"partial: {len(shown) - lost} of {len(shown)} pieces"] if lost else []
        return ExtractionResult(
            records=drafts.records,
            reason=", ".join([*parts, *filter(None, [drafts.note])]),
            usage=spent.usage,
        )

    async def aclose(self) -> None:
        """Close the connections; a client of your own is yours to close."""
        made, self._made, self._chat = self._made, None, None
        if made is not None:
            await made.close()

    async def _look_at(
        self,
        request: ExtractionRequest,
        numbers: Sequence[int],
        lines: Sequence[str],
        drafts: Drafts,
        spent: Spent,
        until: float,
    ) -> None:
        """One call and, after an answer that was no use, another one."""
        asked = messages(lines, request.related)
        for attempt in range(2):
            seconds = until - time.monotonic()
            if seconds <= 0:
                raise ModelFailure("timeout")
            text = await self._model_here().ask(asked, spent, timeout_seconds=seconds)
            answer = read_answer(text)
            if answer is not None:
                drafts.add(answer.facts, numbers, is_cut=answer.is_cut)
                return
            if attempt == 0:
                asked = repair(asked, text)
        raise ModelFailure("unusable: no facts in the answer", "unusable")

    def _shown(self, turns: Sequence[FinishedTurn]) -> list[tuple[list[int], list[str]]]:
        """The turns' numbers and lines, one element a call."""
        sides = [
            (n, turn, _prose(turn.query), _prose(turn.answer))
            for n, turn in enumerate(turns, start=1)
            if (turn.query or "").strip() or (turn.answer or "").strip()
        ]
        if not sides:
            return []
        if sum(len(query) + len(answer) for _, _, query, answer in sides) <= self._characters:
            lines = [turn_line(n, turn, query, answer) for n, turn, query, answer in sides]
            return [([n for n, *_ in sides], lines)]
        shown = []
        for n, turn, query, answer in sides:
            if len(query) + len(answer) <= self._characters:
                shown.append(([n], [turn_line(n, turn, query, answer)]))
                continue
            for at, side in enumerate((query, answer)):
                for piece in pieces(side, self._characters) if side else ():
                    said = (piece, "") if at == 0 else ("", piece)
                    shown.append(([n], [turn_line(n, turn, *said)]))
        return shown

    def _model_here(self) -> ChatModel:
        """Made at the first call: a client belongs to the loop that it is used on."""
        if self._chat is None:
            client = self._client or self._new_client()
            self._chat = ChatModel(client.with_options(max_retries=0), self._model)
        return self._chat

    def _new_client(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI

        # Without a key an endpoint of one's own gets one that says nothing.
        key = self._api_key or os.environ.get(_KEY) or "none"
        self._made = AsyncOpenAI(base_url=self._base_url, api_key=key, timeout=None)
        return self._made


_KEY: Final = "OPENAI_API_KEY"


def _require_openai() -> None:
    """Import it here, before a loop runs: it takes a second."""
    if importlib.util.find_spec("openai") is None:
        raise ConfigurationError(
            "The extraction model needs a package that is not installed",
            hint='Install it: pip install "afterturn[openai]".',
        )
    importlib.import_module("openai")
    silence_clients()


def _prose(text: str | None) -> str:
    """Without long unbroken runs: they are data, and cost tokens."""
    return _UNBROKEN.sub("[\u2026]", text or "")


def _nothing(failures: Sequence[ModelFailure], spent: Spent) -> ExtractionResult:
    """What is said of a request of which every call failed; the most innocent cause counts."""
    order = ("unavailable", "", "unusable")
    first = min(failures, key=lambda failure: order.index(failure.cause))
    waits = [f.retry_after_seconds for f in failures if f.retry_after_seconds is not None]
    return ExtractionResult(
        degraded=True,
        reason=first.reason,
        cause=first.cause,
        retry_after_seconds=max(waits, default=None),
        usage=spent.usage,
    )
