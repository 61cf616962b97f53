"""What an erase leaves on disk, and getting rid of it.

A DELETE marks rows; their bytes stay in the table's pages, its indexes and the planner's samples
until they are overwritten. Compacting writes every table anew without them. It cannot do so while
a transaction is open that began before the erase, so such transactions are waited for first. The
write-ahead log holds what was written for as long as the server keeps it, and can be recycled
here; replicas and backups are outside anybody's reach from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import asyncpg

from afterturn.database import connect, translating
from afterturn.errors import ConfigurationError, MemoryUnavailable
from afterturn.model import Model
from afterturn.settings import Settings

_TABLES = """
select c.relname as name, format('vacuum (full, analyze) afterturn.%I', c.relname) as statement,
    pg_has_role(c.relowner, 'usage') as is_ours
from pg_class c where c.relnamespace = 'afterturn'::regnamespace and c.relkind = 'r'
order by c.relname
"""
_SIZE = "select pg_total_relation_size(format('afterturn.%I', $1::text)::regclass)"
_LOCK_TIMEOUT = "set lock_timeout = '1s'"
_NEXT_XID = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint % 4294967296"
# Whoever can still see what was deleted before: sessions of this database, standbys and slots.
_OLD_SNAPSHOTS = """
select 'session ' || a.pid as who from pg_stat_activity a
where a.pid <> pg_backend_pid() and a.backend_xmin is not null
    and (a.datname = current_database() or a.backend_type = 'walsender')
    and age(a.backend_xmin) > age($1::text::xid)
union all
select 'replication slot ' || s.slot_name from pg_replication_slots s
where greatest(age(s.xmin), age(s.catalog_xmin)) > age($1::text::xid)
union all
select 'prepared transaction of ' || p.owner from pg_prepared_xacts p
where p.database = current_database() and age(p.transaction) > age($1::text::xid)
"""
_RIGHTS = """
select r.rolsuper as is_superuser, r.rolsuper or (pg_has_role('pg_checkpoint', 'usage')
    and has_function_privilege('pg_catalog.pg_switch_wal()', 'execute')) as may_recycle_wal
from pg_roles r where r.rolname = current_user
"""
# ANALYZE leaves the samples of a table that became empty as they were.
_DROP_SAMPLES = """
delete from pg_catalog.pg_statistic s using pg_class c
where c.oid = s.starelid and c.relnamespace = 'afterturn'::regnamespace
"""
_STATISTICS = "vacuum (full) pg_catalog.pg_statistic"
_CHECKPOINT = "checkpoint"
_SWITCH_WAL = "select pg_switch_wal()"
# What keeps segments of the log, or what they held, beyond a checkpoint.
_WAL_KEPT_BY = """
select s.name || ' = ' || s.setting as why from pg_settings s
where (s.name = 'wal_recycle' and s.setting = 'on')
    or (s.name = 'archive_mode' and s.setting <> 'off')
    or (s.name = 'wal_keep_size' and s.setting <> '0')
union all select 'replication slot ' || r.slot_name from pg_replication_slots r
union all select 'standby ' || coalesce(nullif(a.application_name, ''), a.pid::text)
    from pg_stat_replication a
"""
LOCK_TRIES: Final = 60
SNAPSHOT_WAIT_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.1


class CompactReport(Model):
    """Bytes of each table with its indexes, before and after.

    `statistics` says whether the planner's samples were written anew, too (only a superuser may).
    `wal_recycled` says whether the write-ahead log was, and `wal_kept_by` what may keep old parts
    of it nevertheless.
    """

    bytes_before: dict[str, int]
    bytes_after: dict[str, int]
    statistics: bool
    wal_recycled: bool
    wal_kept_by: tuple[str, ...]


async def compact(
    url: str,
    settings: Settings,
    *,
    recycle_wal: bool = False,
    wait_seconds: float = SNAPSHOT_WAIT_SECONDS,
    on_table: Callable[[str], None] = lambda _: None,
) -> CompactReport:
    """Write every table anew; each is locked for as long as that takes.

    Raises `MemoryUnavailable` when an older transaction or a lock does not end in time (nothing is
    lost, it can be repeated), `ConfigurationError` when the role does not own the tables.
    """
    conn = await connect(url, settings)
    try:
        await conn.execute(_LOCK_TIMEOUT)
        return await _compact(conn, recycle_wal, wait_seconds, on_table)
    finally:
        await conn.close()


async def _compact(
    conn: asyncpg.Connection[Any],
    recycle_wal: bool,
    wait_seconds: float,
    on_table: Callable[[str], None],
) -> CompactReport:
    with translating():
        tables = await conn.fetch(_TABLES)
        rights = await conn.fetchrow(_RIGHTS)
    assert rights is not None  # noqa: S101 - we are one of the roles
    is_superuser: bool = rights["is_superuser"]
    foreign = [row["name"] for row in tables if not row["is_ours"]]
    if foreign:
        raise ConfigurationError(
            "This role may not compact the tables",
            detail=f"it does not own {', '.join(foreign)}",
            hint="Run it with the URL of the role that ran `afterturn migrate`.",
        )
    if recycle_wal and not rights["may_recycle_wal"]:
        raise ConfigurationError(
            "This role may not recycle the write-ahead log",
            hint="Grant it pg_checkpoint and the execution of pg_switch_wal, or leave out --wal.",
        )
    if is_superuser:
        with translating():
            await conn.execute(_DROP_SAMPLES)
    await _wait_for_old_snapshots(conn, wait_seconds)
    before, after = {}, {}
    for row in tables:
        on_table(row["name"])
        before[row["name"]] = await _size(conn, row["name"])
        await _rewrite(conn, row["statement"], row["name"])
        after[row["name"]] = await _size(conn, row["name"])
    if is_superuser:
        await _rewrite(conn, _STATISTICS, "pg_statistic")
    kept_by: list[str] = []
    if recycle_wal:
        kept_by = await _recycle_wal(conn)
    return CompactReport(
        bytes_before=before,
        bytes_after=after,
        statistics=is_superuser,
        wal_recycled=recycle_wal,
        wal_kept_by=tuple(kept_by),
    )


async def _wait_for_old_snapshots(conn: asyncpg.Connection[Any], seconds: float) -> None:
    """Until nobody can see what was deleted before now: only then is it left out."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    with translating():
        xid = str(await conn.fetchval(_NEXT_XID))
        while holders := [row["who"] for row in await conn.fetch(_OLD_SNAPSHOTS, xid)]:
            if loop.time() >= deadline:
                raise MemoryUnavailable(
                    "An open transaction still sees what was erased",
                    detail=f"{', '.join(holders[:5])}, waited {seconds:g} s",
                    hint="End it, then compact again.",
                )
            await asyncio.sleep(_POLL_SECONDS)


async def _size(conn: asyncpg.Connection[Any], table: str) -> int:
    with translating():
        return int(await conn.fetchval(_SIZE, table))


async def _rewrite(conn: asyncpg.Connection[Any], statement: str, table: str) -> None:
    """Nobody is made to queue behind us for long: a lock that does not come is tried for anew."""
    for _ in range(LOCK_TRIES):
        try:
            with translating():
                await conn.execute(statement)
                return
        except MemoryUnavailable as error:
            if "55P03" not in error.detail:  # lock_not_available
                raise
            await asyncio.sleep(_POLL_SECONDS)
    raise MemoryUnavailable(
        "A table could not be locked",
        detail=f"{table}, tried {LOCK_TRIES} times",
        hint="End long transactions, then compact again.",
    )


async def _recycle_wal(conn: asyncpg.Connection[Any]) -> list[str]:
    """Have the server begin a new segment and let go of those before it."""
    with translating():
        for statement in (_CHECKPOINT, _SWITCH_WAL, _CHECKPOINT):
            await conn.execute(statement)
        return [row["why"] for row in await conn.fetch(_WAL_KEPT_BY)]
