"""Five faults, found and mended with `status`, `doctor` and `jobs` alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from afterturn import Memory, MemoryScope
from afterturn.fleet import EXIT_MISCONFIGURED
from afterturn.settings import Settings
from tests.fleet.running import Valkey
from tests.operate.deployment import Deployment, deployed, wait_until

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.timeout(600)]

ALICE = MemoryScope.of("acme", "alice")
MARKER = "quinces"

# A database that refuses one kind of change, as one does whose disk is full.
REFUSE = """
create function pg_temp_refuse() returns trigger language plpgsql as
    'begin raise exception ''no space left''; end';
create trigger refuse before {} on afterturn.memories for each row
    execute function pg_temp_refuse()
"""
ALLOW = "drop trigger refuse on afterturn.memories; drop function pg_temp_refuse()"


@pytest.fixture
def deployment(directory: Path, database_url: str, broker: Valkey) -> Iterator[Deployment]:
    """Everything of the Procfile at work, and found well."""
    with deployed(
        directory,
        database_url,
        broker.url,
        AFTERTURN_RETRY_BASE_SECONDS="3600",
        AFTERTURN_RETRY_CAP_SECONDS="3600",
        AFTERTURN_MAX_ATTEMPTS="1",
        AFTERTURN_LEASE_SECONDS="5",
    ) as made:
        for name in ("record", "extract", "lifecycle", "beat", "flower"):
            made.start(name)
        made.wait_until_well("everything is well")
        yield made


def test_five_faults_are_found_and_mended(
    deployment: Deployment, database_url: str, broker: Valkey, settings: Settings
) -> None:
    """Each is red in what an operator asks, names what to type, and is gone after that."""
    memory = _Memory(settings.model_copy(update={"broker_url": broker.url}))
    memory.run(lambda m: _hand_over(m, "t0"))
    wait_until(lambda: memory.run(_is_drained), "the first turn is done")

    _dead_worker(deployment)
    _stuck_job(deployment, database_url, memory)
    _standing_intent(deployment, database_url, memory)
    _wrong_embedder(deployment, memory)
    _broker_down(deployment, broker)

    everything = "".join(deployment.log(name) for name in ("record", "extract", "lifecycle"))
    assert "record done" in everything
    assert MARKER not in everything


def _dead_worker(deployment: Deployment) -> None:
    deployment.kill("extract")
    found = deployment.doctor()
    assert set(found) == {"queue extract"}
    command = found["queue extract"].split(", or ")[0]
    assert command == "afterturn worker --queues extract"
    deployment.run_forever(command, "extract")
    deployment.wait_until_well("a new worker serves the queue")


def _stuck_job(deployment: Deployment, database_url: str, memory: _Memory) -> None:
    _sql(database_url, REFUSE.format("update"))
    job_id = memory.run(_write_and_flush)
    _fail_again(deployment, job_id)
    wait_until(
        lambda: "flush jobs are stuck" in deployment.type("afterturn status --check").words,
        "the failing flush is shown as stuck",
    )
    assert "afterturn jobs list --state stuck" in deployment.doctor()["work"]
    (job,) = deployment.type("afterturn jobs list --state stuck --json").json["jobs"]
    assert job["job_id"] == job_id
    assert job["reason"] == "MemoryUnavailable SQLSTATE P0001"
    _sql(database_url, ALLOW)
    assert deployment.type(f"afterturn jobs retry {job_id}").code == 0
    deployment.wait_until_well("the flush is done")


def _standing_intent(deployment: Deployment, database_url: str, memory: _Memory) -> None:
    _sql(database_url, REFUSE.format("delete"))
    job_id = memory.run(lambda m: m.enqueue_forget(ALICE)).job_id
    _fail_again(deployment, job_id)
    wait_until(
        lambda: "forget jobs are stuck" in deployment.type("afterturn status --check").words,
        "the failing erase is shown as stuck",
    )
    assert deployment.type("afterturn status --json").json["standing_intents"] == 1
    # It also is old, although everything answers.
    assert deployment.type("afterturn doctor --oldest 0.1 --patience 3").code == 1
    _sql(database_url, ALLOW)
    assert deployment.type(f"afterturn jobs retry {job_id}").code == 0
    deployment.wait_until_well("the erase is done")
    assert deployment.type("afterturn status --json").json["standing_intents"] == 0


def _fail_again(deployment: Deployment, job_id: int) -> None:
    """Once could be chance: an operator has it tried once more."""
    wait_until(
        lambda: deployment.type(f"afterturn jobs show {job_id} --json").json["reason"],
        "the job has failed",
    )
    assert deployment.type(f"afterturn jobs retry {job_id}").code == 0


def _wrong_embedder(deployment: Deployment, memory: _Memory) -> None:
    deployment.kill("extract")
    deployment.start("extract", AFTERTURN_EMBEDDER="tiny:wrong")
    assert deployment.parts["extract"].wait(60) == EXIT_MISCONFIGURED
    assert "The stored vectors are of another embedder" in deployment.log("extract")
    memory.run(lambda m: _hand_over(m, "t1"))
    assert set(deployment.doctor()) == {"queue extract"}
    # Asked with the worker's own settings they know why.
    wrong = {"AFTERTURN_EMBEDDER": "tiny:wrong"}
    assert "set AFTERTURN_EMBEDDER back" in deployment.doctor(**wrong)["embedder"]
    status = deployment.type("afterturn status --check", **wrong)
    assert status.code == 1
    assert "to look at: The stored vectors are of another embedder" in status.words
    deployment.start("extract")
    deployment.wait_until_well("the vectors are made")


def _broker_down(deployment: Deployment, broker: Valkey) -> None:
    broker.kill()
    status = deployment.type("afterturn status")
    assert status.code == 0
    assert "to look at: the broker does not answer" in status.words
    assert deployment.type("afterturn status --check").code == 1
    assert "start it" in deployment.doctor()["broker"]
    broker.start()
    deployment.wait_until_well("workers and beat have come back by themselves")


class _Memory:
    """An open memory for one call at a time, without vectors of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def run(self, work: Any) -> Any:
        """Run something with it."""

        async def opened() -> Any:
            async with Memory(self._settings) as memory:
                return await work(memory)

        return asyncio.run(opened())


async def _hand_over(memory: Memory, turn_id: str) -> None:
    async with memory.turn(ALICE, turn_id=turn_id) as turn:
        await turn.finish(f"I like {MARKER}", "Noted")


async def _write_and_flush(memory: Memory) -> int:
    async with memory.turn(ALICE) as turn:
        token = turn.token
    from afterturn import MemoryRecord, WriteRequest

    record = MemoryRecord(
        record_id="r1", text=MARKER, scope_path=ALICE.path, layer="semantic", origin="test"
    )
    await memory.write(WriteRequest(scope=ALICE, records=(record,), token=token))
    return (await memory.enqueue_flush(ALICE)).job_id


async def _is_drained(memory: Memory) -> bool:
    return not (await memory.status()).outstanding


def _sql(url: str, statement: str) -> None:
    async def execute() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(statement)
        await connection.close()

    asyncio.run(execute())
