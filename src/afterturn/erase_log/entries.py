"""Entries of the log, as an auditor gets them: JSON, hashes in hex, paths only as keyed hashes.

An entry's hash is SHA-256 over the hash before it in its root's chain and the hashes of its fields,
in the order of `hash_of`; the first one follows the hash of the root's key. The database computes
it in SQL when it writes (`afterturn.erase_log_hash`), this module when it verifies.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal

import asyncpg
from pydantic import Field

from afterturn.intake import Time
from afterturn.model import Model

Key = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
What = Literal["", "scope", "named", "derived", "own"]

FORMAT: Final = "afterturn erase log"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class LogHeader(Model):
    """The first line of an exported log: which database, and where each root's chain ends."""

    format: Literal["afterturn erase log"] = FORMAT
    version: Literal[1] = 1
    database: Key
    exported_at: Time
    heads: dict[Key, Hash]


class LogEntry(Model):
    """One erase.

    `what`: everything under the scope (`scope`), turns, records or a session named at it
    (`named`), what was learned there from turns erased elsewhere (`derived`), or an application's
    own erase (`own`); empty in entries from before this was known. `detail` says whether derived
    records went, holds keyed hashes of what was named, and in a restored database the hash of the
    entry that this erase repeats (`replays`).
    """

    root_key: Key
    scope_key: Key
    generation: int
    job_id: int | None
    requested_by: str
    reason: str
    requested_at: Time
    completed_at: Time
    counts: dict[str, int]
    what: What
    detail: dict[str, Any]
    previous_hash: Hash
    hash: Hash

    @property
    def replays(self) -> str | None:
        """The hash of the entry that this one repeats, if any."""
        found = self.detail.get("replays")
        return found if isinstance(found, str) else None


def entry_from(row: asyncpg.Record) -> LogEntry:
    """From a row of `erase_log`."""
    return LogEntry(
        root_key=row["root_key"].hex(),
        scope_key=row["scope_key"].hex(),
        generation=row["generation"],
        job_id=row["job_id"],
        requested_by=row["requested_by"],
        reason=row["reason"],
        requested_at=row["requested_at"],
        completed_at=row["completed_at"],
        counts=row["counts"],
        what=row["what"],
        detail=row["detail"],
        previous_hash=row["previous_hash"].hex(),
        hash=row["hash"].hex(),
    )


def genesis(root_key: str) -> str:
    """What the first entry of a root follows."""
    return hashlib.sha256(bytes.fromhex(root_key)).hexdigest()


def hash_of(entry: LogEntry) -> str:
    """The hash that the entry's fields have, whatever it says itself."""
    fields = [
        bytes.fromhex(entry.root_key),
        bytes.fromhex(entry.scope_key),
        str(entry.generation).encode(),
        b"" if entry.job_id is None else str(entry.job_id).encode(),
        entry.requested_by.encode(),
        entry.reason.encode(),
        str((entry.requested_at - _EPOCH) // _MICROSECOND).encode(),
        str((entry.completed_at - _EPOCH) // _MICROSECOND).encode(),
        jsonb_text(entry.counts).encode(),
    ]
    if entry.what:
        fields += [entry.what.encode(), jsonb_text(entry.detail).encode()]
    chained = hashlib.sha256(bytes.fromhex(entry.previous_hash))
    for field in fields:
        chained.update(hashlib.sha256(field).digest())
    return chained.hexdigest()


def jsonb_text(value: Any) -> str:
    """The text that PostgreSQL gives a jsonb value: keys by length, then by bytes."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return "{" + ", ".join(f"{_quoted(k)}: {jsonb_text(value[k])}" for k in keys) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(jsonb_text(each) for each in value) + "]"
    return _quoted(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
