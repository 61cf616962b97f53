"""What a task makes of its arguments, without a worker around it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from afterturn.errors import MemoryUnavailable
from afterturn.jobs.names import RELEASE, Kind
from tasks import bridge

MARKER = "text of a memory"
RELEASED = {"release": RELEASE}


class _Work:
    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[tuple[str, list[int]]] = []
        self._error = error

    def run(self, kind: Kind, ids: Sequence[int]) -> str:
        if self._error is not None:
            raise self._error
        self.asked.append((kind, list(ids)))
        return f"recorded {len(ids)}"

    def sweep(self) -> str:
        return "rang 2"

    def probe(self, probe_id: uuid.UUID) -> str:
        return f"answered {probe_id}"


@pytest.fixture
def work() -> Iterator[_Work]:
    before = list(bridge._work)
    made = _Work()
    bridge.use(made)
    yield made
    bridge._work[:] = before


def test_a_ring_reaches_the_work(work: _Work) -> None:
    """Ids go to the work of this process, and its short code is the task's result."""
    assert bridge.ring("record", ([1, 2],), RELEASED) == "recorded 2"
    assert work.asked == [("record", [1, 2])]
    assert bridge.sweep((), RELEASED) == "rang 2"


def test_a_probe_reaches_the_work_with_its_id_alone(work: _Work) -> None:
    """Anything but one id and this release is ignored."""
    probe_id = str(uuid.uuid4())
    assert bridge.probe((probe_id,), RELEASED) == f"answered {probe_id}"
    for args in ((), (MARKER,), (probe_id, probe_id), ([1],), (1,)):
        assert bridge.probe(args, RELEASED) == "ignored: ids"
    assert bridge.probe((probe_id,), {}) == "ignored: release"


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        (([1],), {"release": RELEASE + 1}, "release"),
        (([1],), {}, "release"),
        (([1],), {"release": RELEASE, "text": MARKER}, "arguments"),
        (([1], MARKER), RELEASED, "arguments"),
        ((), RELEASED, "arguments"),
        ((1,), RELEASED, "ids"),
        (([],), RELEASED, "ids"),
        (([1, MARKER],), RELEASED, "ids"),
        (([1.5],), RELEASED, "ids"),
        (([True],), RELEASED, "ids"),
        (([-1],), RELEASED, "ids"),
        (([2**63],), RELEASED, "ids"),
        (([[1]],), RELEASED, "ids"),
        (([1] * (bridge.IDS_MAX + 1),), RELEASED, "ids"),
    ],
)
def test_what_is_no_ring_is_ignored(
    work: _Work,
    caplog: pytest.LogCaptureFixture,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    reason: str,
) -> None:
    """Anything but a list of ids of this release is ignored and counted, and never quoted."""
    before = bridge.ignored[reason]
    with caplog.at_level(logging.DEBUG):
        assert bridge.ring("record", args, kwargs) == f"ignored: {reason}"
    assert bridge.ignored[reason] == before + 1
    assert work.asked == []
    assert MARKER not in caplog.text
    assert reason in caplog.text


def test_a_tick_of_another_release_is_ignored(work: _Work) -> None:
    """The same holds for the sweep."""
    assert bridge.sweep((), {"release": 0}) == "ignored: release"
    assert bridge.sweep((1,), RELEASED) == "ignored: arguments"


@pytest.mark.parametrize("error", [MemoryUnavailable(MARKER), ValueError(MARKER)])
def test_an_error_leaves_only_its_name(
    work: _Work, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Whatever the work raises, result and log hold the name of its type and no text."""
    bridge.use(_Work(error))
    with caplog.at_level(logging.DEBUG):
        assert bridge.ring("forget", ([1],), RELEASED) == f"failed: {type(error).__name__}"
    assert MARKER not in caplog.text
    assert caplog.records[0].exc_info is None
