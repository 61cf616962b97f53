"""Every column that can hold text is erased with its scope, or says why it need not be.

The lists below are compared with the catalogue, and the behaviour with the lists: a scope is
filled with every kind of row, forgotten, and each column of each table looked through.
"""

from __future__ import annotations

from typing import Final

import pytest

from afterturn.database import Database
from tests.pipeline.conftest import Desk
from tests.schema.filling import (
    ACME,
    ALICE,
    BOB,
    KEPT,
    MARKER,
    REQUESTER,
    USER,
    fill,
    insist,
)

ERASED: Final = {
    "turns": "path turn_id session query answer names metadata reason",
    "memories": "path record_id turn_path turn_id session origin text metadata embedding",
    "memory_sources": "path record_id turn_path turn_id",
    "fact_statements": "path record_id turn_path turn_id origin text metadata",
    "jobs": "path turn_id request reason",
    "erase_intents": "path",
    "schedules": "path request",
}

# Columns that hold neither text nor a readable path, however long their rows stay.
HARMLESS: Final = {
    "migrations": {"name": "the name of a migration"},
    "installation": {
        "hash_key": "random bytes",
        "functions_digest": "a hash of our own functions",
        "embedder_model": "the name of a model",
    },
    "turns": {"outcome": "one of four words, checked"},
    "memories": {"layer": "one of five words, checked"},
    "fact_statements": {
        "layer": "one of five words, checked",
        "digest": "a hash, of what goes with its row",
    },
    "token_usage": {"path": "of a root; an erase of the root takes it, tested with the facts"},
    "jobs": {
        "kind": "one of six words, checked",
        "outcome": "one of four words, checked",
        "path_key": "a keyed hash",
        "counts": "rows per table",
        "receipt": "numbers and a hash",
    },
    "scope_generations": {"scope_key": "a keyed hash"},
    "erase_log": {
        "root_key": "a keyed hash",
        "scope_key": "a keyed hash",
        "requested_by": "who asked, in the words of the requester, kept as proof",
        "reason": "why, likewise",
        "counts": "rows per table",
        "previous_hash": "a hash",
        "hash": "a hash",
        "what": "one of five words, checked",
        "detail": "keyed hashes and one of two words",
    },
    "schedules": {
        "kind": "one of two words, checked",
        "layer": "one of five words, checked",
        "outcome": "one of three words, checked",
        "zone": "the name of a time zone",
        "path_key": "a keyed hash",
    },
    "erase_log_heads": {"root_key": "a keyed hash", "hash": "a hash"},
}

# Types whose values are numbers, times or marks; every other type might hold text.
_HOLDS_NO_TEXT: Final = [
    "bigint", "bigint[]", "boolean", "double precision", "integer", "time without time zone",
    "timestamp with time zone", "uuid",
]  # fmt: skip
_COLUMNS = """
select c.relname as table, a.attname as column, format_type(a.atttypid, a.atttypmod) as type
from pg_attribute a join pg_class c on c.oid = a.attrelid
where c.relnamespace = 'afterturn'::regnamespace and c.relkind in ('r', 'p', 'm')
    and a.attnum > 0 and not a.attisdropped
order by 1, a.attnum
"""

# Of tables whose rows are of a scope; a key that is a number of ours alone tells no two apart.
_KEYS = """
select i.indexrelid::regclass::text as key, coalesce(a.attname, '') as first,
    i.indnkeyatts = 1 and coalesce(a.attidentity, '') <> '' as is_number
from pg_index i join pg_class c on c.oid = i.indrelid
left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0] and a.attnum > 0
where c.relnamespace = 'afterturn'::regnamespace and i.indisunique and exists (
    select from pg_attribute p where p.attrelid = i.indrelid and p.attname = 'path')
"""

Column = tuple[str, str]


async def columns(database: Database) -> dict[Column, str]:
    """(table, column) → type, of every table of the schema."""
    return {(r["table"], r["column"]): r["type"] for r in await database.rows(_COLUMNS)}


async def unlisted(database: Database) -> set[Column]:
    """Columns that might hold text and are in neither list."""
    listed = {(t, c) for t, names in ERASED.items() for c in names.split()}
    listed |= {(t, c) for t, reasons in HARMLESS.items() for c in reasons}
    found = await columns(database)
    return {each for each, kind in found.items() if kind not in _HOLDS_NO_TEXT} - listed


async def places(database: Database, word: str) -> set[Column]:
    """The columns of every table of the schema that hold the word, as text or as bytes."""
    found = set()
    for (table, column), kind in (await columns(database)).items():
        bytewise = kind == "bytea"
        needle: object = word.encode() if bytewise else word
        holds = await database.value(
            f"select bool_or(position($1 in {column if bytewise else column + '::text'}) > 0) "
            f"from afterturn.{table}",
            needle,
        )
        if holds:
            found.add((table, column))
    return found


async def test_every_column_that_can_hold_text_is_listed(database: Database) -> None:
    """As erased with its scope or as harmless with the reason; no list names what is not there."""
    assert await unlisted(database) == set()
    there = set(await columns(database))
    erased = {(t, c) for t, names in ERASED.items() for c in names.split()}
    harmless = {(t, c) for t, reasons in HARMLESS.items() for c in reasons}
    assert erased | harmless <= there
    assert erased & harmless == set()


@pytest.mark.parametrize(
    ("statement", "column"),
    [
        ("create table afterturn.summaries (path text, words integer)", ("summaries", "path")),
        ("create table afterturn.facts (id bigint, about jsonb)", ("facts", "about")),
        ("alter table afterturn.turns add title varchar(80)", ("turns", "title")),
        ("alter table afterturn.jobs add tags text[]", ("jobs", "tags")),
        ("create materialized view afterturn.seen as select 'x'::text as x", ("seen", "x")),
    ],
)
async def test_a_column_that_is_new_has_to_be_listed(
    database: Database, statement: str, column: Column
) -> None:
    """Of whatever type that might hold text, in an old table or in a new one."""
    await database.value(statement)
    assert await unlisted(database) == {column}


async def unscoped(database: Database) -> set[str]:
    """The unique keys of rows of a scope under which two scopes could meet."""
    rows = await database.rows(_KEYS)
    assert len(rows) > 5
    return {row["key"] for row in rows if row["first"] != "path" and not row["is_number"]}


async def test_every_unique_key_begins_with_the_scope(database: Database) -> None:
    """So that what one user says never stands in the way of another's same words.

    The one exception is of a row that has no scope: the default rule, of which there is one.
    """
    assert await unscoped(database) == {"afterturn.schedules_default"}


@pytest.mark.parametrize("columns", ["record_id, path", "md5(text), path", "record_id"])
async def test_a_unique_key_across_scopes_is_seen(database: Database, columns: str) -> None:
    """Whether its scope comes later, behind an expression, or not at all."""
    await database.value(f"create unique index across on afterturn.memories ({columns})")
    assert "afterturn.across" in await unscoped(database)


async def test_a_forget_leaves_no_word_and_no_path_in_any_column(
    desk: Desk, database: Database
) -> None:
    """Turns, records, vectors, sources and jobs of every kind and in every state."""
    job_id = await fill(desk)
    await insist(desk, job_id)
    erased = {(t, c) for t, names in ERASED.items() for c in names.split()}
    before = await places(database, MARKER) | await places(database, USER)
    # Also proves that each column of the list was really tried.
    assert before == erased
    assert ("jobs", "request") in await places(database, REQUESTER)

    await desk.expire_lease(job_id)
    assert await desk.run(job_id) == "forgot 1"
    assert await places(database, MARKER) == set()
    assert await places(database, USER) == set()
    assert await places(database, REQUESTER) == {
        ("erase_log", "requested_by"),
        ("erase_log", "reason"),
    }


async def test_a_forget_leaves_what_it_does_not_cover(desk: Desk, database: Database) -> None:
    """The neighbour's rows, and a fact that rests on a turn of the neighbour as well."""
    job_id = await fill(desk)
    await desk.run(job_id)
    assert await places(database, KEPT) == {
        ("turns", "query"),
        ("turns", "answer"),
        ("memories", "text"),
    }
    (row,) = await desk.rows("select * from afterturn.memories where path = $1", ACME.stored_path)
    assert (row["record_id"], row["turn_path"], row["turn_id"], row["session"]) == (
        "both",
        BOB.stored_path,
        "of-bob",
        "s-bob",
    )
    (left,) = await desk.rows("select * from afterturn.memory_sources")
    assert (left["record_id"], left["turn_path"]) == ("both", BOB.stored_path)


async def test_finished_jobs_of_an_erased_scope_keep_a_hash_and_their_outcome(
    desk: Desk, database: Database
) -> None:
    """Whoever knows the path can tell that they were of it; nobody else can."""
    job_id = await fill(desk)
    await desk.run(job_id)
    key = await database.value("select afterturn.scope_key($1)", ALICE.stored_path)
    rows = await desk.rows("select * from afterturn.jobs where path_key is not null")
    assert {row["kind"] for row in rows} == {"flush", "forget", "expire"}
    for row in rows:
        assert row["path"] is None
        assert row["request"] == {}
        assert row["outcome"] is not None
    (forget,) = [row for row in rows if row["id"] == job_id]
    assert forget["path_key"] == key
    assert set(forget["counts"]) >= {"turns", "memories", "jobs", "derived"}
    assert set(forget["receipt"]) == {"generation", "derived_outside", "log_head"}


async def test_what_is_kept_elsewhere_on_request_does_not_say_where_it_came_from(
    desk: Desk, database: Database
) -> None:
    """With `derived="keep"` what was learned stays; of the erased path only hashes are left."""
    job_id = await fill(desk, derived="keep")
    await desk.run(job_id)
    assert await places(database, USER) == set()


async def test_the_planner_keeps_no_sample_of_what_an_erase_takes(
    desk: Desk, database: Database
) -> None:
    """ANALYZE takes samples of columns, which no erase could reach: so it leaves these out."""
    sampled = {
        (row["table"], row["column"])
        for row in await database.rows(
            "select c.relname as table, a.attname as column from pg_attribute a "
            "join pg_class c on c.oid = a.attrelid "
            "where c.relnamespace = 'afterturn'::regnamespace and c.relkind = 'r' "
            "and a.attnum > 0 and a.attstattarget is distinct from 0"
        )
    }
    erased = {(table, name) for table, names in ERASED.items() for name in names.split()}
    assert sampled & {*erased, ("token_usage", "path"), ("fact_statements", "digest")} == set()
    await fill(desk)
    await database.rows("analyze")
    held = await database.rows(
        "select s.tablename, s.attname from pg_stats s where s.schemaname = 'afterturn' "
        "and strpos(concat(s.most_common_vals, s.histogram_bounds, s.most_common_elems), $1) > 0 "
        "or s.tablename = 'memories_same_text'",  # hashes of what was said
        USER,
    )
    assert held == []
