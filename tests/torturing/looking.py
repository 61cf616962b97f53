"""Readers, and the looks that other parts take: what was seen, where, and from when on."""

from __future__ import annotations

import random
from collections.abc import Iterable

from afterturn import Memory, MemoryQuery, MemoryRecord, RetrievalResult, TranscriptTurn, Turn
from afterturn.errors import ErasePending, MemoryUnavailable, ScopeViolation
from tests.torturing import words
from tests.torturing.acting import Actor, scope_of
from tests.torturing.words import Segments

_ALL = 1_000  # as many as retrieval scans


async def read(actor: Actor, memory: Memory, rng: random.Random) -> None:
    """Look at one scope; everything visible there, or the best few."""
    await actor.pause(rng.uniform(0.0, 0.12))
    scope = words.some_place(rng)
    limit = _ALL if rng.random() < 0.6 else 8
    await _retrieve(actor, memory, scope, "what do you know about my dog?", limit)


async def look_in_turn(actor: Actor, turn: Turn, scope: Segments, text: str) -> None:
    """The read that a turn does before the answer."""
    started = actor.note("look", via="turn", scope=scope)
    try:
        result = await turn.retrieve(text)
    except MemoryUnavailable as error:
        _not_seen(actor, "turn", scope, started, error)
    else:
        _saw_result(actor, "turn", scope, started, result)


async def look_for(actor: Actor, memory: Memory, scope: Segments, op: str, text: str) -> None:
    """What a caller does who has just flushed: its own words must find its turn."""
    await _retrieve(actor, memory, scope, text, _ALL, wanted=op)


async def look_everywhere(actor: Actor, memory: Memory, scope: Segments) -> None:
    """Every way to read, at a scope that was just erased."""
    await _retrieve(actor, memory, scope, "anything at all", _ALL)
    place = scope_of(scope)
    started = actor.note("look", via="list", scope=scope)
    try:
        _saw(actor, "list", scope, started, await memory.list(place, limit=_ALL))
        started = actor.note("look", via="transcript", scope=scope)
        _saw(actor, "transcript", scope, started, await memory.transcript(place, limit=_ALL))
        started = actor.note("look", via="export", scope=scope)
        _saw(actor, "export", scope, started, [item async for item in memory.export(place)])
    except MemoryUnavailable as error:
        _not_seen(actor, "plain", scope, started, error)


async def _retrieve(
    actor: Actor, memory: Memory, scope: Segments, text: str, limit: int, wanted: str = ""
) -> None:
    started = actor.note("look", via="retrieve", scope=scope)
    query = MemoryQuery(scope=scope_of(scope), text=text, limit=limit)
    try:
        result = await memory.retrieve(query)
    except ScopeViolation as error:
        actor.note("violation", op=wanted, error=str(error))
    except MemoryUnavailable as error:
        _not_seen(actor, "retrieve", scope, started, error)
    else:
        _saw_result(actor, "retrieve", scope, started, result, wanted)


def _saw_result(
    actor: Actor,
    via: str,
    scope: Segments,
    started: int,
    result: RetrievalResult,
    wanted: str = "",
) -> None:
    whole = all(dropped.reason == "duplicate" for dropped in result.dropped)
    whole = whole and len(result.memories) + len(result.dropped) < _ALL
    whole = whole and not any("memory" in why or "erase" in why for why in result.degraded)
    records = [found.record for found in result.memories]
    _saw(actor, via, scope, started, records, whole=whole, wanted=wanted)
    if words.markers_in(result.render()) != {w for r in records for w in words.markers_in(r.text)}:
        actor.note("violation", op=wanted, error="render() shows other words than the memories")


def _saw(
    actor: Actor,
    via: str,
    scope: Segments,
    started: int,
    items: Iterable[MemoryRecord | TranscriptTurn],
    *,
    whole: bool = False,
    wanted: str = "",
) -> None:
    """Note the markers seen, by the path they were found at."""
    seen: dict[str, set[str]] = {}
    for item in items:
        text = item.text if isinstance(item, MemoryRecord) else f"{item.query} {item.answer}"
        seen.setdefault(item.scope_path, set()).update(words.markers_in(text))
    actor.note(
        "saw",
        via=via,
        scope=scope,
        since=started,
        whole=whole,
        wanted=wanted,
        seen={path: sorted(found) for path, found in seen.items()},
    )


def _not_seen(
    actor: Actor, via: str, scope: Segments, started: int, error: MemoryUnavailable
) -> None:
    kind = "erasing" if isinstance(error, ErasePending) else "out of reach"
    actor.note("not_seen", via=via, scope=scope, since=started, kind=kind, error=str(error))
