"""How often an absent model is called."""

from __future__ import annotations

import pytest

from afterturn.extraction.gate import ModelGate


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(clock: Clock) -> ModelGate:
    return ModelGate(1.0, 8.0, clock=clock)


def test_it_is_open_at_first(gate: ModelGate) -> None:
    """All calls may be made, however many are under way."""
    assert gate.room(16, 0) == 16
    assert gate.room(3, 13) == 3


def test_it_closes_longer_each_time_up_to_the_cap(gate: ModelGate, clock: Clock) -> None:
    """One call probes in between; it is not made twice."""
    pauses = []
    for _ in range(5):
        pauses.append(gate.missed())
        assert gate.room(16, 0) == 0
        clock.now += pauses[-1]
        assert gate.room(16, 0) == 1
        assert gate.room(15, 1) == 0
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0]


def test_calls_that_were_under_way_together_are_one_failure(gate: ModelGate, clock: Clock) -> None:
    """Sixteen that fail at the same moment do not close it for hours."""
    for _ in range(16):
        assert gate.missed() == 1.0
    clock.now += 1.0
    assert gate.missed() == 2.0


def test_what_the_endpoint_asks_for_is_kept_to(gate: ModelGate, clock: Clock) -> None:
    """The longer of the two waits; also when it comes from a later one of several calls."""
    assert gate.missed(0.5) == 1.0
    assert gate.missed(30.0) == 30.0
    clock.now += 29.0
    assert gate.room(16, 0) == 0
    clock.now += 1.0
    assert gate.room(16, 0) == 1


def test_an_answer_opens_it(gate: ModelGate) -> None:
    """Good or bad: the model is there."""
    gate.missed(60.0)
    gate.reached()
    assert gate.room(16, 4) == 16
    assert gate.missed() == 1.0
