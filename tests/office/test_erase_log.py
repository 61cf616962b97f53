"""The erase log grows, and nothing can be done to it unseen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import hypothesis
import pytest
from hypothesis import strategies

from afterturn.database import Database, connect
from afterturn.erase_log.entries import entry_from, hash_of, jsonb_text
from afterturn.erase_log.lookup import erased
from afterturn.erase_log.reading import LogFile, export_log
from afterturn.erase_log.verifying import LogReport, verify_database, verify_file
from afterturn.errors import MemoryContractError
from afterturn.generations import advance, lock
from afterturn.migrations import migrate
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from tests.pipeline.conftest import ALICE, CHAT_1, CHAT_2, Desk
from tests.schema.databases import new_database

ACME = ALICE.ancestor(1)
OTHER = MemoryScope.of("other")
Line = dict[str, Any]
JSON = strategies.recursive(
    strategies.none()
    | strategies.booleans()
    | strategies.integers(-(10**18), 10**18)
    | strategies.text(strategies.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        strategies.lists(inner, max_size=4)
        | strategies.dictionaries(
            strategies.text(
                strategies.characters(exclude_categories=["Cs"], exclude_characters="\0")
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


async def _some_erases(desk: Desk) -> None:
    """Of every kind, in two roots."""
    await desk.stage(CHAT_1, "t1", session="s")
    await desk.stage(CHAT_1, "t2", session="s")
    await desk.forget(CHAT_1, named={"turn_ids": ["t1"], "record_ids": ["r1"], "session": "z"})
    await desk.forget(OTHER)
    await desk.forget(CHAT_2, derived="keep")
    async with desk.database.connection() as conn, conn.transaction():
        await lock(conn, [ACME.path], exclusive=True)
        await advance(conn, ACME, requested_by="the application", reason="T-\u00fc")
    await desk.forget(ALICE)


def _lines(file: Path) -> list[Line]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _rewritten(file: Path, lines: list[Line]) -> LogReport:
    copy = file.with_name("copy.jsonl")
    copy.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return verify_file(LogFile(copy))


@pytest.fixture(scope="module")
def exported_log(server_url: str) -> str:
    """The text of an exported log: a header and five entries."""

    async def make() -> str:
        async with new_database(server_url) as url:
            settings = Settings(database_url=url, embedder="none")
            await migrate(url, settings)
            database = Database(url, settings, pool_size=4)
            await _some_erases(Desk(database, settings))
            lines = [line.model_dump_json() async for line in export_log(database)]
            await database.close()
        return "".join(f"{line}\n" for line in lines)

    return asyncio.run(make())


@pytest.fixture
def log_file(exported_log: str, tmp_path: Path) -> Path:
    """The exported log as a file of the test's own."""
    file = tmp_path / "log.jsonl"
    file.write_text(exported_log)
    return file


async def test_the_log_is_append_only(desk: Desk) -> None:
    """Changing, removing and emptying are refused, whoever asks; adding goes on."""
    await desk.forget(ALICE)
    for statement in (
        "update afterturn.erase_log set reason = 'none'",
        "update afterturn.erase_log set reason = 'none' where false",
        "delete from afterturn.erase_log",
        "truncate afterturn.erase_log",
    ):
        with pytest.raises(MemoryContractError, match="append-only"):
            await desk.value(statement)
    await desk.forget(ALICE)
    assert await desk.value("select count(*) from afterturn.erase_log") == 2


class TestWhole:
    async def test_what_an_erase_writes_is_whole(
        self, log_file: Path, desk: Desk, database: Database
    ) -> None:
        """Of every kind of erase; in the database and exported, against receipts and numbers."""
        await _some_erases(desk)
        report = await verify_database(database)
        assert (report.defects, report.entries, report.roots) == ((), 5, 2)
        assert report.receipts == 4
        exported = verify_file(LogFile(log_file))
        assert (exported.defects, exported.entries, exported.roots) == ((), 5, 2)

    async def test_nothing_erased_yet(self, database: Database) -> None:
        """An empty log is whole, and its export is one line."""
        assert (await verify_database(database)).is_whole
        assert len([line async for line in export_log(database)]) == 1

    def test_no_scope_and_no_name_can_be_read_from_it(self, log_file: Path) -> None:
        """But who asked and why, in their words."""
        text = log_file.read_text()
        for word in ("acme", "alice", "chat", "other", "t1", "r1"):
            assert f'"{word}' not in text
            assert f"/{word}" not in text
        assert "the application" in text

    def test_what_was_erased_is_said(self, log_file: Path) -> None:
        """Kind, fate of what was learned, and keyed hashes of what was named."""
        told = {(e["what"], frozenset(e["detail"])) for e in _lines(log_file)[1:]}
        assert told == {
            ("named", frozenset({"derived", "records", "session", "turns"})),
            ("scope", frozenset({"derived"})),
            ("own", frozenset()),
        }
        fates = [e["detail"].get("derived") for e in _lines(log_file)[1:]]
        assert sorted(fates, key=str) == [None, "erase", "erase", "erase", "keep"]

    async def test_entries_from_before_are_whole(self, desk: Desk, database: Database) -> None:
        """What was written before the kind was known keeps the hash it was given."""
        path, root = ALICE.stored_path, ACME.stored_path
        await desk.value(
            "select afterturn.append_erase_log($1, afterturn.move_erase($1), 7, 'x', 'y', "
            "afterturn.clock(), afterturn.clock(), '{\"turns\": 1}', '', '{}')",
            path,
        )
        before = """
            select l.hash = sha256(l.previous_hash || sha256(l.root_key) || sha256(l.scope_key)
                || sha256(convert_to(l.generation::text, 'UTF8')) || sha256('7'::bytea)
                || sha256('x'::bytea) || sha256('y'::bytea)
                || sha256(((extract(epoch from l.requested_at) * 1000000)::bigint::text)::bytea)
                || sha256(((extract(epoch from l.completed_at) * 1000000)::bigint::text)::bytea)
                || sha256(convert_to(l.counts::text, 'UTF8')))
            from afterturn.erase_log l where l.root_key = afterturn.scope_key($1)
        """
        assert await desk.value(before, root) is True
        assert (await verify_database(database)).is_whole


class TestTamperedCopy:
    @pytest.mark.parametrize(
        "field",
        [
            "root_key", "scope_key", "generation", "job_id", "requested_by", "reason",
            "requested_at", "completed_at", "counts", "what", "detail", "previous_hash", "hash",
        ],
    )  # fmt: skip
    def test_each_field(self, log_file: Path, field: str) -> None:
        """The entry is named, whichever it is and whatever was changed in it."""
        change: dict[str, Callable[[Any], Any]] = {
            "generation": lambda value: value + 1,
            "job_id": lambda value: (value or 0) + 1,
            "requested_by": lambda value: value + " ",
            "reason": lambda value: value + "x",
            "requested_at": lambda value: value[:-2] + ("0Z" if value[-2] != "0" else "1Z"),
            "completed_at": lambda value: value[:-2] + ("0Z" if value[-2] != "0" else "1Z"),
            "counts": lambda value: value | {"turns": value.get("turns", 0) + 1},
            "what": lambda value: "named" if value != "named" else "scope",
            "detail": lambda value: value | {"derived": "kept"},
        }
        flipped = lambda value: ("0" if value[0] != "0" else "1") + value[1:]  # noqa: E731
        for number in range(1, 6):
            lines = _lines(log_file)
            lines[number][field] = change.get(field, flipped)(lines[number][field])
            report = _rewritten(log_file, lines)
            assert f"line {number + 1}" in {
                each.where for each in report.defects if each.kind == "changed"
            }
            if field not in ("root_key", "previous_hash"):
                assert len(report.defects) == 1

    def test_a_missing_line(self, log_file: Path) -> None:
        """At the start, in the midst, at the end: what stands after the gap is named."""
        roots = [line["root_key"] for line in _lines(log_file)[1:]]
        for number in range(1, 6):
            lines = _lines(log_file)
            gone = lines.pop(number)
            report = _rewritten(log_file, lines)
            (defect,) = report.defects
            assert defect.kind == "missing"
            is_last = number == 5 or roots[number] != gone["root_key"]
            root = f"root {gone['root_key'][:12]}"
            assert defect.where == (root if is_last else f"line {number + 1}")

    def test_two_lines_swapped(self, log_file: Path) -> None:
        """Neighbours or not, of one root or of two: both are named."""
        for one in range(1, 6):
            for two in range(one + 1, 6):
                lines = _lines(log_file)
                lines[one], lines[two] = lines[two], lines[one]
                report = _rewritten(log_file, lines)
                assert {each.kind for each in report.defects} == {"reordered"}
                named = {each.where for each in report.defects}
                assert named >= {f"line {one + 1}", f"line {two + 1}"}

    def test_a_line_twice(self, log_file: Path) -> None:
        """An entry that was copied in."""
        lines = _lines(log_file)
        lines.insert(3, lines[2])
        kinds = {(each.where, each.kind) for each in _rewritten(log_file, lines).defects}
        assert any(kind == "repeated" for _, kind in kinds)

    def test_heads(self, log_file: Path) -> None:
        """Changed or left out."""
        lines = _lines(log_file)
        first, second = lines[0]["heads"]
        lines[0]["heads"] = {first: "0" * 64}
        report = _rewritten(log_file, lines)
        assert {each.where for each in report.defects} == {
            f"root {first[:12]}",
            f"root {second[:12]}",
        }

    @pytest.mark.parametrize(
        "line", ["", "{", "[]", "{}", '{"hash": 1}', "\ufffd", '"text"', "null"]
    )
    def test_a_line_that_is_no_entry(self, log_file: Path, line: str) -> None:
        """Named by its number, without what stands in it."""
        copy = log_file.with_name("copy.jsonl")
        text = log_file.read_text().splitlines()
        copy.write_text("\n".join([*text[:3], line, *text[3:]]))
        (defect,) = verify_file(LogFile(copy)).defects
        assert (defect.where, defect.kind) == ("line 4", "unreadable")

    def test_a_field_too_much(self, log_file: Path) -> None:
        """What the hash does not cover has no place."""
        lines = _lines(log_file)
        lines[2]["note"] = "nothing was erased"
        kinds = {(each.where, each.kind) for each in _rewritten(log_file, lines).defects}
        assert ("line 3", "unreadable") in kinds

    def test_a_cut_end_with_its_head_is_shown_by_a_receipt(self, log_file: Path) -> None:
        """Kept elsewhere, as the docs advise."""
        lines = _lines(log_file)
        root = lines[-1]["root_key"]
        kept = lines.pop()["hash"]
        lines[0]["heads"][root] = lines[-1]["hash"]
        if lines[-1]["root_key"] != root:
            del lines[0]["heads"][root]
        copy = log_file.with_name("copy.jsonl")
        copy.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert verify_file(LogFile(copy)).is_whole
        (defect,) = verify_file(LogFile(copy), [kept]).defects
        assert defect.where == f"receipt {kept[:12]}"

    @pytest.mark.parametrize("content", ["", "\n", "{}\n", '{"format": "x"}\n', "\x00\xff"])
    def test_a_file_that_is_no_log(self, tmp_path: Path, content: str) -> None:
        """Refused as a whole."""
        file = tmp_path / "file"
        file.write_text(content)
        with pytest.raises(MemoryContractError, match="no exported erase log"):
            LogFile(file)


class TestTamperedDatabase:
    """By somebody who may do everything, trigger or not."""

    @pytest.mark.parametrize(
        ("statement", "kinds"),
        [
            ("update afterturn.erase_log set reason = 'x' where id = 3", {"changed"}),
            ("delete from afterturn.erase_log where id = 3", {"missing"}),
            # The newest of a root: its head, its receipt and the scope's number tell.
            ("delete from afterturn.erase_log where id = 5", {"missing"}),
            (
                "delete from afterturn.erase_log where id = 5; "
                "update afterturn.erase_log_heads h set hash = l.hash from afterturn.erase_log l "
                "where l.id = 4 and l.root_key = h.root_key",
                {"missing"},
            ),
            # A whole root, its head too: receipt and number tell.
            (
                "delete from afterturn.erase_log where id = 2; "
                "delete from afterturn.erase_log_heads h where not exists ("
                "select from afterturn.erase_log l "
                "where l.root_key = h.root_key)",
                {"missing"},
            ),
            (
                "update afterturn.erase_log set previous_hash = sha256('x') where id = 1",
                {"changed"},
            ),
            ("update afterturn.scope_generations set erase = 1 where erase > 0", {"missing"}),
        ],
    )
    async def test_it_is_named(
        self,
        desk: Desk,
        database: Database,
        database_url: str,
        settings: Settings,
        statement: str,
        kinds: set[str],
    ) -> None:
        """What was done, and where."""
        await _some_erases(desk)
        await _as_superuser(database_url, settings, statement)
        report = await verify_database(database)
        assert {each.kind for each in report.defects} == kinds
        assert all(each.where and each.detail for each in report.defects)

    async def test_swapped_rows(
        self, desk: Desk, database: Database, database_url: str, settings: Settings
    ) -> None:
        """The order of the ids is the order of the chain."""
        await _some_erases(desk)
        await _as_superuser(
            database_url,
            settings,
            "update afterturn.erase_log set id = case id when 3 then 104 else 103 end "
            "where id in (3, 4);"
            "update afterturn.erase_log set id = id - 100 where id > 100",
        )
        report = await verify_database(database)
        assert {(each.where, each.kind) for each in report.defects} == {
            ("entry 3", "reordered"),
            ("entry 4", "reordered"),
        }


async def _as_superuser(url: str, settings: Settings, statements: str) -> None:
    conn = await connect(url, settings)
    try:
        await conn.execute("alter table afterturn.erase_log disable trigger all")
        await conn.execute("alter table afterturn.erase_log alter column id drop identity")
        await conn.execute(statements)
        await conn.execute("alter table afterturn.erase_log enable trigger all")
    finally:
        await conn.close()


class TestErased:
    async def test_a_known_scope_is_answered(self, desk: Desk, database: Database) -> None:
        """Its own entries and erases above it, oldest first; nothing about its neighbours."""
        await _some_erases(desk)
        found = await erased(database, CHAT_1)
        assert [(e.scope_path, e.what, e.derived) for e in found] == [
            (CHAT_1.path, "named", "erase"),
            (ALICE.path, "scope", "erase"),
        ]
        assert found[0].completed_at < found[1].completed_at
        assert [e.what for e in await erased(database, ACME)] == ["own"]
        assert await erased(database, MemoryScope.of("acme", "bob")) == ()

    async def test_it_says_who_and_why_and_how_much(self, desk: Desk, database: Database) -> None:
        """What the requester said, and rows by table."""
        await desk.stage(ALICE, "t1")
        request = {"derived": "erase", "requested_by": "dpo", "reason": "T-9"}
        await desk.run(await desk.enqueue("forget", ALICE, request))
        (entry,) = await erased(database, ALICE)
        assert (entry.requested_by, entry.reason) == ("dpo", "T-9")
        assert entry.counts["turns"] == 1
        assert entry.requested_at <= entry.completed_at


class TestHashes:
    @hypothesis.settings(max_examples=25)
    @hypothesis.given(values=strategies.lists(JSON, min_size=1, max_size=20))
    def test_jsonb_is_written_as_postgresql_writes_it(
        self, template_url: str, values: list[Any]
    ) -> None:
        """Any JSON without floats, which the log does not hold."""

        async def told() -> list[str]:
            conn = await asyncpg.connect(template_url)
            try:
                statement = "select array_agg(v::jsonb::text order by n) from unnest($1::text[])"
                return list(
                    await conn.fetchval(
                        f"{statement} with ordinality u(v, n)", [json.dumps(v) for v in values]
                    )
                )
            finally:
                await conn.close()

        assert [jsonb_text(value) for value in values] == asyncio.run(told())

    async def test_both_sides_compute_the_same(self, desk: Desk, database: Database) -> None:
        """SQL writes, Python verifies; in words of any script."""
        notes = ["", "plain", "\u00e4pfel \u2028 \u68a8 \U0001f347", '"quoted" \\ {}', "a\tb\nc"]
        for by in notes:
            request = {"derived": "erase", "requested_by": by, "reason": by[::-1]}
            await desk.run(await desk.enqueue("forget", ALICE, request))
        rows = await database.rows("select * from afterturn.erase_log")
        assert [entry_from(row).requested_by for row in rows] == notes
        assert all(hash_of(entry_from(row)) == row["hash"].hex() for row in rows)
