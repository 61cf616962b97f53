"""Metrics of a calling process and of a worker, and what a worker logs."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it ships no types
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from afterturn import Memory, MemoryQuery, MemoryScope
from afterturn.database import Database
from afterturn.errors import StaleTurn
from afterturn.fleet import EXIT_MISCONFIGURED
from afterturn.jobs.ledger import Ledger
from afterturn.jobs.rings import RingPublisher
from afterturn.metrics import REGISTRY, RINGS, STAGE_SECONDS
from afterturn.pipeline.runner import Runner
from afterturn.settings import Settings
from afterturn.turns import ExtractionRequest, ExtractionResult
from tests.fleet.running import Valkey, any_port, wait_until
from tests.operate.deployment import Deployment, deployed

SCOPE = MemoryScope.of("acme", "alice-marker")
MARKER = "quinces-marker"


def _samples(text: str) -> dict[str, float]:
    """`name{label="value",…}` → value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def _here() -> dict[str, float]:
    return _samples(generate_latest(REGISTRY).decode())


async def test_a_calling_process_counts_what_it_does(settings: Settings) -> None:
    """Stage, retrieval, cache, lifecycle, outcomes; with no scope, id or word in any label."""
    before = _here()
    async with Memory(settings) as memory:
        async with memory.turn(SCOPE, turn_id="turn-marker") as turn:
            await turn.finish(f"I like {MARKER}", "Noted")
        await memory.drain(SCOPE, timeout=30, in_process=True)
        for _ in range(2):
            await memory.retrieve(MemoryQuery(scope=SCOPE, text=MARKER))
        await memory.flush(SCOPE)
        await memory.forget(SCOPE)
    text = generate_latest(REGISTRY).decode()
    assert "marker" not in text
    assert "alice" not in text
    after = _samples(text)
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    assert grown["afterturn_staged_turns_total{verdict=staged}"] == 1
    assert grown["afterturn_stage_seconds_count{}"] == 1
    assert grown["afterturn_retrieve_seconds_count{}"] == 2
    assert grown["afterturn_cache_reads_total{result=hit}"] == 1
    assert grown["afterturn_cache_reads_total{result=miss}"] == 1
    for kind in ("record", "extract", "flush", "forget"):
        assert grown[f"afterturn_jobs_total{{kind={kind},outcome=done}}"] == 1, kind
    for kind in ("flush", "forget"):
        assert grown[f"afterturn_lifecycle_seconds_count{{kind={kind}}}"] == 1


async def test_how_long_a_flush_and_an_erase_took_is_known_where_nobody_waited(
    settings: Settings, database: Database
) -> None:
    """By who ran it, from its request on; once, and not again for who waits for it afterwards."""
    rings = RingPublisher("redis://127.0.0.1:1/0", settings)
    runner = Runner(database, settings, rings, None, None)
    async with Memory(settings) as memory:
        for kind, asked in (("flush", memory.enqueue_flush), ("forget", memory.enqueue_forget)):
            before = _here()
            ticket = await asked(SCOPE)
            await database.value(
                "update afterturn.jobs set created_at = created_at - interval '1 hour'"
                " where id = $1",
                ticket.job_id,
            )
            assert "1" in await runner.run("flush", [ticket.job_id])
            await ticket.wait()
            grown = {name: value - before.get(name, 0.0) for name, value in _here().items()}
            assert grown[f"afterturn_lifecycle_seconds_count{{kind={kind}}}"] == 1
            assert 3600 <= grown[f"afterturn_lifecycle_seconds_sum{{kind={kind}}}"] < 3700
    rings.close(0)


async def test_a_job_taken_over_is_counted_once_by_its_kind(
    settings: Settings, database: Database
) -> None:
    """Of every kind: by who claims it after its lease ran out, or by the sweep that lets it go. One
    that waits for its next attempt, or that a worker gave back, is none."""
    away = settings.model_copy(update={"broker_url": "redis://127.0.0.1:1/0"})
    rings = RingPublisher(str(away.broker_url), away)
    ledger = Ledger(database, away)
    runner = Runner(database, away, rings, _Broken(), None)
    lapse = "update afterturn.jobs set ready_at = created_at, ring_at = created_at"

    async with Memory(away) as memory:
        async with memory.turn(SCOPE) as turn:
            await turn.finish("one", "two")
        before = _here()
        record = await database.value("select id from afterturn.jobs where kind = 'record'")
        await ledger.claim_turns("record", [record], limit=1)
        await database.value(lapse)
        await runner.sweep()
        await runner.run("record", [record])

        extract = await database.value("select id from afterturn.jobs where kind = 'extract'")
        await runner.run("extract", [extract])  # fails, and comes again with its lease given up
        await database.value(lapse)
        await ledger.claim_extracts([extract], calls=1, turns=9, bytes_max=9_999)
        await database.value(lapse)
        await runner.run("extract", [extract])  # twice at work: alone from now on

        embed = await database.value(
            "select e from afterturn.enqueue_embed(array[$1]) e", SCOPE.stored_path
        )
        for _ in range(2):
            assert await ledger.claim_embed([embed]) is not None
            await database.value(lapse)
        for kind in ("flush", "forget"):
            asked = memory.enqueue_flush if kind == "flush" else memory.enqueue_forget
            ticket = await asked(MemoryScope.of(kind))
            _, job = await ledger.claim_lifecycle(ticket.job_id)
            assert job is not None
            await ledger.release([job.lease])
            for _ in range(2):
                await ledger.claim_lifecycle(ticket.job_id)
                await database.value(lapse)
            await runner.run("flush", [ticket.job_id])
    rings.close(0)
    after = _here()
    taken = {
        kind: after[name] - before.get(name, 0.0)
        for kind in ("record", "extract", "embed", "flush", "forget")
        if (name := f"afterturn_lease_takeovers_total{{kind={kind}}}") in after
    }
    assert taken == {"record": 1, "extract": 1, "embed": 1, "flush": 2, "forget": 2}


async def test_a_job_that_kills_its_workers_is_given_up_for_all_to_see(
    settings: Settings, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Its last lease runs out: the sweep gives it up, counts it and says so, of each kind that has
    a last attempt; nobody is rung for it."""
    caplog.set_level("INFO", logger="afterturn.jobs")
    once = settings.model_copy(update={"broker_url": "redis://127.0.0.1:1/0", "max_attempts": 1})
    rings = RingPublisher(str(once.broker_url), once)
    ledger = Ledger(database, once)
    runner = Runner(database, once, rings, _Broken(), None)
    async with Memory(once) as memory, memory.turn(SCOPE) as turn:
        await turn.finish("one", "two")
    record = await database.value("select id from afterturn.jobs where kind = 'record'")
    embed = await database.value(
        "select e from afterturn.enqueue_embed(array[$1]) e", SCOPE.stored_path
    )
    await ledger.claim_turns("record", [record], limit=1)
    await ledger.claim_embed([embed])
    await database.value("update afterturn.jobs set ready_at = created_at, ring_at = created_at")
    before = _here()
    assert await runner.sweep() == "rang 0"
    rings.close(0)
    after = _here()
    for kind, job_id in (("record", record), ("embed", embed)):
        name = f"afterturn_jobs_total{{kind={kind},outcome=dead}}"
        assert after[name] - before.get(name, 0.0) == 1
        ended = await database.row("select outcome, reason from afterturn.jobs where id=$1", job_id)
        assert tuple(ended) == ("dead", "worker lost")
    said = [entry.__dict__["afterturn_fields"] for entry in caplog.records]
    assert {"kind": "record", "outcome": "dead", "jobs": [record], "reason": "worker lost"} in said


async def test_what_goes_wrong_is_counted(settings: Settings, database: Database) -> None:
    """A lost worker's job taken over, attempts used up, a stale turn, a broker that is away."""
    away = settings.model_copy(update={"broker_url": "redis://127.0.0.1:1/0", "max_attempts": 2})
    before = _here()
    rings = RingPublisher(str(away.broker_url), away)
    async with Memory(away) as memory:
        async with memory.turn(SCOPE) as turn:
            await turn.finish("one", "two")
        late = await memory.begin_turn(SCOPE)
        job_id = await database.value("select id from afterturn.jobs where kind = 'record'")
        await Ledger(database, away).claim_turns("record", [job_id], limit=1)
        await database.value("update afterturn.jobs set ready_at = created_at")
        runner = Runner(database, away, rings, _Broken(), None)
        await runner.run("record", [job_id])
        extract_id = await database.value("select id from afterturn.jobs where kind = 'extract'")
        for _ in range(2):
            await database.value("update afterturn.jobs set ready_at = created_at")
            await runner.run("extract", [extract_id])
        await memory.forget(SCOPE)
        with pytest.raises(StaleTurn):
            await late.finish("three", "four")
    await asyncio.to_thread(
        wait_until, lambda: rings.stats().failed + rings.stats().dropped, "rings fail"
    )
    rings.close(0)
    after = _here()
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    assert grown["afterturn_lease_takeovers_total{kind=record}"] == 1
    assert grown["afterturn_jobs_total{kind=extract,outcome=retry}"] == 1
    assert grown["afterturn_jobs_total{kind=extract,outcome=dead}"] == 1
    assert grown["afterturn_staged_turns_total{verdict=stale}"] == 1
    assert grown["afterturn_rings_total{result=failed}"] >= 1


class _Broken:
    """An extractor that always fails."""

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        return ExtractionResult(degraded=True, reason="broken")


def test_a_child_of_a_fork_does_not_wait_for_a_lock_of_the_parent() -> None:
    """A fork in the moment in which another thread counts leaves the child able to count."""
    held, done = threading.Event(), threading.Event()
    sent = RINGS.labels("sent")

    def hold() -> None:
        with RINGS._lock, sent._value._lock, STAGE_SECONDS._sum._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        RINGS.labels("sent").inc()
        RINGS.labels("failed").inc()
        STAGE_SECONDS.observe(1.0)
        os._exit(0)
    try:
        wait_until(lambda: os.waitpid(child, os.WNOHANG)[0] == child, "the child has counted")
    finally:
        done.set()
        thread.join()


@pytest.fixture
def deployment(directory: Path, database_url: str, broker: Valkey) -> Iterator[Deployment]:
    """A place for a worker that serves metrics and logs JSON."""
    with deployed(
        directory,
        database_url,
        broker.url,
        AFTERTURN_EMBEDDER="none",
        AFTERTURN_LOG_FORMAT="json",
        AFTERTURN_METRICS_PORT=str(any_port()),
    ) as made:
        yield made


@pytest.mark.fleet
def test_a_worker_serves_the_counts_of_all_its_processes(
    deployment: Deployment, settings: Settings, broker: Valkey
) -> None:
    """Also those of processes that are gone, without a file more; and the state of the ledger.
    Its log is one object a line, and neither holds a word."""
    deployment.run_forever("afterturn worker --name all", "all")
    url = f"http://127.0.0.1:{deployment.env['AFTERTURN_METRICS_PORT']}/metrics"

    def read() -> dict[str, float]:
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = str(answer.read().decode())
        assert "marker" not in text
        return _samples(text)

    recorded = "afterturn_jobs_total{kind=record,outcome=done}"
    wait_until(lambda: _answers(url), "metrics are served")
    ours = settings.model_copy(update={"broker_url": broker.url})
    asyncio.run(_hand_over(ours, 3))
    wait_until(lambda: read().get(recorded) == 3, "three are counted")
    wait_until(lambda: "record done" in deployment.log("all"), "the outcome is logged")
    (parent,) = (
        p for p in psutil.Process(deployment.parts["all"].pid).children()
        if "metrics" not in p.cmdline()
    )  # fmt: skip
    parent.kill()
    asyncio.run(_hand_over(ours, 2))
    asyncio.run(_ask_to_forget(ours))
    forgotten = "afterturn_lifecycle_seconds_count{kind=forget}"
    wait_until(lambda: read().get(forgotten) == 1, "an erase for which nobody waits is timed")
    wait_until(lambda: read().get(recorded) == 5, "its successor goes on from there")
    seen = read()
    assert seen["afterturn_database_up{}"] == 1
    assert seen["afterturn_dead_jobs{}"] == 0
    assert seen["afterturn_work_seconds_count{kind=record}"] >= 2

    taken = deployment.type("afterturn worker --name second")
    assert taken.code == EXIT_MISCONFIGURED
    assert "--metrics-port" in taken.output

    deployment.parts["all"].terminate()
    assert deployment.parts["all"].wait(30) == 0
    log = deployment.log("all")
    assert "marker" not in log
    lines = [line for line in log.splitlines() if line and not line.startswith("worker:")]
    outcomes = [e for e in map(json.loads, lines) if e["logger"] == "afterturn.jobs"]
    done = [e for e in outcomes if (e["kind"], e["outcome"]) == ("record", "done")]
    assert sum(len(e["jobs"]) for e in done) == 5
    assert all(isinstance(job, int) for e in done for job in e["jobs"])


async def _hand_over(settings: Settings, turns: int) -> None:
    async with Memory(settings) as memory:
        for _ in range(turns):
            async with memory.turn(SCOPE) as turn:
                await turn.finish(f"I like {MARKER}", "Noted")
        await memory.drain(SCOPE, timeout=60)


async def _ask_to_forget(settings: Settings) -> None:
    async with Memory(settings) as memory:
        await memory.enqueue_forget(SCOPE.child("other"))


def _answers(url: str) -> bool:
    port = int(url.rpartition(":")[2].partition("/")[0])
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.fleet
def test_up_serves_the_metrics_of_each_of_its_workers(deployment: Deployment) -> None:
    """On three ports in a row; they are free again when it has stopped."""
    first = next(port for port in iter(any_port, 0) if _are_free(port, port + 1, port + 2))
    deployment.run_forever("afterturn up --no-flower", "up", AFTERTURN_METRICS_PORT=str(first))
    urls = [f"http://127.0.0.1:{first + at}/metrics" for at in range(3)]
    wait_until(lambda: all(map(_answers, urls)), "three workers serve metrics")
    for url in urls:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - on loopback
            assert "afterturn_database_up 1.0" in answer.read().decode()
    deployment.parts["up"].terminate()
    assert deployment.parts["up"].wait(60) == 0
    wait_until(lambda: not any(map(_answers, urls)), "nobody serves them any more")


def _are_free(*ports: int) -> bool:
    return not any(_answers(f"http://127.0.0.1:{port}/") for port in ports)
