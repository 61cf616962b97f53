"""Rows, entries and rankings with few words, for tests that need no database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afterturn.records import MemoryLayer, MemoryRecord
from afterturn.retrieval.entries import Entry, Label
from afterturn.retrieval.question import Cue
from afterturn.retrieval.ranking import Ranking, rank
from afterturn.retrieval.rows import Row, identity
from afterturn.retrieval.view import View
from afterturn.retrieved import RetrievedMemory

START = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
PATH = "v1/acme/alice/"


def row(
    record_id: str,
    text: str = "",
    *,
    path: str = PATH,
    layer: str = "semantic",
    session: str | None = None,
    importance: float = 0.5,
    minute: int = 0,
    occurred_at: datetime | None = None,
    metadata: dict[str, Any] | None = None,
) -> Row:
    """A row recorded `minute` minutes after `START`."""
    about = metadata or {}
    turn_id, speaker, speaker_name = identity(about)
    return Row(
        path=path.removesuffix("/"),
        record_id=record_id,
        session=session,
        layer=layer,
        origin="test",
        text=text,
        metadata=json.dumps(about),
        importance=importance,
        occurred_at=occurred_at,
        recorded_at=START + timedelta(minutes=minute),
        turn_id=turn_id,
        speaker=speaker,
        speaker_name=speaker_name,
    )


def message(
    turn: str,
    speaker: str,
    text: str,
    *,
    layer: str = "episodic",
    minute: int = 0,
    session: str | None = "s1",
    **metadata: Any,
) -> Row:
    """One side of a turn, as `turn_records` makes it."""
    return row(
        f"{turn}:{speaker}:{layer}",
        text,
        layer=layer,
        session=session,
        minute=minute,
        metadata={"turn_id": turn, "speaker": speaker, **metadata},
    )


def entry(rows: Sequence[Row], vectors: NDArray[np.float32] | None = None) -> Entry:
    """The rows of one path, read at once."""
    path = f"{rows[0].path}/" if rows else PATH
    matrix = np.zeros((len(rows), 0), dtype=np.float32) if vectors is None else vectors
    return Entry(path, Label((0, 0), 0, 0)).updated(Label((0, 0), 1, 0), rows, matrix)


def ranked(
    entries: Sequence[Entry], cue: Cue | str, layers: frozenset[str] | None = None
) -> tuple[View, Ranking]:
    """The view of the entries and its ranking for a cue."""
    view = View(entries, layers)
    return view, rank(view, Cue(cue) if isinstance(cue, str) else cue)


def best_ids(
    entries: Sequence[Entry], cue: Cue | str, layers: frozenset[str] | None = None
) -> list[str]:
    """The record ids of everything ranked, best first."""
    view, ranking = ranked(entries, cue, layers)
    return [view.rows(p)[0].record_id for p in ranking.positions[ranking.best(len(view))].tolist()]


def retrieved(
    record_id: str,
    text: str = "a text",
    *,
    score: float = 0.0,
    scope_path: str = "v1/acme/alice",
    layer: MemoryLayer = MemoryLayer.SEMANTIC,
    importance: float = 0.5,
    metadata: dict[str, Any] | None = None,
    occurred_at: datetime | None = None,
    recorded_at: datetime | None = START,
) -> RetrievedMemory:
    """A memory as a source returns it."""
    record = MemoryRecord(
        record_id=record_id,
        text=text,
        scope_path=scope_path,
        layer=layer,
        origin="test",
        importance=importance,
        metadata=metadata or {},
        occurred_at=occurred_at,
        recorded_at=recorded_at,
    )
    return RetrievedMemory(record=record, score=score)
