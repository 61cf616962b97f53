"""What an export shows is what an erase removes, and the other way round."""

from __future__ import annotations

from typing import Any, Final

import pytest

from afterturn.database import Database
from afterturn.memory import Memory
from afterturn.reading import Reading, TranscriptTurn
from afterturn.scope import MemoryScope
from tests.cli.command import CommandLine
from tests.cli.conftest import alone, commands, using
from tests.pipeline.conftest import Desk
from tests.schema.filling import ACME, ALICE, fill

__all__ = ["alone", "commands", "using"]

# All that anybody said or learned, by where it lies.
_TEXTS: Final = """
select 'turn' as kind, path, turn_id as id, coalesce(query, '') || '|' || coalesce(answer, '')
from afterturn.turns
union all
select 'record', path, record_id, text from afterturn.memories
union all
select 'record', path, record_id, text from afterturn.fact_statements f
where not exists (select from afterturn.memories m where m.path = f.path
    and m.record_id = f.record_id and not m.pending and m.text = f.text)
"""
Row = tuple[str, str, str, str]


async def _exported(database: Database, scope: MemoryScope) -> list[Row]:
    rows: list[Row] = []
    async for item in Reading(database).export(scope):
        path = f"{item.scope_path}/"
        if isinstance(item, TranscriptTurn):
            rows.append(("turn", path, item.turn_id, f"{item.query or ''}|{item.answer or ''}"))
        else:
            rows.append(("record", path, item.record_id, item.text))
    return sorted(rows)


async def _held(database: Database) -> list[Row]:
    return sorted(tuple(row) for row in await database.rows(_TEXTS))


async def _restate(desk: Desk) -> None:
    """A keyed fact of ALICE that was said twice, differently."""
    await desk.value(
        """
        insert into afterturn.fact_statements (path, record_id, turn_path, turn_id, said_at,
            staged_at, superseded, digest, layer, origin, text, metadata, importance, recorded_at)
        select $1, 'key', $1, t, now(), now(), t = 'first', decode(md5(t), 'hex'), 'semantic',
            'extracted', 'it was ' || t, '{}', 0.5, now()
        from unnest(array['first', 'second']) t
        """,
        ALICE.stored_path,
    )
    await desk.value(
        "select afterturn.settle_facts(array[$1], array['key'], jsonb_build_object($1, 1))",
        ALICE.stored_path,
    )


@pytest.mark.parametrize("derived", ["keep", "erase"])
async def test_what_is_exported_is_what_is_erased(
    desk: Desk, database: Database, derived: Any
) -> None:
    """Turns and records in every state, waiting ones and what facts said before."""
    await _restate(desk)
    await fill(desk, derived=derived)  # leaves the erase requested and not done
    await desk.value("delete from afterturn.erase_intents")
    held = await _held(database)
    of_alice = await _exported(database, ALICE)
    assert of_alice == [row for row in held if row[1].startswith(ALICE.stored_path)]
    assert len(of_alice) > 15
    assert ("record", ALICE.stored_path, "key", "it was first") in of_alice
    of_acme = await _exported(database, ACME)
    assert of_acme == held

    job_id = await desk.value("select max(id) from afterturn.jobs where kind = 'forget'")
    assert await desk.run(job_id) == "forgot 1"
    assert await _exported(database, ALICE) == []
    left = await _exported(database, ACME)
    assert left == await _held(database)
    gone = [row for row in of_acme if row not in left]
    beyond = [row for row in gone if row not in of_alice]
    assert [row for row in of_alice if row not in gone] == []
    assert [row for row in left if row not in of_acme] == []
    counts = await desk.value("select counts from afterturn.jobs where id = $1", job_id)
    assert len(beyond) == counts.get("derived", 0)
    assert (len(beyond) > 0) == (derived == "erase")


async def test_the_export_is_streamed_in_pages(
    desk: Desk, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows a page has, each comes once."""
    await _restate(desk)
    await fill(desk)
    await desk.value("delete from afterturn.erase_intents")
    whole = await _exported(database, ACME)
    for page in (1, 2, 7):
        monkeypatch.setattr("afterturn.reading._PAGE", page)
        assert await _exported(database, ACME) == whole


def test_a_session_is_forgotten_by_command(alone: CommandLine, using: Any) -> None:
    """Or single turns and records; what is not named stays."""
    scope = MemoryScope.of("acme", "alice")

    async def talk(memory: Memory) -> None:
        for name in ("a", "b", "c"):
            async with memory.turn(scope, session=f"s-{name}", turn_id=name) as turn:
                await turn.finish(f"about {name}", None)
        await memory.flush(scope)

    def turns() -> list[str]:
        lines = alone.run("export", "acme/alice").stdout.splitlines()
        return [name for name in ("a", "b", "c") if any(f"about {name}" in row for row in lines)]

    using(talk)
    assert turns() == ["a", "b", "c"]
    receipt = alone.run("forget", "acme/alice", "--session", "s-a", "--json").json
    assert receipt["counts"]["turns"] == 1
    assert turns() == ["b", "c"]
    receipt = alone.run("forget", "acme/alice", "--turn", "c", "--record", "unknown", "--json").json
    assert receipt["counts"]["turns"] == 1
    assert turns() == ["b"]
    refused = alone.run("forget", "acme/alice", "--turn", "not an id")
    assert (refused.code, refused.stdout) == (1, "")
    assert turns() == ["b"]
