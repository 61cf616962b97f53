"""What is logged, and how a line looks: codes and ids, never text.

The library logs under `afterturn` and leaves handlers to the application. Workers and beat write
one line an event, as text or, with AFTERTURN_LOG_FORMAT=json, as an object:

    {"at": "2026-…", "level": "info", "logger": "afterturn.jobs", "event": "record done",
     "kind": "record", "outcome": "done", "jobs": [17, 18], "seconds": 0.004}
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

_FIELDS: Final = "afterturn_fields"
_LEVELS: Final = {
    "dead": logging.ERROR,
    "retry": logging.WARNING,
    "stale": logging.WARNING,
    "lost": logging.WARNING,
    "misplaced": logging.WARNING,
}

# Without it Python prints warnings of a library to stderr where nothing is set up.
logging.getLogger("afterturn").addHandler(logging.NullHandler())
_jobs = logging.getLogger("afterturn.jobs")


_CLIENTS: Final = ("openai", "httpx", "httpcore", "httpx2", "httpcore2")


def silence_clients() -> None:
    """Keep the clients of models from logging what is sent, as they do at DEBUG."""
    for name in _CLIENTS:
        logging.getLogger(name).setLevel(logging.WARNING)


def log_outcome(
    kind: str, outcome: str, jobs: Sequence[int], *, reason: str = "", seconds: float | None = None
) -> None:
    """One line for what became of jobs; `reason` is a short code."""
    fields: dict[str, Any] = {"kind": kind, "outcome": outcome, "jobs": list(jobs)}
    if reason:
        fields["reason"] = reason
    if seconds is not None:
        fields["seconds"] = round(seconds, 4)
    level = _LEVELS.get(outcome, logging.INFO)
    _jobs.log(level, "%s %s", kind, outcome, extra={_FIELDS: fields})


class TextFormatter(logging.Formatter):
    """`time level logger: event key=value …`; an exception is its type alone."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        pairs = " ".join(f"{key}={_flat(value)}" for key, value in _fields(record).items())
        line = f"{_moment(record)} {record.levelname} {record.name}: {_message(record)}"
        return f"{line} {pairs}".rstrip()


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {
            "at": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "event": _message(record),
            **_fields(record),
        }
        return json.dumps(line, default=str)


def formatter(log_format: str) -> logging.Formatter:
    """The formatter of AFTERTURN_LOG_FORMAT."""
    return JsonFormatter() if log_format == "json" else TextFormatter()


def _message(record: logging.LogRecord) -> str:
    text = " ".join(record.getMessage().split())
    if record.exc_info and record.exc_info[0] is not None:
        # Its text could be that of a memory.
        return f"{text} [{record.exc_info[0].__name__}]"
    return text


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, _FIELDS, {})
    return fields


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _flat(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    text = str(value)
    return json.dumps(text) if " " in text else text
