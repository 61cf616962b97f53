"""How much each signal counts: the one place where ranking is tuned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Weights:
    """What each signal adds to a score, before scores are brought to standard deviations.

    Rounded from a fit by conversations held out, on two kinds of chat (between people, with an
    assistant); see docs/ranking.md for what each is worth. `importance` and `recency` are
    options: questions look back evenly over a history, and a bonus for what is new loses more
    than it gains.
    """

    # Per standard deviation over all that is ranked.
    lexical: float = 0.2
    vector: float = 0.55
    previous: float = 0.2
    following: float = 0.2
    session: float = 0.3
    session_lexical: float = 0.1
    # For all of the question's rare words.
    coverage: float = 2.5
    thread_coverage: float = 2.0
    # For what holds.
    speaker: float = 1.7
    user_side: float = 1.7
    first_person: float = 1.2
    time_told: float = 1.4
    number_told: float = 0.7
    time_window: float = 0.7
    # For one, twice as much for three, and so on by the logarithm.
    names_told: float = 0.3
    # Options.
    importance: float = 0.0
    recency: float = 0.0
    recency_half_life_days: float = 30.0
    # Okapi's parameters.
    k1: float = 0.9
    b: float = 0.6


DEFAULT_WEIGHTS = Weights()
