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

    What happened at the same time goes by when it was recorded, then by `order_key`. Few do, and
    those two keys are the ones that lie in no order and so take long to sort by: they are looked
    at only where they decide.
    """
    facts = ~columns["is_message"][slots]
    session, happened = columns["session_key"][slots], columns["happened_at"][slots]
    order = np.lexsort((happened, session, facts))
    ties = np.zeros(len(slots) + 1, dtype=np.bool_)
    for key in (facts, session, happened):
        ties[1:-1] |= key[order[1:]] != key[order[:-1]]
    ties[1:-1] = ~ties[1:-1]
    among = np.flatnonzero(ties[:-1] | ties[1:])
    if len(among):
        group = np.cumsum(~ties[:-1])[among]
        tied = slots[order[among]]
        decided = np.lexsort((columns["order_key"][tied], columns["recorded_at"][tied], group))
        order[among] = order[among[decided]]
    return slots[order]
