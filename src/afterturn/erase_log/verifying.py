"""Whether a log is whole: each entry has its hash, follows the one before it, and none is missing.

The chain alone cannot show that its end was cut off, or that all of it was written anew. So it is
compared with what stands elsewhere: the heads (in the database, or on an export's first line),
receipts of erases, and the erase numbers that every reader checks, each of which has an entry.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from afterturn.database import Connection, Database
from afterturn.erase_log.entries import Hash, LogEntry, LogHeader, genesis, hash_of
from afterturn.erase_log.reading import (
    LogFile,
    Placed,
    Unreadable,
    log_snapshot,
    read_entries,
    read_header,
)
from afterturn.model import Model

_RECEIPTS = """
select id, receipt ->> 'log_head' as head from afterturn.jobs
where finished_at is not null and kind = 'forget' and receipt ? 'log_head' order by id
"""
_NUMBERS = "select scope_key, erase from afterturn.scope_generations where erase > 0"

DefectKind = Literal["changed", "missing", "reordered", "repeated", "unreadable"]


class LogDefect(Model):
    """Something that is not as it was written: where, of what kind, and in words."""

    where: str
    kind: DefectKind
    detail: str

    def __str__(self) -> str:
        return f"{self.where}: {self.detail}"


class LogReport(Model):
    """What a verification found; the log is whole when there are no defects."""

    database: str
    entries: int
    roots: int
    receipts: int
    defects: tuple[LogDefect, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.defects


def verify_file(file: LogFile, receipts: Iterable[Hash] = ()) -> LogReport:
    """Verify an exported log by itself; `receipts` are log heads kept elsewhere."""
    check = LogCheck(file.header)
    for item in file.entries():
        check.add(item)
    check.compare_receipts({f"receipt {head[:12]}": head for head in receipts})
    return check.report()


async def verify_database(database: Database, receipts: Iterable[Hash] = ()) -> LogReport:
    """Verify the database's log: its chains, heads, receipts of finished erases, and numbers."""
    async with log_snapshot(database) as conn:
        check = LogCheck(await read_header(conn))
        await _add_all(check, read_entries(conn))
        known = {f"job {row['id']}": row["head"] for row in await conn.fetch(_RECEIPTS)}
        known |= {f"receipt {head[:12]}": head for head in receipts}
        check.compare_receipts(known)
        check.compare_numbers(await _numbers(conn))
    return check.report()


async def _add_all(check: LogCheck, entries: AsyncIterator[Placed]) -> None:
    async for placed in entries:
        check.add(placed)


async def _numbers(conn: Connection) -> dict[str, int]:
    return {row["scope_key"].hex(): row["erase"] for row in await conn.fetch(_NUMBERS)}


@dataclass(frozen=True)
class _Link:
    """What the chain needs of an entry. `own` is its hash as computed, `said` as it stands."""

    where: str
    previous: str
    said: str
    own: str

    @property
    def is_changed(self) -> bool:
        return self.said != self.own


class LogCheck:
    """Takes entries in their order and finds what is wrong."""

    def __init__(self, header: LogHeader) -> None:
        self._header = header
        self._defects: list[LogDefect] = []
        self._chains: dict[str, list[_Link]] = defaultdict(list)
        self._roots: list[tuple[str, str]] = []
        self._hashes: set[str] = set()
        self._generations: dict[str, int] = {}
        self._receipts = 0

    def add(self, item: Placed | Unreadable) -> None:
        """Take the next entry."""
        if isinstance(item, Unreadable):
            self._found(item.where, "unreadable", f"is no entry ({item.why})")
            return
        entry = item.entry
        link = _Link(item.where, entry.previous_hash, entry.hash, hash_of(entry))
        if link.is_changed:
            self._found(item.where, "changed", f"{_about(entry)} was changed")
        self._chains[entry.root_key].append(link)
        self._roots.append((item.where, entry.root_key))
        self._hashes |= {link.said, link.own}
        if entry.replays:
            self._hashes.add(entry.replays)
        key = entry.scope_key
        self._generations[key] = max(entry.generation, self._generations.get(key, 0))

    def compare_receipts(self, heads: Mapping[str, str]) -> None:
        """Every receipt's entry is there."""
        self._receipts += len(heads)
        for where, head in heads.items():
            if head not in self._hashes:
                self._found(where, "missing", f"its entry {head[:12]} is missing")

    def compare_numbers(self, erase_numbers: Mapping[str, int]) -> None:
        """Every scope's erase number is that of its last entry."""
        for key in sorted(erase_numbers.keys() | self._generations.keys()):
            number, logged = erase_numbers.get(key, 0), self._generations.get(key, 0)
            if number != logged:
                self._found(
                    f"scope {key[:12]}",
                    "missing",
                    f"its erase number is {number}, its last entry's {logged}: "
                    + ("an entry is missing" if number > logged else "the number went back"),
                )

    def report(self) -> LogReport:
        """Everything that was found, chains and their ends included."""
        defects = [*self._defects, *self._misplaced_roots()]
        for root in sorted(self._chains.keys() | self._header.heads.keys()):
            defects += _chain_defects(root, self._chains[root], self._header.heads.get(root))
        return LogReport(
            database=self._header.database,
            entries=len(self._roots),
            roots=sum(bool(chain) for chain in self._chains.values()),
            receipts=self._receipts,
            defects=tuple(defects),
        )

    def _found(self, where: str, kind: DefectKind, detail: str) -> None:
        self._defects.append(LogDefect(where=where, kind=kind, detail=detail))

    def _misplaced_roots(self) -> Iterator[LogDefect]:
        """Chains stand one after the other, in the order of their roots."""
        in_order = sorted(root for _, root in self._roots)
        for (where, root), expected in zip(self._roots, in_order, strict=True):
            if root != expected:
                yield LogDefect(
                    where=where, kind="reordered", detail="stands among entries of another root"
                )


def _chain_defects(root: str, chain: list[_Link], head: str | None) -> Iterator[LogDefect]:
    """Missing, repeated and reordered entries of one root."""
    order, defects = _linked(root, chain)
    yield from defects
    for at, position in enumerate(order):
        if position != at:
            link = chain[at]
            yield LogDefect(
                where=link.where,
                kind="reordered",
                detail=f"entry {link.own[:12]} is not in its place",
            )
    ends = {genesis(root)} if not order else {chain[order[-1]].said, chain[order[-1]].own}
    if head is None and all(link.is_changed for link in chain):
        return  # a changed root, said already
    if head not in ends:
        yield LogDefect(
            where=f"root {root[:12]}",
            kind="missing",
            detail="entries at its end are missing, or its head was changed"
            if head is not None
            else "its head is missing",
        )


def _linked(root: str, chain: list[_Link]) -> tuple[list[int], list[LogDefect]]:
    """The positions in the order of the links; where a link leads nowhere, the next in the file."""
    followers: dict[str, deque[int]] = defaultdict(deque)
    for position, link in enumerate(chain):
        followers[link.previous].append(position)
    order: list[int] = []
    defects: list[LogDefect] = []
    left = dict.fromkeys(range(len(chain)))
    ends: tuple[str, ...] = (genesis(root),)
    while left:
        linked = next((followers[end] for end in ends if followers[end]), None)
        if linked is not None:
            position = linked.popleft()
        else:
            position = next(iter(left))
            followers[chain[position].previous].remove(position)
            defect = _unlinked(chain, position, order)
            if defect is not None:
                defects.append(defect)
        del left[position]
        order.append(position)
        ends = (chain[position].said, chain[position].own)
    return order, defects


def _unlinked(chain: list[_Link], position: int, order: list[int]) -> LogDefect | None:
    link = chain[position]
    if any(chain[before].own == link.own for before in order):
        return LogDefect(where=link.where, kind="repeated", detail="is there twice")
    if link.is_changed:
        return None  # said already, and its link cannot be believed
    return LogDefect(
        where=link.where, kind="missing", detail=f"an entry before {link.own[:12]} is missing"
    )


def _about(entry: LogEntry) -> str:
    return f"entry {entry.hash[:12]}, completed {entry.completed_at:%Y-%m-%d %H:%M:%S},"
