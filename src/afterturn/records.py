"""Memory records, and the four that a finished turn gives."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StrictStr

from afterturn.errors import MemoryContractError
from afterturn.intake import (
    TURN_ID_CHARACTERS_MAX,
    Metadata,
    RecordId,
    Time,
    TurnId,
    checked_id,
    checked_list,
    checked_metadata,
    clean_text,
)
from afterturn.model import Model
from afterturn.scope import MemoryScope, checked_scope, scope_from_path

TURN_ORIGIN: Final = "turn"
TURN_SOURCE: Final = "afterturn.turn"

Speaker = Literal["user", "assistant"]


class MemoryLayer(StrEnum):
    """What kind of memory a record is."""

    WORKING = "working"
    EPISODIC = "episodic"
    SEMANTIC = "semantic"
    PROCEDURAL = "procedural"
    PROSPECTIVE = "prospective"


def checked_layer(layer: MemoryLayer | str) -> MemoryLayer:
    """The layer of this name; another name is refused with those that exist."""
    try:
        return MemoryLayer(layer)
    except ValueError:
        raise MemoryContractError(
            "There is no such layer",
            detail=f"got {ascii(layer)[:40]}",
            hint=f"Use one of {', '.join(MemoryLayer)}.",
        ) from None


def checked_layers(layers: Iterable[MemoryLayer | str]) -> list[MemoryLayer]:
    """The layers of these names."""
    return [checked_layer(each) for each in checked_list(layers, what="layers")]


def _canonical_path(path: str) -> str:
    return scope_from_path(path).path


ScopePath = Annotated[str, AfterValidator(_canonical_path)]
"""A canonical scope path such as `v1/acme/alice`."""


class Source(Model):
    """The turn that a record was learned from: its id and the scope path it happened in."""

    turn_id: TurnId
    turn_path: ScopePath


class MemoryRecord(Model):
    """One memory. `importance` is 0 to 1; times are aware and kept in UTC."""

    record_id: RecordId
    text: Annotated[StrictStr, AfterValidator(clean_text)]
    scope_path: ScopePath
    layer: MemoryLayer
    origin: Annotated[str, AfterValidator(clean_text)]
    metadata: Metadata = Field(default_factory=dict)
    importance: float = Field(default=0.5, ge=0.0, le=1.0, allow_inf_nan=False)
    occurred_at: Time | None = None
    recorded_at: Time | None = None
    sources: tuple[Source, ...] = ()


def turn_records(
    *,
    query: str | None,
    answer: str | None,
    scope: MemoryScope,
    extra_metadata: Mapping[str, Any] | None = None,
    turn_id: str | None = None,
) -> tuple[MemoryRecord, ...]:
    """The records of one exchange: each side that is not blank, as `working` then `episodic`.

    The user's side comes first. Pure: it never judges whether an exchange matters, and the same
    arguments with a `turn_id` give the same records. Without one, an id is made for the call.
    """
    turn = (
        checked_id(turn_id, what="turn_id", characters_max=TURN_ID_CHARACTERS_MAX)
        if turn_id
        else uuid.uuid4().hex
    )
    extra = checked_metadata(extra_metadata)
    path = checked_scope(scope).path
    sides: tuple[tuple[Speaker, str | None], ...] = (("user", query), ("assistant", answer))
    for what, side in (("query", query), ("answer", answer)):
        if side is not None and not isinstance(side, str):
            raise MemoryContractError(
                f"The {what} must be text", detail=f"got {type(side).__name__}"
            )
    return tuple(
        MemoryRecord(
            record_id=f"{turn}:{speaker}:{layer.value}",
            text=text.strip(),
            scope_path=path,
            layer=layer,
            origin=TURN_ORIGIN,
            metadata={**extra, "speaker": speaker, "turn_id": turn, "source": TURN_SOURCE},
        )
        for speaker, text in sides
        if text is not None and text.strip()
        for layer in (MemoryLayer.WORKING, MemoryLayer.EPISODIC)
    )
