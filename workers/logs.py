"""What workers and beat log, and how: codes and names, never what a message or a task held."""

from __future__ import annotations

import logging
from typing import Any, Final

from celery import signals
from celery.utils.log import get_multiprocessing_logger

from afterturn.jobs.names import SWEEP_TASK
from afterturn.logs import formatter
from afterturn.settings import Settings

# Celery logs the whole message when it cannot use one.
_CONSUMER: Final = "celery.worker.consumer.consumer"
# One line a message when it comes, beside the one when it is done.
_ARRIVALS: Final = "celery.worker.strategy"
_NOISY: Final = (_ARRIVALS, "celery.app.trace")
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


def install(settings: Settings) -> None:
    """Install filters and the format of AFTERTURN_LOG_FORMAT; in the parent, before it forks."""
    _quieten()
    chosen = formatter(settings.log_format)

    def on_setup(logger: logging.Logger, **_: Any) -> None:
        # The pool has a logger of its own, which Celery sets up beside the root.
        for handler in (*logger.handlers, *get_multiprocessing_logger().handlers):
            handler.setFormatter(chosen)

    signals.after_setup_logger.connect(on_setup, weak=False)
    signals.after_setup_task_logger.connect(on_setup, weak=False)


def _quieten() -> None:
    logging.getLogger(_ARRIVALS).setLevel(logging.WARNING)
    logging.getLogger("celery.beat").addFilter(_WithoutTracebacks())
    logging.getLogger(_CONSUMER).addFilter(_WithoutMessages())
    for name in _NOISY:
        logging.getLogger(name).addFilter(_WithoutIdleSweeps())
