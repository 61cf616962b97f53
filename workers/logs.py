"""What workers log: codes and names, never what a message or a task held."""

from __future__ import annotations

import logging
from typing import Final

from afterturn.jobs.names import SWEEP_TASK

# Celery logs the whole message when it cannot use one.
_CONSUMER: Final = "celery.worker.consumer.consumer"
_NOISY: Final = ("celery.worker.strategy", "celery.app.trace")
_IDLE_RESULT: Final = "'rang 0'"


class _WithoutMessages(logging.Filter):
    """Replaces a report on an unusable message by its first line without the values."""

    def filter(self, record: logging.LogRecord) -> bool:
        template = str(record.msg)
        if "body" in template:
            record.msg = f"{template.splitlines()[0].split('%')[0].rstrip(': ')} [content withheld]"
            record.args = None
            record.exc_info = record.exc_text = None
        return True


class _WithoutIdleSweeps(logging.Filter):
    """Drops the two lines of a sweep that found nothing to do: one every few seconds for ever."""

    def filter(self, record: logging.LogRecord) -> bool:
        values = record.args if isinstance(record.args, dict) else getattr(record, "data", None)
        if record.levelno > logging.INFO or not isinstance(values, dict):
            return True
        if values.get("name") != SWEEP_TASK:
            return True
        return bool(values.get("return_value", _IDLE_RESULT) != _IDLE_RESULT)


class _WithoutTracebacks(logging.Filter):
    """Beat reports a tick that could not be sent with two stacks; its first line says it all."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            record.msg, record.args = record.getMessage().splitlines()[0], None
            record.exc_info = record.exc_text = None
        return True


def quieten() -> None:
    """Install the filters; in the parent, before the pool forks."""
    logging.getLogger("celery.beat").addFilter(_WithoutTracebacks())
    logging.getLogger(_CONSUMER).addFilter(_WithoutMessages())
    for name in _NOISY:
        logging.getLogger(name).addFilter(_WithoutIdleSweeps())
