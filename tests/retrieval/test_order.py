"""The order of the conversations against sorting row by row."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from afterturn.retrieval.order import in_order
from afterturn.retrieval.segments import COLUMNS

KEYS = ("session_key", "happened_at", "recorded_at", "order_key")
rows = st.lists(
    st.tuples(
        st.booleans(),
        st.sampled_from([0, 1, 5, (1 << 62) | 1, (1 << 63) - 1]),
        *(st.integers(0, 2) for _ in KEYS[1:]),
    ),
    unique=True,
    max_size=12,
)


@given(rows, st.data())
def test_slots_lie_by_conversation_then_time(
    some: list[tuple[bool, int, int, int, int]], data: st.DataObject
) -> None:
    """Whatever order they come in; facts come last."""
    columns = np.zeros(len(some), dtype=COLUMNS)
    for at, row in enumerate(some):
        columns["is_message"][at] = row[0]
        for name, value in zip(KEYS, row[1:], strict=True):
            columns[name][at] = value
    slots = data.draw(st.permutations(range(len(some))))
    wanted = data.draw(st.integers(0, len(some)))
    found = in_order(columns, np.array(slots[:wanted], dtype=np.intp)).tolist()
    expected = sorted(slots[:wanted], key=lambda at: (not some[at][0], *some[at][1:]))
    assert found == expected
