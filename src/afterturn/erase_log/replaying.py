"""Repeating erases in a database that was restored from a backup taken before them.

The log holds no readable path. But the restored database has the same key, so the scopes that it
holds give the same keyed hashes, and each entry that it lacks finds its scope again, if anything
of it came back. What is repeated is an ordinary erase: ordered, fenced, in the log, its entry
naming the one that it repeats. So a replay that breaks off goes on where it ended.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from afterturn.database import Database
from afterturn.erase_log.entries import LogEntry
from afterturn.erase_log.reading import LogFile, Placed
from afterturn.erase_log.verifying import verify_file
from afterturn.errors import MemoryContractError
from afterturn.lifecycle import PostgresLifecycle, forget_request
from afterturn.model import Model
from afterturn.scope import MemoryScope, scope_from_stored_path

_INSTALLATION = "select afterturn.installation_id()"
_KNOWN = """
select encode(l.hash, 'hex') as hash, l.detail ->> 'replays' as replays, l.what
from afterturn.erase_log l
"""
_PATHS = "select * from afterturn.paths_of_keys($1::bytea[])"
_NAMED_AGAIN = "select afterturn.named_again($1, $2::jsonb)"
_UNDER_WAY = """
select id from afterturn.jobs
where kind = 'forget' and finished_at is null and request -> 'logged' ->> 'replays' = $1
"""
_REPLAY_ENTRY = "select afterturn.replay_entry($1, $2, $3, $4, $5, $6::jsonb, $7, $8, $9)"


class ReplayedErase(Model):
    """An erase that was repeated: where in the log, its scope, what it took now."""

    where: str
    scope_path: str
    what: str
    counts: dict[str, int]


class ReplayReport(Model):
    """What a replay did.

    Of `entries` in the log the database had `known` itself or repeated before. `erased` were
    repeated; of `not_held` nothing had come back; `advanced` moved numbers only (what was learned
    elsewhere goes with the erase it belongs to). `own` are an application's own erases, whose rows
    afterturn cannot erase: `(where, scope path or key, who, why)`. `newer` erases stand in the
    database only: it went on after it was restored.
    """

    entries: int
    known: int
    newer: int
    erased: tuple[ReplayedErase, ...] = ()
    not_held: int = 0
    advanced: int = 0
    own: tuple[tuple[str, str, str, str], ...] = ()


class Replay:
    """Applies an exported log to a restored database."""

    def __init__(
        self,
        database: Database,
        lifecycle: PostgresLifecycle,
        *,
        on_progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self._on_progress = on_progress

    async def run(self, file: LogFile) -> ReplayReport:
        """Repeat every erase of the log that the database lacks, in its order.

        Run it before anything else uses the restored database. Raises `MemoryContractError`, with
        nothing changed, for another database's log and for one that is not whole.
        """
        entries = await self._accepted(file)
        here = await self._database.rows(_KNOWN)
        known = {row["hash"] for row in here} | {row["replays"] for row in here} - {None}
        missing = [p for p in entries if not {p.entry.hash, p.entry.replays} & known]
        paths = await self._paths(missing)
        in_file = {p.entry.hash for p in entries} | {p.entry.replays for p in entries} - {None}
        newer = sum(
            row["what"] != "derived" and not {row["hash"], row["replays"]} & in_file for row in here
        )
        erased: list[ReplayedErase] = []
        own: list[tuple[str, str, str, str]] = []
        not_held = advanced = 0
        for done, placed in enumerate(missing):
            self._on_progress(done, len(missing))
            entry = placed.entry
            path = paths.get(entry.scope_key)
            if entry.what in ("scope", "named") and path is not None:
                erased.append(await self._erase(placed, scope_from_stored_path(path)))
                continue
            await self._note(entry, path)
            if entry.what in ("scope", "named"):
                not_held += 1
            elif entry.what == "derived":
                advanced += 1
            else:
                shown = path.removesuffix("/") if path else entry.scope_key
                own.append((placed.where, shown, entry.requested_by, entry.reason))
        self._on_progress(len(missing), len(missing))
        return ReplayReport(
            entries=len(entries),
            known=len(entries) - len(missing),
            newer=newer,
            erased=tuple(erased),
            not_held=not_held,
            advanced=advanced,
            own=tuple(own),
        )

    async def _accepted(self, file: LogFile) -> list[Placed]:
        here = await self._database.value(_INSTALLATION)
        if file.header.database != here:
            raise MemoryContractError(
                "The log is of another database",
                detail=f"the log says {file.header.database[:12]}, this is {here[:12]}",
                hint="A restored database keeps the identity of the one it is a copy of.",
            )
        report = await asyncio.to_thread(verify_file, file)
        if not report.is_whole:
            raise MemoryContractError(
                "The log is not whole, so nothing was erased",
                detail=f"{report.defects[0]}; {len(report.defects)} defects in all",
                hint="`afterturn verify-erase-log` names them all; use another copy.",
            )
        return [item for item in file.entries() if isinstance(item, Placed)]

    async def _paths(self, missing: Sequence[Placed]) -> dict[str, str]:
        """The path of each scope of which anything is held, by its key."""
        keys = [bytes.fromhex(key) for key in {placed.entry.scope_key for placed in missing}]
        rows = await self._database.rows(_PATHS, keys)
        return {row["scope_key"].hex(): row["path"] for row in rows}

    async def _erase(self, placed: Placed, scope: MemoryScope) -> ReplayedErase:
        entry = placed.entry
        job_id = await self._database.value(_UNDER_WAY, entry.replays or entry.hash)
        if job_id is None:
            request = await self._request(entry, scope)
            job_id = await self._lifecycle.enqueue("forget", scope, request)
        receipt = await self._lifecycle.wait(job_id, scope)
        return ReplayedErase(
            where=placed.where,
            scope_path=scope.path,
            what=entry.what,
            counts={table: count for table, count in receipt.counts.items() if count},
        )

    async def _request(self, entry: LogEntry, scope: MemoryScope) -> dict[str, Any]:
        named = None
        if entry.what == "named":
            named = await self._database.value(_NAMED_AGAIN, scope.stored_path, entry.detail)
        request = forget_request(
            derived="keep" if entry.detail.get("derived") == "keep" else "erase",
            requested_by=entry.requested_by,
            reason=entry.reason,
            named=named,
        )
        return request | {"logged": _logged(entry)}

    async def _note(self, entry: LogEntry, path: str | None) -> None:
        """Move the number and log it; nobody queues for the exclusive lock."""
        while not await self._database.value(
            _REPLAY_ENTRY,
            path,
            bytes.fromhex(entry.root_key),
            bytes.fromhex(entry.scope_key),
            entry.generation,
            entry.what or "own",
            _logged(entry),
            entry.requested_by,
            entry.reason,
            entry.requested_at,
        ):
            await asyncio.sleep(random.uniform(0.01, 0.05))


def _logged(entry: LogEntry) -> dict[str, Any]:
    """What the entry said, and which erase is repeated: of a repetition, the first one."""
    return {**entry.detail, "replays": entry.replays or entry.hash}
