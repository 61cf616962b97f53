"""From a message to the library: checks what arrived, hands ids on, answers with a short code.

The worker says once which `Work` its process does (`use`), so that tasks import no worker. A task
never raises: an exception would put its text into logs, events and Flower. All that leaves is
`recorded 3`, `ignored: release`, `failed: MemoryUnavailable` and the like.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from celery import shared_task

from afterturn import metrics
from afterturn.jobs.names import RELEASE, Kind

logger = logging.getLogger(__name__)

IDS_MAX: Final = 1_000
_ID_MAX: Final = 2**63 - 1  # a bigint


class Work(Protocol):
    """What one worker process can do; both block until it is done."""

    def run(self, kind: Kind, ids: Sequence[int]) -> str:
        """Do the jobs with these ids, as far as they are still to be done."""

    def sweep(self) -> str:
        """Ring for what is ready and was not rung lately."""

    def probe(self, probe_id: uuid.UUID) -> str:
        """Answer a probe."""


Task: TypeAlias = Callable[..., str]

_work: list[Work] = []
ignored: Counter[str] = Counter()
"""How many messages this process ignored, by reason."""


def task(name: str) -> Callable[[Task], Task]:
    """Make a function the Celery task `name`; the function itself stays as it is."""

    def register(function: Task) -> Task:
        shared_task(name=name)(function)
        return function

    return register


def use(work: Work) -> None:
    """Say what does the work in this process; the last call counts."""
    _work[:] = [work]


def ring(kind: Kind, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Answer a ring for jobs of `kind`; args are `[ids]`, kwargs `{"release": …}`."""
    if kwargs.get("release") != RELEASE:
        return _ignore(kind, "release")
    if len(args) != 1 or set(kwargs) != {"release"}:
        return _ignore(kind, "arguments")
    ids = args[0]
    if not _are_ids(ids):
        return _ignore(kind, "ids")
    return _guarded(kind, lambda work: work.run(kind, ids))


def sweep(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Answer a tick of the beat; it brings nothing but its release."""
    if kwargs.get("release") != RELEASE:
        return _ignore("sweep", "release")
    if args:
        return _ignore("sweep", "arguments")
    return _guarded("sweep", lambda work: work.sweep())


def probe(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Answer a probe; args are `[id]`, kwargs `{"release": …}`."""
    if kwargs.get("release") != RELEASE:
        return _ignore("probe", "release")
    try:
        (text,) = args
        probe_id = uuid.UUID(text)
    except (ValueError, TypeError, AttributeError):
        return _ignore("probe", "ids")
    return _guarded("probe", lambda work: work.probe(probe_id))


def _are_ids(value: object) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= IDS_MAX
        and all(type(number) is int and 0 <= number <= _ID_MAX for number in value)
    )


def _ignore(what: str, reason: str) -> str:
    ignored[reason] += 1
    metrics.IGNORED.labels(reason).inc()
    logger.warning("%s ignored: %s (%d so far in this process)", what, reason, ignored[reason])
    return f"ignored: {reason}"


def _guarded(what: str, call: Callable[[Work], str]) -> str:
    try:
        return call(_work[0])
    except Exception as error:  # noqa: BLE001 - its text may be anything, so only its name goes on
        logger.error("%s failed: %s", what, type(error).__name__)
        return f"failed: {type(error).__name__}"
