"""A Celery app with a task that does nothing: what the queue itself costs."""

from __future__ import annotations

import os

from celery import Celery

_URL = os.environ["NOOP_BROKER_URL"]
app = Celery("noop", broker=_URL, backend=_URL)
app.conf.update(
    task_ignore_result=True,
    task_default_queue="noop",
    worker_send_task_events=True,
    worker_disable_prefetch=False,
    worker_prefetch_multiplier=64,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"global_keyprefix": "noop:"},
)


@app.task(name="noop.nothing")  # type: ignore[untyped-decorator]  # celery is untyped
def nothing(number: int) -> None:
    """Do nothing."""


@app.task(name="noop.answer", ignore_result=False)  # type: ignore[untyped-decorator]  # as above
def answer(number: int) -> int:
    """Do nothing and say so."""
    return number
