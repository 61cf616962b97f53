"""What is found at the end, wherever text could be: by the public interface and by hand."""

from __future__ import annotations

import base64
import binascii
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import redis

from afterturn import Memory, MemoryQuery, MemoryRecord, MemoryScope
from tests.torturing.story import Said, stored
from tests.torturing.words import Segments, markers_in, markers_in_bytes, shown

_TABLES = """
select n.nspname, c.relname,
    array(select a.attname::text from pg_attribute a
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
            and a.atttypid = 'bytea'::regtype)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'm', 'p') and n.nspname !~ '^pg_toast'
order by 1, 2
"""
_VIEWS = ("pg_stat_activity", "pg_prepared_statements", "pg_stats_ext", "pg_seclabels")
_LEFT = {
    "unfinished jobs": "select count(*) from afterturn.jobs where finished_at is null",
    "leases": "select count(*) from afterturn.jobs where lease_token is not null",
    "standing intents": "select count(*) from afterturn.erase_intents",
    "jobs blocked by nothing": """select count(*) from afterturn.jobs j where blocked_by is not null
        and not exists (select from afterturn.jobs b where b.id = j.blocked_by
            and b.finished_at is null)""",
    "sources without a record": """select count(*) from afterturn.memory_sources s
        where not exists (select from afterturn.memories m where m.path = s.path
            and m.record_id = s.record_id and m.pending = s.pending)""",
    "raw records without a turn": """select count(*) from afterturn.memories m
        where m.origin = 'turn' and not exists (select from afterturn.turns t
            where t.path = m.turn_path and t.turn_id = m.turn_id)""",
    "facts without a source": """select count(*) from afterturn.memories m
        where m.origin = 'extracted' and not exists (select from afterturn.memory_sources s
            where s.path = m.path and s.record_id = m.record_id and s.pending = m.pending)""",
    "records never embedded": """select count(*) from afterturn.memories
        where embedding is null and not pending""",
    "turns not settled": "select count(*) from afterturn.turns where outcome = 'waiting'",
}
_OUTCOMES = "select path, turn_id, outcome, reason from afterturn.turns"
_ENCODED = re.compile(rb"[A-Za-z0-9+/]{16,}={0,2}")


@dataclass
class Held:
    """All that was found."""

    items: list[dict[str, Any]] = field(default_factory=list)  # the export, with `kind`
    tables: dict[str, Counter[str]] = field(default_factory=dict)  # by marker
    outcomes: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    _by_word: dict[str, list[int]] = field(default_factory=dict)

    def add(self, item: dict[str, Any]) -> None:
        """One line of the export."""
        for word in markers_in(json.dumps(item, ensure_ascii=False)):
            self._by_word.setdefault(word, []).append(len(self.items))
        self.items.append(item)

    def items_with(self, words: Iterable[str]) -> list[dict[str, Any]]:
        """The exported items that hold one of these words, each once."""
        found = {at for word in words for at in self._by_word.get(word, [])}
        return [self.items[at] for at in sorted(found)]

    def words(self) -> set[str]:
        """Every marker found."""
        return set(self._by_word) | set(self.tables)

    def outcome_of(self, said: Said) -> str:
        """What the ledger says became of a turn."""
        return " ".join(self.outcomes.get((f"{stored(said.scope)}/", said.id), ("unknown", "")))

    def is_parked(self, said: Said) -> bool:
        """Whether its extraction was given up, visibly."""
        return self.outcome_of(said).startswith(("degraded", "dead"))


async def gather(memory: Memory, database_url: str, roots: Iterable[Segments]) -> Held:
    """The export of all scopes, and every table by hand."""
    held = Held()
    for root in roots:
        async for item in memory.export(MemoryScope.of(*root)):
            kind = "record" if isinstance(item, MemoryRecord) else "turn"
            held.add({"kind": kind, **item.model_dump(mode="json")})
    connection = await asyncpg.connect(database_url)
    try:
        async for table, word in _table_words(connection):
            held.tables.setdefault(word, Counter())[table] += 1
        for row in await connection.fetch(_OUTCOMES):
            held.outcomes[(row["path"], row["turn_id"])] = (row["outcome"], row["reason"])
    finally:
        await connection.close()
    return held


async def _table_words(connection: Any) -> Any:
    """(table, marker) for each row of each table of each schema."""
    for schema, table, binary in await connection.fetch(_TABLES):
        name = f'"{schema}"."{table}"'
        async with connection.transaction():
            async for row in connection.cursor(f"select t::text from {name} t", prefetch=500):
                for word in markers_in(row[0] or ""):
                    yield f"{schema}.{table}", word
            for column in binary:
                async for row in connection.cursor(f'select "{column}" from {name}'):
                    for word in markers_in_bytes(row[0] or b""):
                        yield f"{schema}.{table}", word
    for view in _VIEWS:
        for row in await connection.fetch(f"select t::text from {view} t"):
            for word in markers_in(row[0] or ""):
                yield f"pg_catalog.{view}", word


async def left_over(database_url: str) -> list[str]:
    """What should be nothing when all is drained, and is not."""
    connection = await asyncpg.connect(database_url)
    try:
        counts = {what: await connection.fetchval(sql) for what, sql in _LEFT.items()}
    finally:
        await connection.close()
    return [f"{count} {what}" for what, count in counts.items() if count]


async def compare_reads(memory: Memory, held: Held, scopes: Iterable[Segments]) -> list[str]:
    """Where `list` and `transcript` differ from the export."""
    found = []
    for segments in scopes:
        scope = MemoryScope.of(*segments)
        here = [item for item in held.items if item["scope_path"] == scope.path]
        turns = {t.turn_id for t in await memory.transcript(scope, limit=100_000)}
        if turns != {item["turn_id"] for item in here if item["kind"] == "turn"}:
            found.append(f"transcript of {scope.path} differs from the export")
        records = [r.record_id for r in await memory.list(scope, limit=100_000)]
        if records != sorted(i["record_id"] for i in here if i["kind"] == "record"):
            found.append(f"list of {scope.path} differs from the export")
    return found


def export_by_command(root: Segments, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """`afterturn export` as an operator types it."""
    command = Path(sys.executable).with_name("afterturn")
    done = subprocess.run(
        [str(command), "export", "/".join(quote(segment, safe="") for segment in root)],
        capture_output=True, env=dict(environment), timeout=60, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


async def is_retrieved(memory: Memory, said: Said, held: Held) -> bool:
    """Whether its own text brings it back."""
    word = next(said.markers[side] for side in "qar" if side in said.markers)
    text = next((i["text"] for i in held.items_with([word]) if i["kind"] == "record"), word)
    query = MemoryQuery(scope=MemoryScope.of(*said.scope), text=text, limit=50)
    result = await memory.retrieve(query)
    return any(word in markers_in(found.record.text) for found in result.memories)


def redis_words(client_url: str) -> Iterator[tuple[str, str]]:
    """(key, marker) for every key of the broker, base64 taken off."""
    with redis.Redis.from_url(client_url) as client:
        for key in client.scan_iter(count=500):
            name = key.decode(errors="replace")
            for blob in (key, client.dump(key) or b"", *_values(client, key)):
                for word in markers_in_bytes(blob) | _decoded_words(blob):
                    yield f"redis key {name}", word


def _values(client: Any, key: bytes) -> Iterator[bytes]:
    """The values of a key; DUMP may compress them."""
    match client.type(key):
        case b"string":
            yield client.get(key) or b""
        case b"list":
            yield from client.lrange(key, 0, -1)
        case b"set":
            yield from client.smembers(key)
        case b"hash":
            for name, value in client.hgetall(key).items():
                yield name + b"\n" + value
        case b"zset":
            yield from client.zrange(key, 0, -1)
        case b"stream":
            for _, fields in client.xrange(key):
                yield b"\n".join(a + b"=" + b for a, b in fields.items())


def _decoded_words(blob: bytes) -> set[str]:
    found: set[str] = set()
    for chunk in _ENCODED.findall(blob):
        try:
            found |= markers_in_bytes(base64.b64decode(chunk + b"=" * (-len(chunk) % 4)))
        except binascii.Error:
            continue
    return found


def file_words(folder: Path, leave_out: Iterable[Path] = ()) -> Iterator[tuple[str, str]]:
    """(file, marker) for every file below a folder but the left-out ones."""
    skipped = tuple(leave_out)
    for path in sorted(folder.rglob("*")):
        if any(path.is_relative_to(skip) for skip in skipped) or not path.is_file():
            continue
        try:
            data = path.read_bytes()
        except OSError:  # a socket, or gone
            continue
        for word in markers_in_bytes(data) | _decoded_words(data):
            yield f"file {path.relative_to(folder)}", word


def flower_words(url: str, login: str) -> Iterator[tuple[str, str]]:
    """(page, marker) for what Flower shows; raises `OSError` when it does not answer."""
    secret = base64.b64encode(login.encode()).decode()
    for page in ("/api/tasks?limit=10000", "/api/workers", "/metrics"):
        asked = urllib.request.Request(  # noqa: S310 - our own Flower on loopback
            url + page, headers={"Authorization": f"Basic {secret}"}
        )
        with urllib.request.urlopen(asked, timeout=10) as answer:  # noqa: S310
            for word in markers_in_bytes(answer.read()):
                yield f"Flower {page}", word


def told(leaks: Iterable[tuple[str, str]]) -> list[str]:
    """Leaks as the report shows them, each place and word once."""
    return [f"{place} holds {shown(word)}" for place, word in sorted(set(leaks))]
