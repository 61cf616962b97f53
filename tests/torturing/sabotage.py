"""Faults planted at the very end, to prove that the audit can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import asyncpg
import redis

from tests.torturing.judging import Verdict
from tests.torturing.story import stored

KINDS: Final = ("resurrect", "lose", "double", "halve", "intent", "leak", "log")

_RESURRECT = """
insert into afterturn.memories (path, record_id, pending, turn_path, turn_id, layer, origin, text,
    metadata, importance, recorded_at, content, revision)
values ($1, $2, false, $1, $3, 'episodic', 'turn', $4, '{}', 0.5, now(), 0, 0)
"""
_LOSE = "delete from afterturn.memories where path = $1 and turn_id = $2 and origin = 'turn'"
_HALVE = "delete from afterturn.memories where path = $1 and record_id like $2 || ':%:working'"
_DOUBLE = """
insert into afterturn.memories
select (jsonb_populate_record(m, jsonb_build_object('record_id', m.record_id || '-x'))).*
from afterturn.memories m where m.path = $1 and m.turn_id = $2 and m.layer = 'episodic'
"""
_INTENT = "insert into afterturn.erase_intents (path, job_id) values ('v1/nobody/', 1)"


async def plant(
    kind: str, verdicts: dict[str, Verdict], home: Path, database_url: str, broker_url: str
) -> str:
    """Plant one fault; what was done to whom. Raises `LookupError` when there is no victim."""
    gone = _first(verdicts, "gone")
    present = _first(verdicts, "present")
    word = gone.said.markers["q"]
    if kind == "leak":
        with redis.Redis.from_url(broker_url) as client:
            client.set("careless", f"somebody said {word}")
        return f"{kind} {gone.said.op}"
    if kind == "log":
        with (home / "logs" / "record.log").open("a") as log:
            log.write(f"debug: {word}\n")
        return f"{kind} {gone.said.op}"
    there = (f"{stored(present.said.scope)}/", present.said.id)
    statements: dict[str, tuple[Any, ...]] = {
        "resurrect": (
            _RESURRECT,
            f"{stored(gone.said.scope)}/",
            f"{gone.said.id}:user:episodic",
            gone.said.id,
            f"once more: {word}",
        ),
        "lose": (_LOSE, *there),
        "halve": (_HALVE, *there),
        "double": (_DOUBLE, *there),
        "intent": (_INTENT,),
    }
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(*statements[kind])
    finally:
        await connection.close()
    return f"{kind} {(gone if kind == 'resurrect' else present).said.op}"


def _first(verdicts: dict[str, Verdict], fate: str) -> Verdict:
    for verdict in verdicts.values():
        said = verdict.said
        if verdict.fate == fate and said.acked and said.kind == "turn" and "q" in said.markers:
            return verdict
    raise LookupError(f"no acknowledged turn is {fate}: run longer")
