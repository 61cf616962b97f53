"""A database restored from an older backup is brought after the erases that it missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from afterturn.database import Database
from afterturn.erase_log.lookup import erased
from afterturn.erase_log.reading import LogFile, export_log
from afterturn.erase_log.replaying import Replay, ReplayReport
from afterturn.erase_log.verifying import verify_database
from afterturn.errors import MemoryContractError
from afterturn.generations import advance, lock
from afterturn.migrations import migrate
from afterturn.parts import PostgresParts
from afterturn.records import Source
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from tests.office.restoring import dump, restored, tool
from tests.pipeline.conftest import ALICE, CHAT_1, CHAT_2, Desk, fact
from tests.schema.databases import new_database
from tests.schema.filling import fill

pytestmark = pytest.mark.skipif(
    tool("pg_dump") is None or tool("psql") is None, reason="pg_dump and psql are not installed"
)

ACME = ALICE.ancestor(1)
BOB = ACME.child("bob")
CAROL = MemoryScope.of("carol")
DAVE = MemoryScope.of("dave")
DEAD_BROKER = "redis://127.0.0.1:1/0"

# Everything that can be read by anybody, but for what each database draws for itself.
_HELD = """
select 'turn' as kind, path, turn_id as id, query as text, outcome as more from afterturn.turns
union all
select 'record', path, record_id, text, turn_path from afterturn.memories
union all
select 'source', path, record_id, turn_path, turn_id from afterturn.memory_sources
order by 1, 2, 3, 4, 5
"""


class Office:
    """A database, its backup, and a restored copy."""

    def __init__(self, desk: Desk, server_url: str, folder: Path) -> None:
        self.desk = desk
        self._server_url = server_url
        self._folder = folder

    async def back_up(self) -> None:
        """As every night."""
        await asyncio.to_thread(
            dump, str(self.desk.settings.database_url), self._folder / "backup.sql"
        )

    async def log(self) -> LogFile:
        """The log as it was exported before the database was lost."""
        return await self.log_of(self.desk.database)

    async def log_of(self, database: Database) -> LogFile:
        """That of any database."""
        file = self._folder / f"log-{len(list(self._folder.iterdir()))}.jsonl"
        return await export_to(database, file)

    @asynccontextmanager
    async def restore(self) -> AsyncIterator[PostgresParts]:
        """The backup in a new database, with nothing else at work on it."""
        async with restored(self._server_url, self._folder / "backup.sql") as url:
            settings = self.desk.settings.model_copy(
                update={"database_url": url, "broker_url": DEAD_BROKER}
            )
            parts = await PostgresParts.open(settings)
            try:
                yield parts
            finally:
                await parts.close()


async def export_to(database: Database, file: Path) -> LogFile:
    lines = [line.model_dump_json() async for line in export_log(database)]
    await asyncio.to_thread(file.write_text, "".join(f"{line}\n" for line in lines))
    return LogFile(file)


async def replay(parts: PostgresParts, log: LogFile) -> ReplayReport:
    return await Replay(parts.database, parts.lifecycle).run(log)


async def held(database: Database) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await database.rows(_HELD)]


@pytest.fixture
def office(desk: Desk, server_url: str, tmp_path: Path) -> Office:
    return Office(desk, server_url, tmp_path)


async def _learn(
    desk: Desk, scope: MemoryScope, turn_id: str, session: str, up: MemoryScope
) -> None:
    await desk.record(await desk.stage(scope, turn_id, query=f"said {turn_id}", session=session))
    claimed = await desk.claim_extract(scope, turn_id)
    own = Source(turn_id=turn_id, turn_path=scope.path)
    await desk.extract(claimed, fact(scope, f"own-{turn_id}", f"own {turn_id}", [own]),
        fact(up, f"up-{turn_id}", f"up {turn_id}", [own]))  # fmt: skip


async def _some_months(desk: Desk) -> None:
    """Conversations of some people, with sessions, and facts promoted to their users."""
    for turn_id, session in (("t1", "a"), ("t2", "b"), ("t3", "b")):
        await _learn(desk, CHAT_1, turn_id, session, ALICE)
    await _learn(desk, CHAT_2, "t4", "a", ALICE)
    await _learn(desk, BOB, "t5", "a", ACME)
    await _learn(desk, CAROL, "t6", "a", CAROL)


async def test_a_restored_database_holds_what_the_lost_one_held(office: Office) -> None:
    """Erased by scope, by session, by turn, with and without what was learned elsewhere."""
    desk = office.desk
    await _some_months(desk)
    await desk.forget(DAVE)
    tokens = {scope: await desk.token(scope) for scope in (BOB, DAVE)}
    await office.back_up()
    before = await held(desk.database)
    await desk.forget(CHAT_1, named={"turn_ids": [], "record_ids": [], "session": "b"})
    await desk.forget(CHAT_2, named={"turn_ids": ["t4"], "record_ids": ["x"]})
    await desk.forget(BOB, derived="keep")
    await desk.forget(DAVE)
    async with desk.database.connection() as conn, conn.transaction():
        await lock(conn, [CAROL.path], exclusive=True)
        await advance(conn, CAROL, requested_by="app", reason="T-8")
    left = await held(desk.database)
    log = await office.log()

    async with office.restore() as parts:
        assert await held(parts.database) == before
        report = await replay(parts, log)
        assert [(each.scope_path, each.what) for each in report.erased] == [
            (CHAT_1.path, "named"),
            (CHAT_2.path, "named"),
            (BOB.path, "scope"),
        ]
        # The two named erases took what had been learned at the user as well.
        assert (report.entries, report.known, report.newer) == (8, 1, 0)
        assert (report.not_held, report.advanced) == (1, 2)
        assert [each[1:] for each in report.own] == [(CAROL.path, "app", "T-8")]
        assert _without_links(await held(parts.database)) == _without_links(left)
        whole = await verify_database(parts.database)
        assert whole.defects == ()

        # A turn that began before the erase is still refused, in whichever database.
        other = Desk(parts.database, parts._settings)
        for scope, token in tokens.items():
            assert (await other.stage(scope, "late", token=token)).verdict == "stale"
        (entry,) = await erased(parts.database, BOB)
        (first,) = await erased(desk.database, BOB)
        assert entry.replays == first.hash
        assert [each.what for each in await erased(parts.database, DAVE)] == ["scope", "scope"]

        again = await replay(parts, log)
        assert (again.known, again.erased, again.not_held, again.own) == (8, (), 0, ())
        assert again.newer == 0
        await other.forget(DAVE)
        assert (await replay(parts, log)).newer == 1


def _without_links(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [row for row in rows if not str(row[3]).startswith("erased/")]


async def test_a_replay_that_breaks_off_goes_on(office: Office) -> None:
    """Wherever it ends, the next one does the rest, and each erase is in the log once."""
    desk = office.desk
    await _some_months(desk)
    await office.back_up()
    for scope in (CHAT_1, CHAT_2, BOB, CAROL):
        await desk.forget(scope)
    log = await office.log()
    total = await desk.value("select count(*) from afterturn.erase_log")

    class Killed(Exception):
        pass

    async with office.restore() as parts:
        for lives in range(total):

            def until(done: int, _total: int, most: int = lives % 2) -> None:
                if done > most:
                    raise Killed

            one = Replay(parts.database, parts.lifecycle, on_progress=until)
            try:
                await one.run(log)
                break
            except Killed:
                continue
        await replay(parts, log)
        assert await parts.database.value("select count(*) from afterturn.memories") == 0
        repeated = await parts.database.rows(
            "select detail ->> 'replays' as of from afterturn.erase_log where detail ? 'replays'"
        )
        assert len({row["of"] for row in repeated}) == len(repeated) == total
        assert (await verify_database(parts.database)).is_whole


async def test_an_erase_under_way_is_waited_for(office: Office) -> None:
    """A job that an earlier replay enqueued is not enqueued again."""
    desk = office.desk
    await _some_months(desk)
    await office.back_up()
    await desk.forget(BOB)
    log = await office.log()
    async with office.restore() as parts:
        replaying = Replay(parts.database, parts.lifecycle)
        wait = parts.lifecycle.wait

        async def break_off(*_: Any, **__: Any) -> Any:
            raise ConnectionError

        parts.lifecycle.wait = break_off  # type: ignore[method-assign]  # as if killed just then
        with pytest.raises(ConnectionError):
            await replaying.run(log)
        parts.lifecycle.wait = wait  # type: ignore[method-assign]
        report = await replay(parts, log)
        assert [each.scope_path for each in report.erased] == [BOB.path]
        forgets = "select count(*) from afterturn.jobs where kind = 'forget'"
        assert await parts.database.value(forgets) == 1


async def test_a_log_of_a_restored_database_repeats_what_it_repeated(office: Office) -> None:
    """The backup is restored a second time, with the log that the first restore went on with."""
    desk = office.desk
    await _some_months(desk)
    await office.back_up()
    await desk.forget(CHAT_1, named={"turn_ids": ["t1"], "record_ids": []})
    first = await office.log()
    async with office.restore() as parts:
        await replay(parts, first)
        second = await office.log_of(parts.database)
        left = await held(parts.database)
    async with office.restore() as parts:
        report = await replay(parts, second)
        assert [each.what for each in report.erased] == ["named"]
        assert _without_links(await held(parts.database)) == _without_links(left)
        # The first log has nothing that this database lacks.
        assert (await replay(parts, first)).erased == ()


async def test_acknowledged_turns_of_scopes_that_were_only_advanced_are_kept(
    office: Office,
) -> None:
    """As when the erase was done first: they get the new number."""
    desk = office.desk
    await _some_months(desk)
    staged = await desk.stage(ACME, "waiting")
    await office.back_up()
    await desk.record(staged)
    await desk.forget(BOB)  # what it had promoted to ACME goes, so ACME is advanced
    log = await office.log()
    async with office.restore() as parts:
        await replay(parts, log)
        other = Desk(parts.database, parts._settings)
        assert await other.record(staged) == "recorded 1"


async def test_such_turns_are_kept_where_the_erased_scope_did_not_come_back(
    office: Office,
) -> None:
    """The erased user came after the backup; the scope above was advanced for them."""
    desk = office.desk
    staged = await desk.stage(ACME, "waiting")
    await office.back_up()
    await desk.record(staged)
    await _learn(desk, BOB, "t5", "a", ACME)
    await desk.forget(BOB)
    log = await office.log()
    async with office.restore() as parts:
        report = await replay(parts, log)
        assert (report.erased, report.not_held, report.advanced) == ((), 1, 1)
        other = Desk(parts.database, parts._settings)
        assert await other.record(staged) == "recorded 1"
        assert (await verify_database(parts.database)).is_whole


async def _counts(database: Database) -> list[int]:
    tables = ("turns", "memories", "jobs", "erase_log", "scope_generations")
    return [await database.value(f"select count(*) from afterturn.{each}") for each in tables]


class TestRefused:
    async def test_another_databases_log(
        self, office: Office, server_url: str, tmp_path: Path, settings: Settings
    ) -> None:
        """Its keys are others, so it could find nothing; said, instead of a report of nothing."""
        await _some_months(office.desk)
        async with new_database(server_url) as url:
            await migrate(url, settings)
            other = Database(url, settings, pool_size=1)
            await Desk(other, settings).forget(BOB)
            log = await export_to(other, tmp_path / "other.jsonl")
            await other.close()
        await office.back_up()
        async with office.restore() as parts:
            before = await _counts(parts.database)
            with pytest.raises(MemoryContractError, match="another database"):
                await replay(parts, log)
            assert await _counts(parts.database) == before

    async def test_a_broken_chain(self, office: Office, tmp_path: Path) -> None:
        """Whatever is wrong with it: named, and nothing is erased."""
        desk = office.desk
        await _some_months(desk)
        await office.back_up()
        for scope in (CHAT_1, CHAT_2, BOB):
            await desk.forget(scope)
        await export_to(desk.database, tmp_path / "log")
        lines = (tmp_path / "log").read_text().splitlines(keepends=True)
        broken = {
            "changed": [*lines[:2], lines[2].replace('"derived"', '"scope"', 1), *lines[3:]],
            "missing": [*lines[:2], *lines[3:]],
            "not in its place": [*lines[:1], lines[2], lines[1], *lines[3:]],
            "no entry": [*lines, "{}\n"],
            "at its end are missing": lines[:-1],
        }
        async with office.restore() as parts:
            before = await _counts(parts.database)
            for says, content in broken.items():
                file = tmp_path / "broken.jsonl"
                await asyncio.to_thread(file.write_text, "".join(content))
                with pytest.raises(MemoryContractError, match="not whole") as raised:
                    await replay(parts, LogFile(file))
                assert says in raised.value.detail
            assert await _counts(parts.database) == before


async def test_every_column_with_a_path_is_looked_through(desk: Desk, database: Database) -> None:
    """A scope that only one column of one table names is found by its key."""
    await fill(desk)
    await database.value(
        "insert into afterturn.token_usage (path) values ('v1/acme/') on conflict do nothing"
    )
    await database.value(
        """
        insert into afterturn.fact_statements
        select 'v1/a/', 'k', 'v1/a/', 't', now(), now(), false, decode(md5('x'), 'hex'),
            'semantic', 'o', 'x', '{}', 0.5, now()
        """
    )
    columns = await database.rows(
        "select c.relname, a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid "
        "where c.relnamespace = 'afterturn'::regnamespace and c.relkind = 'r' "
        "and a.attname in ('path', 'turn_path') and not a.attisdropped"
    )
    assert len(columns) > 8
    for table, column in columns:
        only = f"v1/only/{table}-{column}/"
        async with database.connection() as conn:
            transaction = conn.transaction()
            await transaction.start()
            moved = await conn.execute(
                f"update afterturn.{table} set {column} = $1 where ctid = (select ctid from "
                f"afterturn.{table} where {column} is not null limit 1)",
                only,
            )
            assert moved == "UPDATE 1", table
            found = await conn.fetch(
                "select path from afterturn.paths_of_keys(array[afterturn.scope_key($1)])", only
            )
            await transaction.rollback()
        assert [row["path"] for row in found] == [only], (table, column)
