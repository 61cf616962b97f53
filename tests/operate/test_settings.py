"""Every documented setting changes something that can be seen.

`EFFECTS` has, for each setting, what to look at and what is seen under two values.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]  # it ships no types
import pytest
import redis
from numpy.typing import NDArray
from prometheus_client import generate_latest
from pydantic import SecretStr

from afterturn import Memory, MemoryQuery, MemoryRecord, MemoryScope, WriteRequest, embedded
from afterturn.database import Database
from afterturn.embedded.urls import redis_client_url
from afterturn.embedding.compose import compose_embedder
from afterturn.errors import AfterturnError
from afterturn.extraction.compose import compose_extractor
from afterturn.fleet import flower_command, with_servers, worker_command
from afterturn.jobs.ledger import Ledger
from afterturn.jobs.rings import RingPublisher
from afterturn.metrics import REGISTRY
from afterturn.pipeline.runner import Runner
from afterturn.settings import Settings
from tests.conftest import TEMPLATE, database_named
from tests.fleet.running import Valkey, any_port, http_status, launch, wait_until
from tests.operate.endpoint import Endpoint, endpoint

DEAD_BROKER = "redis://127.0.0.1:1/0"
LIVES_IN_OSLO = "My name is Nora and I live in Oslo"
SOON = 1.5
"""Longer than what is short takes, and short beside what is long."""
_numbers = itertools.count(1)


class Tiny:
    """An embedder."""

    model_id, dim = "tiny", 3

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.ones((len(texts), 3), dtype=np.float32)


@dataclass
class Bench:
    """One setting's test: its settings, its database, and what it starts."""

    settings: Settings
    database: Database
    server_url: str
    stack: ExitStack

    def folder(self) -> Path:
        """A directory under a short path."""
        path = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
        self.stack.callback(shutil.rmtree, path, ignore_errors=True)
        return path

    def endpoint(self) -> Endpoint:
        """A model or an embedder over HTTP."""
        return self.stack.enter_context(endpoint())


def _scope() -> MemoryScope:
    return MemoryScope.of("acme", f"user-{next(_numbers)}")


async def _say(settings: Settings, scope: MemoryScope, *texts: str) -> None:
    async with Memory(settings) as memory:
        for text in texts:
            async with memory.turn(scope) as turn:
                await turn.finish(text, "Noted")


async def _drain(settings: Settings, scope: MemoryScope, timeout: float = 30) -> None:
    async with Memory(settings) as memory:
        await memory.drain(scope, timeout=timeout, in_process=True)


async def _facts(bench: Bench, settings: Settings, text: str = LIVES_IN_OSLO) -> list[MemoryRecord]:
    """What was learned of one turn, wherever it went."""
    scope = _scope()
    await _say(settings, scope, text)
    await _drain(settings, scope)
    async with Memory(settings) as memory:
        held = [*await memory.list(scope), *await memory.list(MemoryScope.of("acme"))]
    return [record for record in held if record.origin not in ("turn", "remembered")]


async def _in_time(work: Awaitable[Any], seconds: float = SOON) -> str:
    """`done`, the name of the error, or `waits`."""
    try:
        await asyncio.wait_for(asyncio.ensure_future(work), seconds)
    except TimeoutError:
        return "waits"
    except AfterturnError as error:
        return type(error).__name__
    return "done"


def _count(name: str) -> float:
    for line in generate_latest(REGISTRY).decode().splitlines():
        if line.startswith(name):
            return float(line.rpartition(" ")[2])
    return 0.0


@contextmanager
def _deaf() -> Iterator[int]:
    """A port of loopback where connections are taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield server.getsockname()[1]


# -- what to look at


async def _database(bench: Bench, settings: Settings) -> str:
    async with Memory(settings) as memory:
        parts: Any = memory._opened
        return str(await parts.database.value("select current_database()"))


def _messages(url: str, queue: str = "record") -> int:
    with redis.Redis.from_url(redis_client_url(url)) as client:
        length: Any = client.llen(f"afterturn:afterturn.{queue}")
    return int(length)


async def _broker(bench: Bench, settings: Settings) -> int:
    publisher = RingPublisher(str(settings.broker_url), settings)
    publisher.ring("record", [1])
    await asyncio.to_thread(wait_until, lambda: _settled(publisher), "sent or failed")
    publisher.close(1.0)
    return publisher.stats().sent


def _settled(publisher: RingPublisher) -> bool:
    stats = publisher.stats()
    return bool(stats.sent + stats.failed)


async def _learned(bench: Bench, settings: Settings) -> bool:
    return bool(await _facts(bench, settings))


async def _stored_model(bench: Bench, settings: Settings) -> str | None:
    scope = _scope()
    await _say(settings, scope, "I like pears")
    await _drain(settings, scope)
    model: str | None = await bench.database.value(
        "select embedder_model from afterturn.installation"
    )
    return model


def _over_http(settings: Settings, there: Endpoint) -> Settings:
    return settings.model_copy(
        update={"embedder": "openai:some", "embedder_dim": 3, "embedder_base_url": there.url}
    )


def _embed(settings: Settings) -> Any:
    embedder = compose_embedder(settings)
    assert embedder is not None
    return embedder.embed(["text"])


async def _embedder_base_url(bench: Bench, settings: Settings) -> bool:
    there = bench.endpoint()
    update = {"embedder": "openai:some", "embedder_dim": 3, "model_base_url": DEAD_URL}
    if settings.embedder_base_url == "there":
        update["embedder_base_url"] = there.url
    outcome = await _in_time(asyncio.to_thread(_embed, settings.model_copy(update=update)), 20)
    assert outcome in ("done", "MemoryUnavailable")
    return bool(there.bodies)


async def _embedder_api_key(bench: Bench, settings: Settings) -> str:
    there = bench.endpoint()
    await asyncio.to_thread(_embed, _over_http(settings, there))
    return there.keys[0]


async def _embedder_dim(bench: Bench, settings: Settings) -> str:
    there = bench.endpoint()
    dim = settings.embedder_dim
    ours = _over_http(settings, there).model_copy(update={"embedder_dim": dim})
    return await _in_time(asyncio.to_thread(_embed, ours), 20)


async def _embedder_timeout(bench: Bench, settings: Settings) -> str:
    there = bench.endpoint()
    there.delay_seconds = 0.6
    return await _in_time(asyncio.to_thread(_embed, _over_http(settings, there)), 20)


def _with_model(bench: Bench, settings: Settings, there: Endpoint) -> Settings:
    return settings.model_copy(
        update={
            "extractor": "openai",
            "model": settings.model or "some",
            "model_base_url": settings.model_base_url or there.url,
        }
    )


async def _model(bench: Bench, settings: Settings) -> object:
    there = bench.endpoint()
    await _facts(bench, _with_model(bench, settings, there))
    return there.bodies[0]["model"]


async def _model_base_url(bench: Bench, settings: Settings) -> bool:
    one, other = bench.endpoint(), bench.endpoint()
    url = {"one": one.url, "other": other.url}[str(settings.model_base_url)]
    await _facts(
        bench, _with_model(bench, settings.model_copy(update={"model_base_url": url}), one)
    )
    return bool(one.bodies)


async def _model_api_key(bench: Bench, settings: Settings) -> str:
    there = bench.endpoint()
    await _facts(bench, _with_model(bench, settings, there))
    return there.keys[0]


async def _extract_once(bench: Bench, settings: Settings, *scopes: MemoryScope) -> str:
    """One run over what waits to be extracted; the task's short code."""
    rings = RingPublisher(DEAD_BROKER, settings)
    extractor = compose_extractor(settings)
    runner = Runner(bench.database, settings, rings, extractor, None)
    for scope in scopes:
        ids = [r["id"] for r in await bench.database.rows(_JOBS, "record", scope.stored_path)]
        await runner.run("record", ids)
    ids = [
        row["id"]
        for scope in scopes
        for row in await bench.database.rows(_JOBS, "extract", scope.stored_path)
    ]
    said = await runner.run("extract", ids)
    rings.close(0)
    if (close := getattr(extractor, "aclose", None)) is not None:
        await close()
    return said


_JOBS = "select * from afterturn.jobs where kind = $1 and path = $2 order by id"


async def _model_timeout(bench: Bench, settings: Settings) -> bool:
    there = bench.endpoint()
    there.delay_seconds = 0.6
    scope = _scope()
    await _say(settings, scope, "I like pears")
    return "extracted" in await _extract_once(bench, _with_model(bench, settings, there), scope)


async def _calls_at_once(bench: Bench, settings: Settings) -> int:
    there = bench.endpoint()
    there.delay_seconds = 0.5
    scopes = [_scope() for _ in range(3)]
    for scope in scopes:
        await _say(settings, scope, "I like pears")
    await _extract_once(bench, _with_model(bench, settings, there), *scopes)
    return there.at_once_max


async def _turns_a_call(bench: Bench, settings: Settings) -> int:
    there = bench.endpoint()
    scope = _scope()
    await _say(settings, scope, *(f"I like pears {n}. " + "Indeed. " * 40 for n in range(3)))
    await _extract_once(bench, _with_model(bench, settings, there), scope)
    return max(str(body["messages"]).count('{"turn":') for body in there.bodies)


async def _extract_after(bench: Bench, settings: Settings) -> int:
    scope = _scope()
    await _say(settings, scope, "I like pears")
    await _extract_once(bench, settings.model_copy(update={"extractor": "none"}), scope)
    rows = await bench.database.rows(_JOBS, "extract", scope.stored_path)
    return round((rows[0]["ready_at"] - rows[0]["created_at"]).total_seconds()) if rows else 0


async def _outage(bench: Bench, settings: Settings) -> str:
    scope = _scope()
    await _say(settings, scope, "I like pears")
    away = settings.model_copy(
        update={"extractor": "openai", "model": "some", "model_base_url": DEAD_URL}
    )
    await _extract_once(bench, away.model_copy(update={"max_attempts": 1}), scope)
    (job,) = await bench.database.rows(_JOBS, "extract", scope.stored_path)
    return str(job["outcome"])


DEAD_URL = "http://127.0.0.1:1/v1"


async def _fact_depth(bench: Bench, settings: Settings) -> set[int]:
    return {record.scope_path.count("/") for record in await _facts(bench, settings)}


async def _fact_layer(bench: Bench, settings: Settings) -> set[str]:
    return {str(record.layer) for record in await _facts(bench, settings)}


async def _transcript(bench: Bench, settings: Settings) -> bool:
    scope = _scope()
    await _say(settings, scope, "my password is hunter2hunter2")
    async with Memory(settings) as memory:
        return "hunter2" in str(await memory.export(scope).__anext__())


async def _cached(bench: Bench, settings: Settings) -> float:
    scope = _scope()
    async with Memory(settings) as memory:
        for start in range(0, 400, 100):
            records = [
                MemoryRecord(
                    record_id=f"r{start + n}",
                    text=f"pears number {start + n} " + f"{start + n:05} " * 1_000,
                    scope_path=scope.path,
                    layer="semantic",
                    origin="test",
                )
                for n in range(100)
            ]
            await memory.write(WriteRequest(scope=scope, records=tuple(records)))
        await memory.flush(scope)
        await memory.retrieve(MemoryQuery(scope=scope, text="pears"))
        before = _count('afterturn_cache_reads_total{result="hit"}')
        await memory.retrieve(MemoryQuery(scope=scope, text="pears"))
        return _count('afterturn_cache_reads_total{result="hit"}') - before


async def _connect(bench: Bench, settings: Settings) -> str:
    with _deaf() as port:
        database = Database(f"postgresql://a@127.0.0.1:{port}/b", settings, pool_size=1)
        return await _in_time(database.value("select 1"))


async def _command(bench: Bench, settings: Settings) -> str:
    database = Database(str(settings.database_url), settings, pool_size=1)
    try:
        return await _in_time(database.value("select pg_sleep(0.5)"), 10)
    finally:
        await database.close()


async def _two_at_once(database: Database) -> str:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(database.connection())
        return await _in_time(stack.enter_async_context(database.connection()), 5)


async def _caller_connections(bench: Bench, settings: Settings) -> str:
    async with Memory(settings.model_copy(update={"connect_timeout_seconds": 0.3})) as memory:
        parts: Any = memory._opened
        return await _two_at_once(parts.database)


async def _worker_connections(bench: Bench, settings: Settings) -> str:
    script = """
from workers.process import WorkerProcess
work = WorkerProcess()

async def main():
    async with work._database.connection():
        try:
            async with work._database.connection():
                return "done"
        except Exception:
            return "refused"

print(work._wait(main()))
work.close()
"""
    done = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        env={**worker_command(settings=settings).env, "AFTERTURN_CONNECT_TIMEOUT_SECONDS": "0.3"},
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await done.communicate()
    return said.decode().strip()


async def _prepared(bench: Bench, settings: Settings) -> bool:
    database = Database(str(settings.database_url), settings, pool_size=1)
    try:
        async with database.connection() as connection:
            for _ in range(3):
                await connection.fetchval("select $1::int", 1)
            return bool(
                await connection.fetchval(
                    "select count(*) from pg_prepared_statements where statement like '%$1::int'"
                )
            )
    finally:
        await database.close()


async def _claimed(bench: Bench, settings: Settings) -> tuple[Ledger, Any, MemoryScope]:
    scope = _scope()
    await _say(settings, scope, "I like pears")
    ledger = Ledger(bench.database, settings)
    (job,) = await bench.database.rows(_JOBS, "record", scope.stored_path)
    (turn,) = await ledger.claim_turns("record", [job["id"]], limit=1)
    return ledger, turn, scope


async def _lease(bench: Bench, settings: Settings) -> int:
    _, _, scope = await _claimed(bench, settings)
    (job,) = await bench.database.rows(_JOBS, "record", scope.stored_path)
    return _about((job["ready_at"] - job["created_at"]).total_seconds())


async def _failed_once(bench: Bench, settings: Settings) -> str:
    ledger, turn, _ = await _claimed(bench, settings)
    return await ledger.fail_turn(turn.lease, "test")


async def _backoff(bench: Bench, settings: Settings) -> int:
    ledger, turn, scope = await _claimed(bench, settings)
    await ledger.fail_turn(turn.lease, "test")
    (job,) = await bench.database.rows(_JOBS, "record", scope.stored_path)
    return _about((job["ready_at"] - job["created_at"]).total_seconds())


def _about(seconds: float) -> int:
    """The power of ten: jitter and a slow machine do not matter."""
    return round(math.log10(seconds))


async def _batches(bench: Bench, settings: Settings) -> float:
    scope = _scope()
    await _say(settings, scope, "one", "two", "three")
    before = _count('afterturn_work_seconds_count{kind="record"}')
    rings = RingPublisher(DEAD_BROKER, settings)
    ids = [row["id"] for row in await bench.database.rows(_JOBS, "record", scope.stored_path)]
    await Runner(bench.database, settings, rings, None, None).run("record", ids)
    rings.close(0)
    return _count('afterturn_work_seconds_count{kind="record"}') - before


async def _chunks(bench: Bench, settings: Settings) -> int:
    scope = _scope()
    async with Memory(settings) as memory:
        records = tuple(
            MemoryRecord(
                record_id=f"r{n}", text=f"{n}", scope_path=scope.path, layer="semantic", origin="t"
            )
            for n in range(5)
        )
        await memory.write(WriteRequest(scope=scope, records=records))
        await memory.flush(scope)
    return int(
        await bench.database.value(
            "select count(distinct content) from afterturn.memories where path = $1",
            scope.stored_path,
        )
    )


async def _swept_after(bench: Bench, settings: Settings) -> int:
    scope = _scope()
    await _say(settings, scope, "I like pears")
    (job,) = await bench.database.rows(_JOBS, "record", scope.stored_path)
    seconds: float = (job["ring_at"] - job["created_at"]).total_seconds()
    return round(seconds)


async def _travel_together(bench: Bench, settings: Settings) -> int:
    before = _messages(str(settings.broker_url))
    publisher = RingPublisher(str(settings.broker_url), settings)
    publisher.ring("record", [1])
    await asyncio.sleep(0.3)
    publisher.ring("record", [2])
    await asyncio.to_thread(publisher.close, 5.0)
    return _messages(str(settings.broker_url)) - before


async def _dropped(bench: Bench, settings: Settings) -> int:
    lingering = settings.model_copy(update={"ring_linger_seconds": 60.0})
    publisher = RingPublisher(DEAD_BROKER, lingering)
    publisher.ring("record", [1, 2, 3])
    dropped = int(publisher.stats().dropped)
    publisher.close(0)
    return dropped


async def _gives_up_on_the_broker(bench: Bench, settings: Settings) -> bool:
    with _deaf() as port:
        publisher = RingPublisher(f"redis://127.0.0.1:{port}/0", settings)
        publisher.ring("record", [1])
        for _ in range(60):
            await asyncio.sleep(0.05)
            if publisher.stats().failed:
                break
        failed = publisher.stats().failed
        publisher.close(0)
        return bool(failed)


async def _waiting(bench: Bench, settings: Settings) -> str:
    async with Memory(settings.model_copy(update={"takeover_seconds": 3600.0})) as memory:
        return await _in_time(memory.flush(_scope()))


async def _taken_over(bench: Bench, settings: Settings) -> str:
    async with Memory(settings) as memory:
        return await _in_time(memory.flush(_scope()), 3)


async def _sweep(bench: Bench, settings: Settings) -> None:
    rings = RingPublisher(DEAD_BROKER, settings)
    await Runner(bench.database, settings, rings, None, None).sweep()
    rings.close(0)


async def _expires(bench: Bench, settings: Settings) -> float:
    await _sweep(bench, settings)
    return float(
        await bench.database.value("select older_seconds from afterturn.schedules where is_default")
    )


async def _kept(bench: Bench, settings: Settings) -> bool:
    async with Memory(settings) as memory:
        receipt = await memory.flush(_scope())
    await asyncio.sleep(0.01)
    await _sweep(bench, settings)
    return bool(
        await bench.database.value(
            "select count(*) from afterturn.jobs where id = $1", receipt.job_id
        )
    )


async def _long_text(bench: Bench, settings: Settings) -> str:
    return await _in_time(_say(settings, _scope(), "more than ten bytes"), 10)


# -- what is seen under two values

EFFECTS: dict[str, tuple[Callable[[Bench, Settings], Awaitable[object]], dict[Any, object]]] = {
    "broker_url": (_broker, {DEAD_BROKER: 0, "there": 1}),
    "extractor": (_learned, {"rules": True, "none": False}),
    "embedder": (_stored_model, {"none": None, f"{__name__}:Tiny": "tiny"}),
    "embedder_base_url": (_embedder_base_url, {None: False, "there": True}),
    "embedder_api_key": (_embedder_api_key, {"one": "Bearer one", "two": "Bearer two"}),
    "embedder_dim": (
        _embedder_dim,
        {3: "done", 4: "ConfigurationError", None: "ConfigurationError"},
    ),
    "embedder_timeout_seconds": (_embedder_timeout, {0.1: "MemoryUnavailable", 15.0: "done"}),
    "model": (_model, {"small": "small", "large": "large"}),
    "model_base_url": (_model_base_url, {"one": True, "other": False}),
    "model_api_key": (_model_api_key, {"one": "Bearer one", "two": "Bearer two"}),
    "model_timeout_seconds": (_model_timeout, {0.1: False, 15.0: True}),
    "model_calls_max": (_calls_at_once, {1: 1, 3: 3}),
    "model_batch_tokens": (_turns_a_call, {100: 1, 6_000: 3}),
    "extract_after_seconds": (_extract_after, {0.0: 0, 60.0: 60}),
    "outage_seconds": (_outage, {0.0: "dead", 3_600.0: "None"}),
    "fact_level": (_fact_depth, {None: {2}, 1: {1}}),
    "fact_layers": (_fact_layer, {"semantic": {"semantic"}, "procedural": {"procedural"}}),
    "redact": (_transcript, {False: True, True: False}),
    "cache_bytes": (_cached, {1 << 20: 0, 256 << 20: 1}),
    "connect_timeout_seconds": (_connect, {0.2: "MemoryUnavailable", 30.0: "waits"}),
    "command_timeout_seconds": (_command, {0.1: "MemoryUnavailable", 9.0: "done"}),
    "pool_size": (_caller_connections, {1: "MemoryUnavailable", 2: "done"}),
    "worker_pool_size": (_worker_connections, {1: "refused", 2: "done"}),
    "statement_cache_size": (_prepared, {0: False, 100: True}),
    "lease_seconds": (_lease, {100.0: 2, 10_000.0: 4}),
    "max_attempts": (_failed_once, {1: "dead", 2: "retry"}),
    "retry_base_seconds": (_backoff, {100.0: 2, 10_000.0: 4}),
    "retry_cap_seconds": (_backoff, {100.0: 2, 10_000.0: 4}),
    "batch_turns_max": (_batches, {1: 3, 50: 1}),
    "chunk_rows": (_chunks, {2: 3, 100: 1}),
    "sweep_seconds": (_swept_after, {3.0: 6, 30.0: 60}),
    "ring_linger_seconds": (_travel_together, {0.0: 2, 30.0: 1}),
    "rings_max": (_dropped, {1: 2, 3: 0}),
    "broker_timeout_seconds": (_gives_up_on_the_broker, {0.1: True, 60.0: False}),
    "wait_timeout_seconds": (_waiting, {0.1: "MemoryUnavailable", 60.0: "waits"}),
    "takeover_seconds": (_taken_over, {0.0: "done", 3_600.0: "waits"}),
    "working_seconds": (_expires, {60.0: 60.0, 600.0: 600.0}),
    "jobs_kept_seconds": (_kept, {0.001: False, 3_600.0: True}),
    "text_bytes_max": (_long_text, {10: "MemoryContractError", 100: "done"}),
}
# Backoff has a base and a cap: the other one is out of the way.
BESIDE: dict[str, dict[str, object]] = {
    "retry_base_seconds": {"retry_cap_seconds": 1_000_000.0},
    "retry_cap_seconds": {"retry_base_seconds": 1_000_000.0},
}
OF_FLOWER = {"flower_address", "flower_port", "flower_basic_auth", "flower_read_only"}
OF_WORKERS = {"metrics_address", "metrics_port", "log_format", "worker_concurrency"}
OF_SERVERS = {"home", "database_url"}


def test_none_is_left_out() -> None:
    """Each setting is looked at below, and nothing that is none."""
    assert EFFECTS.keys() | OF_FLOWER | OF_WORKERS | OF_SERVERS == Settings.model_fields.keys()


@pytest.fixture
async def bench(
    settings: Settings, database: Database, server_url: str, broker_url: str
) -> AsyncIterator[Bench]:
    """Settings under which nothing is rung for and nobody helps."""
    quiet = settings.model_copy(
        update={"broker_url": DEAD_BROKER, "takeover_seconds": 0.0, "extractor": "rules"}
    )
    with ExitStack() as stack:
        yield Bench(quiet, database, server_url, stack)


@pytest.mark.parametrize("name", sorted(EFFECTS))
async def test_each_setting_changes_something(name: str, bench: Bench, broker_url: str) -> None:
    """What is seen differs as the values do."""
    observe, seen = EFFECTS[name]
    needs_broker = name in ("broker_url", "ring_linger_seconds")
    base = bench.settings.model_copy(update={"broker_url": broker_url} if needs_broker else {})
    assert len({str(each) for each in seen.values()}) > 1
    for value, expected in seen.items():
        real = broker_url if (name, value) == ("broker_url", "there") else value
        changes = {**BESIDE.get(name, {}), name: real}
        # Validated as the environment's would be, except for stand-ins such as "there".
        changed = base.model_copy(update=changes)
        if "api_key" in name:
            changed = base.model_copy(update={name: SecretStr(str(value))})
        assert await observe(bench, changed) == expected, f"{name}={value}"


async def test_the_database_is_the_one_that_is_named(bench: Bench, server_url: str) -> None:
    """Two URLs, two databases."""
    own = str(bench.settings.database_url)
    assert await _database(bench, bench.settings) == own.partition("?")[0].rpartition("/")[2]
    template = database_named(server_url, TEMPLATE)
    other = bench.settings.model_copy(update={"database_url": template})
    assert await _database(bench, other) == TEMPLATE


async def test_embedded_servers_live_in_the_home(bench: Bench) -> None:
    """Two homes, two servers."""
    urls = []
    for _ in range(2):
        home = bench.folder()
        settings = bench.settings.model_copy(update={"home": home, "broker_url": None})
        found = await asyncio.to_thread(with_servers, settings, database=False)
        bench.stack.callback(embedded.stop, home)
        urls.append(str(found.broker_url))
        assert str(home) in urls[-1]
    assert urls[0] != urls[1]


# -- processes: one with some values and one with others, and what differs between them


@pytest.mark.fleet
def test_flower_is_where_and_for_whom_it_is_set(directory: Path, broker: Valkey) -> None:
    """Address, port, login, and whether it gives orders."""
    seen = []
    for address, login, read_only in (("127.0.0.1", "a:b", True), ("127.0.0.2", "c:d", False)):
        port = any_port()
        settings = Settings(
            broker_url=broker.url,
            flower_address=address,
            flower_port=port,
            flower_basic_auth=SecretStr(login),
            flower_read_only=read_only,
        )
        flower = launch(flower_command(settings), directory, name=f"flower-{address}", stub=False)
        try:
            url = f"http://{address}:{port}"
            wait_until(lambda: flower.said(url), "it listens")  # noqa: B023 - waited for here
            listening = [
                each.laddr
                for each in psutil.Process(flower.pid).net_connections("inet")
                if each.status == "LISTEN"
            ]
            assert [tuple(each) for each in listening] == [(address, port)]
            logins = [each for each in ("a:b", "c:d") if http_status(f"{url}/", each) == 200]
            order = http_status(f"{url}/api/worker/shutdown/nobody", login, method="POST")
            seen.append((logins, order == 403))
            assert flower.stop() == 0
        finally:
            flower.kill()
    assert seen == [(["a:b"], True), (["c:d"], False)]


@pytest.mark.fleet
def test_a_worker_has_the_processes_log_and_metrics_that_are_set(
    directory: Path, broker: Valkey, database_url: str
) -> None:
    """Concurrency, format of the log, address and port of the metrics."""
    seen = []
    for address, log_format, processes in (("127.0.0.1", "text", 1), ("127.0.0.2", "json", 2)):
        port = any_port()
        ready = directory / f"ready-{address}"
        settings = Settings(
            home=directory / "home",
            broker_url=broker.url,
            database_url=database_url,
            embedder="none",
            metrics_address=address,
            metrics_port=port,
            log_format=log_format,
            worker_concurrency=processes,
        )
        command = worker_command(settings=settings, ready_file=ready)
        worker = launch(command, directory, name=f"worker-{address}", stub=False)
        try:
            wait_until(ready.exists, "it is ready")
            url = f"http://{address}:{port}/metrics"
            wait_until(lambda: http_status(url) == 200, "metrics are served")  # noqa: B023
            children = [p for p in worker.children() if "metrics" not in p.cmdline()]
            line = next(line for line in worker.output().splitlines() if "ready" in line)
            seen.append((len(children), line.startswith("{")))
            assert worker.stop() == 0
        finally:
            worker.kill()
    assert seen == [(1, False), (2, True)]
