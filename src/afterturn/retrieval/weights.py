"""How much each signal counts: the one place where ranking is tuned."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Weights:
    """What each signal adds to a score, before scores are brought to standard deviations.

    Rounded from a fit by conversations held out, on two kinds of chat (between people, with an
    assistant); see docs/ranking.md for what each is worth. `importance` and `recency` are
    options: questions look back evenly over a history, and a bonus for what is new loses more
    than it gains.
    """

    # Per standard deviation over all that is ranked.
    lexical: float = 0.15
    vector: float = 0.6
    previous: float = 0.2
    following: float = 0.2
    session: float = 0.3
    session_lexical: float = 0.1
    # For all of the question's rare words.
    coverage: float = 1.5
    thread_coverage: float = 1.5
    # How much more the words count where there is no vector of the question to help them.
    words_alone: float = 1.7
    # For what holds.
    speaker: float = 1.7
    user_side: float = 1.7
    first_person: float = 1.2
    standing: float = 1.5
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
    b: float = 0.7

    def without_vector(self) -> Weights:
        """The weights for a question of words alone."""
        return replace(
            self,
            lexical=self.words_alone * self.lexical,
            session_lexical=self.words_alone * self.session_lexical,
            coverage=self.words_alone * self.coverage,
            thread_coverage=self.words_alone * self.thread_coverage,
            standing=self.words_alone * self.standing,
        )


DEFAULT_WEIGHTS = Weights()
