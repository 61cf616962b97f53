"""The order of the conversations: a message's neighbours are what lies beside it.

The rows of a segment lie in it, too, so that what is ranked is mostly what is held, as it lies:
arrays need no rearranging for a question, and what is looked up lies in a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def in_order(columns: NDArray[Any], slots: NDArray[np.intp]) -> NDArray[np.intp]:
    """Slots by conversation, then time; facts, which are no part of one, after them.

    What happened at the same time goes by when it was recorded, then by `order_key`. Most slots
    come in order: only conversations that do not lie in it are sorted.
    """
    # Session keys are positive: a fact's has the highest bit, which is the sign.
    group = columns["session_key"].take(slots).astype(np.uint64)
    group |= (~columns["is_message"].take(slots)).astype(np.uint64) << np.uint64(63)
    slots = slots.take(np.argsort(group, kind="stable"))
    group.sort(kind="stable")
    begins = np.flatnonzero(group[1:] != group[:-1]) + 1
    unsorted = _comes_late(columns, slots)
    unsorted[begins - 1] = False  # what begins another conversation is not too late for this one
    if unsorted.any():
        number = np.zeros(len(slots), dtype=np.intp)
        number[begins] = 1
        number = np.cumsum(number)
        among = np.flatnonzero(np.isin(number, number[:-1][unsorted]))
        keys = columns.take(slots[among])
        order = (keys["order_key"], keys["recorded_at"], keys["happened_at"], number[among])
        slots[among] = slots[among[np.lexsort(order)]]
    return slots


def _comes_late(columns: NDArray[Any], slots: NDArray[np.intp]) -> NDArray[np.bool_]:
    """For each slot but the last whether the next one ought to come before it."""
    late = np.zeros(max(len(slots) - 1, 0), dtype=np.bool_)
    tied = ~late
    for name in ("happened_at", "recorded_at", "order_key"):
        values = columns[name].take(slots)
        late |= tied & (values[:-1] > values[1:])
        tied &= values[:-1] == values[1:]
    return late
