"""How much each signal counts: the one place where ranking is tuned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the signals, in standard deviations of the lexical score over the scope.

    Set by hand from a study of two kinds of chat, between people and with assistants; fitted to
    no data set. `recency` is 0: questions look back evenly over a history, and a bonus for what
    is new loses more than it gains.
    """

    lexical: float = 1.0
    vector: float = 1.2
    previous: float = 0.2
    following: float = 0.15
    session: float = 0.4
    coverage: float = 1.0
    speaker: float = 2.0
    user_side: float = 1.0
    importance: float = 0.0
    recency: float = 0.0
    recency_half_life_days: float = 30.0
    k1: float = 0.9
    b: float = 0.75


DEFAULT_WEIGHTS = Weights()
