"""A record as a reader holds it in its cache."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from afterturn.records import MemoryLayer, MemoryRecord, Source
from afterturn.retrieval.index_text import TURN_LAYERS, index_text

_SIDES: Final = ("user", "assistant")
_LAYERS: Final = {layer.value: layer for layer in MemoryLayer}


@dataclass(frozen=True, slots=True)
class Row:
    """One published record; a candidate of the gates.

    `metadata` stays JSON text: it is compact, and every answer gets an object of its own.
    """

    path: str
    record_id: str
    session: str | None
    layer: str
    origin: str
    text: str
    metadata: str
    importance: float
    occurred_at: datetime | None
    recorded_at: datetime
    sources: tuple[tuple[str, str], ...] = ()
    """(turn id, canonical turn path) of each turn it was learned from."""
    turn_id: str = ""
    """The turn whose message this is, from the metadata; empty for a fact."""
    speaker: str = ""
    speaker_name: str = ""

    @property
    def is_message(self) -> bool:
        """Whether this is a side of a turn, and so stands in the order of a conversation."""
        return self.layer in TURN_LAYERS

    @property
    def who(self) -> str:
        """Who said it, empty for nobody in particular."""
        return self.speaker_name or self.speaker

    @property
    def message(self) -> tuple[str, ...]:
        """Equal for the two layers of one message, empty for what is no message."""
        return message_of(self.path, self.layer, self.turn_id, self.speaker)

    @property
    def happened_at(self) -> datetime:
        """When it happened, as far as is known."""
        return self.occurred_at or self.recorded_at

    @property
    def index_text(self) -> str:
        """What the lexical index and the embedder see."""
        return index_text(
            self.text,
            json.loads(self.metadata),
            layer=self.layer,
            occurred_at=self.occurred_at,
            recorded_at=self.recorded_at,
        )

    @property
    def message_key(self) -> int:
        """A number for `message`, 0 where there is none."""
        return _hash(*self.message) | 1 if self.message else 0

    @property
    def session_key(self) -> int:
        """Equal within a session, 0 outside any."""
        return _hash(self.session) | 1 if self.session else 0

    @property
    def order_key(self) -> int:
        """Orders what happened at the same time: turns together, the user's side first."""
        side = _SIDES.index(self.speaker) + 1 if self.speaker in _SIDES else 0
        record = _hash(self.record_id) & 0xFFFFFF
        return (_hash(self.turn_id) >> 27 << 26) | (side << 24) | record

    def record(self) -> MemoryRecord:
        """The public record; what was validated when it was written is not validated again."""
        return MemoryRecord.trusted(
            record_id=self.record_id,
            text=self.text,
            scope_path=self.path,
            layer=_LAYERS[self.layer],
            origin=self.origin,
            metadata=from_json(self.metadata),
            importance=self.importance,
            occurred_at=self.occurred_at,
            recorded_at=self.recorded_at,
            sources=tuple(
                [Source.trusted(turn_id=turn_id, turn_path=path) for turn_id, path in self.sources]
            ),
        )


def message_of(path: str, layer: str, turn_id: str, speaker: str) -> tuple[str, ...]:
    """What the two layers of one message have in common; empty for what is no message."""
    return (path, turn_id, speaker) if layer in TURN_LAYERS and turn_id and speaker else ()


def identity(metadata: Mapping[str, Any]) -> tuple[str, str, str]:
    """`turn_id`, `speaker` and `speaker_name` of a record's metadata, empty where not text."""

    def text(key: str) -> str:
        value = metadata.get(key)
        return value.strip() if isinstance(value, str) else ""

    return text("turn_id"), text("speaker"), text("speaker_name")


def row_of(record: Any, path: str, sources: tuple[tuple[str, str], ...]) -> Row:
    """The row of a database record at a canonical path."""
    turn_id, speaker, speaker_name = identity(json.loads(record["metadata"]))
    return Row(
        path=path,
        record_id=record["record_id"],
        session=record["session"],
        layer=record["layer"],
        origin=record["origin"],
        text=record["text"],
        metadata=record["metadata"],
        importance=record["importance"],
        occurred_at=record["occurred_at"],
        recorded_at=record["recorded_at"],
        sources=sources,
        turn_id=turn_id,
        speaker=speaker,
        speaker_name=speaker_name,
    )


def vectors_of(records: Sequence[Any], dim: int) -> NDArray[np.float32]:
    """float32 [records, dim]; zeros where a record has no vector of this length."""
    vectors = np.zeros((len(records), dim), dtype=np.float32)
    for at, record in enumerate(records):
        stored = record["embedding"]
        if dim and stored is not None and len(stored) == 2 * dim:
            vectors[at] = np.frombuffer(stored, dtype="<f2")
    return vectors


def _hash(*parts: str) -> int:
    """A positive 63-bit number, the same in every process."""
    digest = blake2b("\x00".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
