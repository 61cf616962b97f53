"""Real Celery workers: what they do with messages, what they hold, and how they end."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psutil  # type: ignore[import-untyped]  # it ships no types
import pytest

from afterturn import embedded
from afterturn.fleet import worker_command
from afterturn.jobs.names import (
    EXTRACT_QUEUE,
    LIFECYCLE_QUEUE,
    RECORD_QUEUE,
    RELEASE,
    SWEEP_QUEUE,
)
from afterturn.jobs.rings import RingPublisher
from afterturn.settings import Settings

from .running import MARKER, Running, Valkey, is_gone, launch, wait_until

pytestmark = pytest.mark.fleet

StartWorker = Callable[..., Running]

_RELEASED = {"release": RELEASE}


@pytest.fixture
def start_worker(settings: Settings, directory: Path) -> Iterator[StartWorker]:
    """Starts workers with the stub runner; they have ended afterwards."""
    started: list[Running] = []

    def start(**options: Any) -> Running:
        changes = options.pop("changes", {})
        command = worker_command(
            (RECORD_QUEUE, EXTRACT_QUEUE, LIFECYCLE_QUEUE, SWEEP_QUEUE),
            name="tested",
            settings=settings.model_copy(update=changes),
            ready_file=directory / f"ready-{len(started)}",
        )
        running = launch(command, directory, name=f"worker-{len(started)}", **options)
        started.append(running)
        return running

    yield start
    for running in started:
        running.kill()


@pytest.fixture
def worker(start_worker: StartWorker, directory: Path) -> Running:
    """One worker that consumes."""
    running = start_worker()
    wait_until((directory / "ready-0").exists, "the worker is ready")
    return running


def test_messages_of_every_kind(
    worker: Running, broker: Valkey, publisher_for: Callable[..., RingPublisher]
) -> None:
    """Rings are done and logged as short codes; useless messages are passed over without a quote.

    Among the useless: another release, no integers, an unknown task, a pickle, no message at all.
    """
    publisher = publisher_for(broker.url)
    publisher.ring("record", [1, 2, 3])
    wait_until(lambda: worker.said("'record 3'"), "the ring is done")
    publisher.ring("flush", [4])  # it would overtake: it does not linger
    wait_until(lambda: worker.said("'failed: MemoryUnavailable'"), "the failing flush is reported")

    broker.send_raw(RECORD_QUEUE, _message("afterturn.record_turns", [[9]], {"release": 99}))
    broker.send_raw(
        RECORD_QUEUE, _message("afterturn.record_turns", [[MARKER]], {"release": RELEASE})
    )
    broker.send_raw(RECORD_QUEUE, _message("afterturn.no_such", [MARKER], {}))
    broker.send_raw(RECORD_QUEUE, _pickle())
    broker.send_raw(RECORD_QUEUE, _message("afterturn.sweep", [], {"release": RELEASE}))
    wait_until(lambda: worker.was_asked("sweep", []), "it still works after all of them")
    publisher.ring("record", [5])
    wait_until(lambda: worker.said("'record 1'"), "and goes on")

    output = worker.output()
    assert "'ignored: release'" in output
    assert "'ignored: ids'" in output
    assert "[content withheld]" in output
    assert MARKER not in output
    assert "rang 0" not in output  # idle sweeps are no news
    assert not Path(worker.log.parent, "unpickled").exists()
    assert [call[0] for call in worker.called()] == ["record", "flush", "sweep", "record"]


def test_the_parent_holds_nothing_that_children_could_share(
    start_worker: StartWorker,
    broker: Valkey,
    directory: Path,
    publisher_for: Callable[..., RingPublisher],
    home: Path,
) -> None:
    """The pool's parent has one thread and no connection to PostgreSQL; its child has its own."""
    database_url = embedded.ensure(home, durable=False).database_url
    assert database_url is not None
    worker = start_worker(changes={"database_url": f"{database_url}&application_name=tested"})
    wait_until((directory / "ready-0").exists, "the worker is ready")
    assert _connections(database_url) == 0
    publisher_for(broker.url).ring("expire", [1])
    wait_until(lambda: worker.said("'expire 1'"), "the child has asked PostgreSQL")
    assert _connections(database_url) == 1

    parent = psutil.Process(worker.pid)
    (child,) = worker.children()
    assert parent.num_threads() == 1
    assert child.num_threads() > 1
    inodes = _sockets_of(child) - _sockets_of(parent)
    assert inodes, "the child's connection is none of its parent's"
    assert worker.stop() == 0
    assert _connections(database_url) == 0


def test_two_hundred_tasks_of_two_children_share_nothing(
    start_worker: StartWorker, broker: Valkey, directory: Path, home: Path
) -> None:
    """One after the other, failing ones between, each asks PostgreSQL over its child's own."""
    database_url = embedded.ensure(home, durable=False).database_url
    worker = start_worker(changes={"database_url": database_url, "worker_concurrency": 2})
    wait_until((directory / "ready-0").exists, "the worker is ready")
    for number in range(200):
        if number % 10 == 0:
            broker.send_raw(LIFECYCLE_QUEUE, _message("afterturn.flush", [[1]], _RELEASED))
        broker.send_raw(LIFECYCLE_QUEUE, _message("afterturn.expire", [[number + 1]], _RELEASED))
    wait_until(lambda: worker.output().count("'expire 1'") == 200, "all are done")
    wait_until(
        lambda: worker.output().count("'failed: MemoryUnavailable'") == 20, "and the failing ones"
    )
    assert worker.output().count("'failed: ") == 20
    assert len({pid for kind, _, pid in worker.called() if kind == "expire"}) == 2


def test_it_starts_before_its_servers(
    start_worker: StartWorker, broker: Valkey, publisher_for: Callable[..., RingPublisher]
) -> None:
    """A worker started without its broker waits and consumes later; a database that goes away then
    is named. (One that is not there at the start is waited for: `tests/operate/test_starting.py`.)
    """
    broker.kill()
    worker = start_worker()
    wait_until(lambda: worker.said("Cannot connect to"), "it misses the broker")
    broker.start()
    publisher_for(broker.url).ring("expire", [1])
    wait_until(lambda: worker.said("'failed: MemoryUnavailable'"), "it misses the database")
    assert worker.process.poll() is None


def test_it_survives_the_loss_of_the_broker_during_a_task(
    worker: Running, broker: Valkey, directory: Path, publisher_for: Callable[..., RingPublisher]
) -> None:
    """With a task running and rings waiting, a broker that is killed costs the waiting rings only.

    The message was acknowledged before the work, so the broker's copy is gone by then.
    """
    publisher = publisher_for(broker.url)
    publisher.ring("extract", range(25))  # three messages, one process
    wait_until(lambda: publisher.stats().sent == 25, "all are sent")
    wait_until(lambda: len(worker.called()) == 1, "one task runs")
    assert len(broker.messages(EXTRACT_QUEUE)) == 2
    with broker.client() as client:
        assert client.keys("*unacked*") == []
    broker.kill()
    wait_until(lambda: worker.said("Connection to broker lost"), "the loss is noticed")
    (directory / "gate").touch()
    wait_until(lambda: worker.said("'extract 10'"), "the task ends undisturbed")
    broker.start()
    publisher.ring("record", [7])
    wait_until(lambda: worker.was_asked("record", [7]), "it consumes again")
    assert worker.process.poll() is None


def test_a_term_signal_lets_the_running_task_finish(
    worker: Running, broker: Valkey, directory: Path, publisher_for: Callable[..., RingPublisher]
) -> None:
    """SIGTERM: no new task, the running one ends, the exit code is 0."""
    publisher = publisher_for(broker.url)
    publisher.ring("extract", [1])
    wait_until(lambda: len(worker.called()) == 1, "a task runs")
    worker.process.send_signal(signal.SIGTERM)
    wait_until(lambda: worker.said("Warm shutdown"), "it ends")
    publisher.ring("record", [2])
    wait_until(lambda: publisher.stats().sent == 2, "another ring is sent")
    assert worker.process.poll() is None
    (directory / "gate").touch()
    assert worker.stop() == 0
    assert worker.said("'extract 1'")
    assert not worker.was_asked("record", [2])


def test_a_task_without_end_is_left_behind(
    start_worker: StartWorker,
    broker: Valkey,
    directory: Path,
    publisher_for: Callable[..., RingPublisher],
) -> None:
    """After the grace period a worker ends all the same, and its processes with it."""
    worker = start_worker(extra_env={"FLEET_TEST_GRACE_SECONDS": "0.1"})
    wait_until((directory / "ready-0").exists, "the worker is ready")
    publisher_for(broker.url).ring("extract", [1])
    wait_until(lambda: len(worker.called()) == 1, "a task runs")
    children = [child.pid for child in worker.children()]
    assert worker.stop() == 0
    assert not worker.said("'extract 1'")
    wait_until(lambda: all(map(is_gone, children)), "its processes are gone")


@pytest.mark.skipif(not hasattr(psutil, "PROCFS_PATH"), reason="parent-death signals are Linux's")
def test_no_process_outlives_a_killed_worker(
    worker: Running, broker: Valkey, publisher_for: Callable[..., RingPublisher]
) -> None:
    """kill -9 of a worker ends the processes of its pool."""
    publisher_for(broker.url).ring("extract", [1])
    wait_until(lambda: len(worker.called()) == 1, "a task runs")
    children = [child.pid for child in worker.children()]
    worker.kill()
    wait_until(lambda: children and all(map(is_gone, children)), "its processes are gone")


def test_spawned_processes_work_like_forked_ones(
    start_worker: StartWorker,
    broker: Valkey,
    directory: Path,
    publisher_for: Callable[..., RingPublisher],
) -> None:
    """Where processes are spawned, as on macOS, they find settings and tasks by themselves."""
    worker = start_worker(extra_env={"FLEET_TEST_SPAWN": "1"})
    wait_until((directory / "ready-0").exists, "the worker is ready")
    publisher_for(broker.url).ring("record", [1])
    wait_until(lambda: worker.said("'record 1'"), "a spawned process answers")


def _connections(url: str) -> int:
    """How many connections of the tested worker PostgreSQL knows."""

    async def count() -> int:
        connection = await asyncpg.connect(url)
        try:
            return int(
                await connection.fetchval(
                    "select count(*) from pg_stat_activity where application_name = 'tested'"
                )
            )
        finally:
            await connection.close()

    return asyncio.run(count())


def _sockets_of(process: psutil.Process) -> set[str]:
    """The inodes of its sockets."""
    links = Path(f"/proc/{process.pid}/fd").iterdir()
    return {str(link.readlink()) for link in links if "socket" in str(link.readlink())}


def _message(task: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    body = json.dumps([args, kwargs, {}]).encode()
    return _envelope(body, "application/json", "utf-8", {"task": task, "id": str(uuid.uuid4())})


class _Trap:
    """Unpickling it leaves a file behind."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("unpickled"),))


def _pickle() -> dict[str, Any]:
    body = pickle.dumps(([[1], _Trap()], {"release": RELEASE}, {}))
    headers = {"task": "afterturn.record_turns", "id": str(uuid.uuid4())}
    return _envelope(body, "application/x-python-serialize", "binary", headers)


def _envelope(
    body: bytes, content_type: str, encoding: str, headers: dict[str, Any]
) -> dict[str, Any]:
    return {
        "body": base64.b64encode(body).decode(),
        "content-encoding": encoding,
        "content-type": content_type,
        "headers": {"lang": "py", "argsrepr": "", "kwargsrepr": "", **headers},
        "properties": {
            "correlation_id": headers["id"],
            "delivery_mode": 2,
            "delivery_tag": str(uuid.uuid4()),
            "delivery_info": {"exchange": "", "routing_key": RECORD_QUEUE},
            "priority": 0,
            "body_encoding": "base64",
        },
    }
