"""Probes: no-op jobs through each queue, answered by workers in the database.

An answer proves that the broker delivers, that a worker takes from this queue, and that it reaches
this database; and it brings the time of the worker's own clock.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from afterturn.database import Database
from afterturn.jobs.broker import APP_LOADER, shared_settings, worker_transport
from afterturn.jobs.names import PROBE_TASK, RELEASE
from afterturn.settings import Settings

_ASK = "select afterturn.ask_probes($1::uuid[])"
_ANSWERS = """
select id, extract(epoch from answered_at - asked_at)::float8 as took,
    extract(epoch from worker_at - answered_at)::float8 as ahead
from afterturn.probes where id = any($1::uuid[]) and answered_at is not null
"""
_POLL_SECONDS: Final = 0.05
_PING_SECONDS: Final = 1.0
_PING_ONE_SECONDS: Final = 5.0
_BEAT: Final = "celerybeat"


@dataclass(frozen=True)
class Answer:
    """How long the way through the queue took, and how far the worker's clock is ahead."""

    seconds: float
    ahead_seconds: float


async def probe_queues(
    database: Database, settings: Settings, queues: Sequence[str], *, seconds: float
) -> dict[str, Answer]:
    """The answers by queue, of those that answered in time. Raises what the broker's client does.

    A probe that nobody takes expires, so that it is no work for whoever starts later.
    """
    ids = {uuid.uuid4(): queue for queue in queues}
    await database.value(_ASK, list(ids))
    await asyncio.to_thread(_send, settings, {str(each): queue for each, queue in ids.items()})
    answers: dict[str, Answer] = {}
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while len(answers) < len(queues) and loop.time() < until:
        await asyncio.sleep(_POLL_SECONDS)
        for row in await database.rows(_ANSWERS, list(ids)):
            answers[ids[row["id"]]] = Answer(row["took"], row["ahead"])
    return answers


def ping_parts(settings: Settings, only: str | None = None) -> list[str]:
    """The names of workers and beats that answer; a beat that does not tick is silent. Blocks.

    `only` limits the question to one of them, who is then not waited for longer than needed.
    """
    app = _app(settings)
    with app.connection_for_write() as connection:
        answers = app.control.ping(
            destination=None if only is None else [only],
            timeout=_PING_SECONDS if only is None else _PING_ONE_SECONDS,
            limit=None if only is None else 1,
            connection=connection,
        )
    return sorted(name for answer in answers for name in answer)


def part_here(name: str) -> str:
    """What Celery calls this machine's worker of that name, or its `beat`."""
    return f"{_BEAT if name == 'beat' else name}@{socket.gethostname()}"


def is_beat(name: str) -> bool:
    """Whether the part with this name is a beat."""
    return name.partition("@")[0] == _BEAT


def _send(settings: Settings, queues: dict[str, str]) -> None:
    app = _app(settings)
    with app.connection_for_write() as connection:
        producer = app.amqp.Producer(connection)
        for probe_id, queue in queues.items():
            app.send_task(
                PROBE_TASK,
                args=[probe_id],
                kwargs={"release": RELEASE},
                queue=queue,
                producer=producer,
                retry=False,
                ignore_result=True,
                expires=60,
            )


def _app(settings: Settings) -> Any:
    """An app apart from the host's, patient enough for answers."""
    from celery import Celery

    app = Celery("afterturn", loader=APP_LOADER, fixups=(), set_as_current=False)
    app.conf.update(shared_settings(str(settings.broker_url)))
    app.conf.update(
        broker_transport_options=worker_transport() | {"max_retries": 0},
        broker_connection_retry=False,
        broker_connection_timeout=settings.broker_timeout_seconds,
    )
    return app
