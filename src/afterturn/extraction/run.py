"""One call of an extractor, bounded in time, and its answer with everything refused that it
has no right to: scopes beside the turn's, sources it was not given, the ids of raw records."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from afterturn.errors import AfterturnError, MemoryContractError
from afterturn.extraction.facts import fact_digest, fact_id, fact_key
from afterturn.ports import MemoryExtractorPort
from afterturn.records import TURN_ORIGIN, TURN_SOURCE, MemoryRecord, Source
from afterturn.scope import covering_paths
from afterturn.turns import Cause, ExtractionRequest, ExtractionResult, TokenUsage

RECORDS_MAX: Final = 500
RECORD_TEXT_BYTES_MAX: Final = 64 << 10
REASON_CHARACTERS_MAX: Final = 120
EXTRACTED_ORIGIN: Final = "extracted"
NO_TOKENS: Final = TokenUsage()

_CODE: Final = re.compile(r"[\x20-\x7e]+")
_RAW_RECORD_ID: Final = re.compile(r".+:(?:user|assistant):(?:working|episodic)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Extracted:
    """What may be kept of an extractor's answer.

    `refused` counts the records that may not. `degraded` and `cause` as in `ExtractionResult`;
    `reason` is a short code that never holds text of a turn.
    """

    records: tuple[MemoryRecord, ...] = ()
    refused: int = 0
    degraded: bool = False
    reason: str = ""
    cause: Cause = ""
    retry_after_seconds: float = 0.0
    usage: TokenUsage = NO_TOKENS


async def run_extraction(
    extractor: MemoryExtractorPort, request: ExtractionRequest, *, timeout_seconds: float
) -> Extracted:
    """Call the extractor once. It gives up by degrading: `timeout`, `failed: KeyError`, …

    A raised `MemoryContractError` passes, since repeating the call would not help; so does the
    cancellation of the caller. Nothing else an extractor raises does.
    """
    answer = await _called(extractor, request, timeout_seconds)
    if isinstance(answer, Extracted):
        return answer
    admission = _Admission(request)
    records = admission.admitted(answer.records)
    return Extracted(
        records=records,
        refused=admission.refused,
        degraded=answer.degraded,
        reason=_code(answer.reason) or ("degraded" if answer.degraded else ""),
        cause=answer.cause if answer.degraded else "",
        retry_after_seconds=answer.retry_after_seconds or 0.0,
        usage=answer.usage,
    )


async def _called(
    extractor: MemoryExtractorPort, request: ExtractionRequest, timeout_seconds: float
) -> ExtractionResult | Extracted:
    answer: Any
    try:
        async with asyncio.timeout(timeout_seconds):
            answer = extractor.extract(request)
            # A decorator may have hidden from validation that it is synchronous.
            answer = await answer if inspect.isawaitable(answer) else answer
    except MemoryContractError:
        raise
    except TimeoutError:
        return _given_up("timeout")
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return _given_up("failed: CancelledError")  # of a task of the extractor's own
    except Exception as error:  # noqa: BLE001 - an extractor may raise anything
        return _given_up(f"failed: {type(error).__name__}")
    if not isinstance(answer, ExtractionResult):
        return _given_up(f"answered {type(answer).__name__}")
    return answer


def _given_up(reason: str) -> Extracted:
    return Extracted(degraded=True, reason=_code(reason) or "failed")


def _code(reason: str) -> str:
    """The reason if it can be a code: one short line of plain characters."""
    reason = reason.strip()
    fits = len(reason) <= REASON_CHARACTERS_MAX and _CODE.fullmatch(reason)
    return reason if fits else ""


class _Admission:
    """Judges the records of one answer, one by one."""

    def __init__(self, request: ExtractionRequest) -> None:
        self._paths = frozenset(covering_paths(request.scope.path))
        self._own = tuple(
            Source(turn_id=turn.turn_id, turn_path=turn.scope.path) for turn in request.turns
        )
        self._known = frozenset(self._own).union(*(each.sources for each in request.related))
        self.refused = 0

    def admitted(self, records: Iterable[object]) -> tuple[MemoryRecord, ...]:
        """Those that may be kept. Equal facts are one, with the sources of both."""
        kept: dict[tuple[object, ...], MemoryRecord] = {}
        for record in records:
            try:
                if not isinstance(record, MemoryRecord) or not self._may_stand(record):
                    self.refused += 1
                    continue
                fact = self._cleaned(record)
            except (AfterturnError, AttributeError, TypeError, ValidationError):
                self.refused += 1  # it was built past validation
                continue
            # Several statements about one thing are kept apart by their turns.
            keyed = fact_key(fact) is not None
            place = fact.scope_path, fact.record_id, fact.sources if keyed else ()
            same = kept.get(place)
            if same is None and len(kept) < RECORDS_MAX:
                kept[place] = fact
            elif same is not None and fact_digest(same.text) == fact_digest(fact.text):
                sources = dict.fromkeys((*same.sources, *fact.sources))
                kept[place] = same.model_copy(update={"sources": tuple(sources)})
            else:
                self.refused += 1
        return tuple(kept.values())

    def _may_stand(self, record: MemoryRecord) -> bool:
        return (
            record.scope_path in self._paths
            and bool(record.text.strip())
            and len(record.text.encode(errors="replace")) <= RECORD_TEXT_BYTES_MAX
            and not _RAW_RECORD_ID.fullmatch(record.record_id)
        )

    def _cleaned(self, record: MemoryRecord) -> MemoryRecord:
        """A validated copy with what only afterturn may say replaced."""
        origin = EXTRACTED_ORIGIN if record.origin == TURN_ORIGIN else record.origin
        metadata = {
            key: value
            for key, value in record.metadata.items()
            if key != "turn_id" and (key, value) != ("source", TURN_SOURCE)
        }
        key = fact_key(record)
        return MemoryRecord.model_validate(
            {
                **dict(record),
                "record_id": fact_id(record.text, key) if key else record.record_id,
                "origin": origin,
                "metadata": metadata,
                "recorded_at": None,
                "sources": self._sources(record),
            }
        )

    def _sources(self, record: MemoryRecord) -> tuple[Source, ...]:
        """Those it names of what it was given; all turns of the request where it names none."""
        named = tuple(dict.fromkeys(s for s in record.sources if s in self._known))
        return named if set(named) & set(self._own) else (*named, *self._own)
