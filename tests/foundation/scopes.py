"""Hypothesis strategies for scopes: any text that the rules allow, and names that look alike."""

from __future__ import annotations

from hypothesis import strategies as st

from afterturn.errors import MemoryContractError
from afterturn.scope import MAX_DEPTH, MemoryScope

_LOOKALIKES = ["u1", "u10", "u_1", "uX1", "u%", "u", "U1", "u 1", "u/1", "u%2F1", ".", "..", "u."]

segments = st.text(
    alphabet=st.characters(blacklist_categories=("Cc", "Cs")), min_size=1, max_size=24
) | st.sampled_from(
    [*_LOOKALIKES, "会話", "мир", "👩‍👩‍👧", "e\u0301", "\u200f", " ", "~", "0", "//"]
)


def _fits(parts: list[str]) -> bool:
    try:
        MemoryScope.of(*parts)
    except MemoryContractError:
        return False
    return True


scopes = (
    st.lists(segments, min_size=1, max_size=MAX_DEPTH)
    .filter(_fits)
    .map(lambda parts: MemoryScope.of(*parts))
)

# Few names and few levels, so that equal prefixes and near misses are common.
related_scopes = st.lists(st.sampled_from(_LOOKALIKES), min_size=1, max_size=4).map(
    lambda parts: MemoryScope.of(*parts)
)
