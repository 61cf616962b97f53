"""Reading the log, from the database or from an exported file, and exporting it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from afterturn.database import Connection, Database
from afterturn.erase_log.entries import LogEntry, LogHeader, entry_from
from afterturn.errors import MemoryContractError
from afterturn.model import Model

_HEADER = "select afterturn.installation_id() as database, afterturn.clock() as exported_at"
_HEADS = "select root_key, hash from afterturn.erase_log_heads order by root_key"
# In the order of the chains, which is the order of a file.
_ENTRIES = "select * from afterturn.erase_log order by root_key, id"
_PREFETCH: Final = 500


@dataclass(frozen=True)
class Placed:
    """An entry and where it was read, for people: `line 7`, `entry 12`."""

    where: str
    entry: LogEntry


@dataclass(frozen=True)
class Unreadable:
    """A line that is no entry, and why."""

    where: str
    why: str


@asynccontextmanager
async def log_snapshot(database: Database) -> AsyncIterator[Connection]:
    """One moment of the log, its heads, and what is compared with it."""
    async with (
        database.connection() as conn,
        conn.transaction(isolation="repeatable_read", readonly=True),
    ):
        yield conn


async def read_header(conn: Connection) -> LogHeader:
    """Which database this is, and where its chains end."""
    row = await conn.fetchrow(_HEADER)
    assert row is not None  # noqa: S101 - it has no from clause
    heads = {each["root_key"].hex(): each["hash"].hex() for each in await conn.fetch(_HEADS)}
    return LogHeader(database=row["database"], exported_at=row["exported_at"], heads=heads)


async def read_entries(conn: Connection) -> AsyncIterator[Placed]:
    """Every entry of the database, chain by chain, in a stream."""
    async for row in conn.cursor(_ENTRIES, prefetch=_PREFETCH):
        yield Placed(f"entry {row['id']}", entry_from(row))


async def export_log(database: Database) -> AsyncIterator[Model]:
    """The header, then every entry: each a line of an exported log, of one moment."""
    async with log_snapshot(database) as conn:
        yield await read_header(conn)
        async for placed in read_entries(conn):
            yield placed.entry


class LogFile:
    """An exported log. Raises `MemoryContractError` when the file does not begin like one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            first = file.readline()
        try:
            self.header = LogHeader.model_validate_json(first, strict=True)
        except ValidationError:
            raise MemoryContractError(
                "The file is no exported erase log",
                detail=path.name,
                hint="`afterturn erase-log` writes one; its first line names the database.",
            ) from None

    def entries(self) -> Iterator[Placed | Unreadable]:
        """Every line after the first."""
        with self._path.open("rb") as file:
            file.readline()
            yield from _parsed(file)


def _parsed(lines: Iterable[bytes]) -> Iterator[Placed | Unreadable]:
    for number, line in enumerate(lines, start=2):
        where = f"line {number}"
        try:
            yield Placed(where, LogEntry.model_validate_json(line, strict=True))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"])) or "the line"
            yield Unreadable(where, f"{field}: {first['msg']}")
