"""Ranks what a reader may see for one question.

score = the sum of the weighted signals, brought to standard deviations above the mean of what is
ranked; the parts of a score add up to it. Ranking takes two steps. Everything visible is scored
by what its own text says: BM25, vector, coverage, the kind of sentence, who speaks. The best of
these and their neighbours, some thousand, are the candidates; for them count also the messages
around, the session, and what the question asks for. Scopes of up to `reach` records are
candidates as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from afterturn.retrieval import lexical, signals
from afterturn.retrieval.lexical import Floats, Hits, Mask
from afterturn.retrieval.question import Cue, Question, named_speaker
from afterturn.retrieval.selection import Slots
from afterturn.retrieval.signals import Standard
from afterturn.retrieval.tokenizer import terms
from afterturn.retrieval.traits import NAMES_MAX
from afterturn.retrieval.view import View
from afterturn.retrieval.weights import DEFAULT_WEIGHTS, Weights

REACH: Final = 1_000
"""How many of the best are candidates for the second step."""

# How vector and lexical evidence weigh where the evidence of other messages is borrowed.
_VECTOR_TO_LEXICAL: Final = 1.2
# Two builds of the same index may sum in another order: closer than this, scores are equal.
_SCORE_DECIMALS: Final = 5
# What names in a text count for, by how many it has.
_NAMED: Final = np.log2(1.0 + np.arange(NAMES_MAX + 1))
# Where so many times more are ranked than wanted, a sample tells which can be among the best.
_SAMPLED_FROM: Final = 8
_SAMPLE: Final = 4_000


class Parts:
    """What each signal adds at `count` positions.

    They lie `among` so many (by default there are no others); to the others nothing is added.
    """

    def __init__(self, count: int, among: int | None = None) -> None:
        self._count = count
        self._among = (count if among is None else among) or 1
        self.weights: list[float] = []
        self._values: list[NDArray[Any]] = []
        self._means: list[float | None] = []
        self.names: list[str] = []

    def add(
        self, name: str, weight: float, values: NDArray[Any], *, mean: float | None = None
    ) -> None:
        """One more signal: the values by its weight. A mean that is known need not be computed."""
        self.names.append(name)
        self.weights.append(weight)
        self._values.append(values)
        self._means.append(mean)

    def add_standard(self, name: str, weight: float, values: Standard) -> None:
        """One more signal, in standard deviations."""
        self.add(name, weight * values.per_spread, values.values, mean=values.mean)

    def total(self) -> Floats:
        """What all of them add at each position, their means among it."""
        total = np.empty(self._count)
        np.multiply(self._values[0], self.weights[0], out=total)
        part = np.empty(self._count)
        for weight, values in zip(self.weights[1:], self._values[1:], strict=True):
            total += values if weight == 1.0 else np.multiply(values, weight, out=part)
        return total

    def taken(self, places: Slots) -> list[NDArray[Any]]:
        """The values at some places, by signal."""
        return [values.take(places) for values in self._values]

    def means(self) -> list[float]:
        """The mean of all values, by signal."""
        return [
            self._mean(values) if known is None else known
            for values, known in zip(self._values, self._means, strict=True)
        ]

    def _mean(self, values: NDArray[Any]) -> float:
        count = np.count_nonzero if values.dtype == np.bool_ else np.add.reduce
        return float(count(values)) / self._among


@dataclass(frozen=True, slots=True)
class Ranking:
    """The candidates' `positions` in the view, ascending, with scores aligned.

    `own` are the weighted signals of all positions, `around` those of the candidates; `scale`
    brings them to standard deviations. `order_key` and `happened_at` are of all positions.
    """

    positions: Slots
    scores: Floats
    own: Parts
    around: Parts
    scale: float
    order_key: NDArray[np.int64]
    happened_at: Floats

    def best(self, count: int) -> Slots:
        """The places of the best `count` candidates, best first; newer first among equals."""
        scores = self.scores
        # All that ties with the last place takes part, so that the cut is no accident.
        chosen = _largest(scores, count) if 0 < count < len(scores) else None
        rows = self.positions if chosen is None else self.positions.take(chosen)
        found = scores if chosen is None else scores.take(chosen)
        order = np.lexsort((self.order_key[rows], -self.happened_at[rows], -found))[:count]
        return order if chosen is None else chosen.take(order)

    def explained(self, places: Sequence[int]) -> list[dict[str, float]]:
        """What each signal that is not silent adds to the scores at these places."""
        own, around, at = self.own, self.around, np.asarray(places, dtype=np.intp)
        added = np.array([*own.taken(self.positions.take(at)), *around.taken(at)], dtype=np.float64)
        added -= np.array([*own.means(), *around.means()])[:, None]
        added *= np.array([*own.weights, *around.weights])[:, None] * self.scale
        names = (*own.names, *around.names)
        return [
            {name: part for name, part in zip(names, row, strict=True) if part}
            for row in added.T.round(6).tolist()
        ]


def rank(
    view: View, cue: Cue, weights: Weights = DEFAULT_WEIGHTS, *, reach: int = REACH
) -> Ranking:
    """The ranking of the best `reach` positions at least; equal inputs rank equally.

    The names of those who speak are in whatever they said: they tell who, and not what about.
    """
    question = Question.of(cue)
    if cue.vector is None or not view.vectors:
        weights = weights.without_vector()
    hits = view.hits(question.terms)
    telling = hits.without(view.name_terms())
    own, evidence = _own(view, cue, question, hits, telling, weights)
    base = own.total()
    at = _candidates(base, reach)
    around = _around(view, question, hits, telling, evidence, weights, at)
    scores = base.take(at) + around.total()
    base[at] = scores
    _, mean, scale = signals.standard(base)
    scores -= mean
    scores *= scale
    return Ranking(
        positions=at,
        scores=scores.round(_SCORE_DECIMALS),
        own=own,
        around=around,
        scale=scale,
        order_key=view.column("order_key"),
        happened_at=view.column("happened_at"),
    )


def _own(
    view: View, cue: Cue, question: Question, hits: Hits, telling: Hits, weights: Weights
) -> tuple[Parts, Standard]:
    """What each record's own text says; then the evidence in it that others may borrow."""
    own = Parts(len(view))
    scores = lexical.bm25(hits, view.piece_lengths, view.mean_length, k1=weights.k1, b=weights.b)
    evidence = words = signals.standard(view.best_piece(scores))
    own.add_standard("lexical", weights.lexical, words)
    if cue.vector is not None:
        known = None if view.vectors == len(view) else view.has_vector
        cosines = signals.standard(view.cosines(cue.vector), known)
        own.add_standard("vector", weights.vector, cosines)
        if cosines.per_spread:
            evidence = _together(words, cosines)
    own.add("coverage", weights.coverage, signals.coverage(view, telling))
    if question.terms:
        own.add("prior", 1.0, view.prior(weights, to_assistant=question.to_assistant))
    if question.asks_help:
        own.add("standing", weights.standing, view.standing)
    if (speaker := named_speaker(cue.text, view.names())) is not None:
        own.add("speaker", weights.speaker, _is_about(view, speaker, hits))
    if weights.importance:
        own.add("importance", weights.importance, view.column("importance"))
    if weights.recency and len(view):
        happened_at = view.column("happened_at")
        now = cue.now if cue.now is not None else float(happened_at.max())
        recent = signals.recency(happened_at, now, weights.recency_half_life_days)
        own.add("recency", weights.recency, recent)
    return own, evidence


def _together(words: Standard, cosines: Standard) -> Standard:
    """The evidence of both arms, each in standard deviations."""
    share = words.per_spread / (_VECTOR_TO_LEXICAL * cosines.per_spread)
    values = words.values * share
    values += cosines.values
    return signals.standard(values, mean=share * words.mean + cosines.mean)


def _candidates(base: Floats, reach: int) -> Slots:
    if len(base) <= reach:
        return np.arange(len(base))
    best = _largest(base, reach)
    chosen = np.zeros(len(base) + 1, dtype=np.bool_)
    for beside in (best, best - 1, best + 1):
        chosen[beside] = True  # before the first is the one too many at the end
    return np.flatnonzero(chosen[:-1])


def _largest(values: Floats, count: int) -> Slots:
    """Where the `count` largest of more values are, with all that tie with the last of them."""
    if len(values) > _SAMPLED_FROM * count and len(values) > _SAMPLE:
        # Twice as many as wanted lie above what this share of a sample does: sort out among them.
        sample = values[:: len(values) // _SAMPLE]
        share = min(2 * count * len(sample) // len(values) + 8, len(sample))
        above = np.flatnonzero(values >= np.partition(sample, -share)[-share])
        if len(above) >= count:
            return above.compress(_among_largest(values.take(above), count))
    return np.flatnonzero(_among_largest(values, count))


def _among_largest(values: Floats, count: int) -> Mask:
    return np.asarray(values >= np.partition(values, -count)[-count])


def _around(
    view: View,
    question: Question,
    hits: Hits,
    telling: Hits,
    evidence: Standard,
    weights: Weights,
    at: Slots,
) -> Parts:
    """What the messages around each candidate say, and whether it is of the kind asked for."""
    around = Parts(len(at), among=len(view))
    around.add("previous", weights.previous, signals.previous_evidence(evidence, view, at))
    around.add("following", weights.following, signals.following_evidence(evidence, view, at))
    covered = signals.thread_coverage(view, telling, at)
    around.add("thread_coverage", weights.thread_coverage, covered)
    around.add("session", weights.session, signals.session_evidence(evidence, view, at))
    session = signals.session_lexical(view, hits, at, k1=weights.k1, b=weights.b)
    around.add("session_lexical", weights.session_lexical, session)
    if question.asks_time:
        around.add("time_told", weights.time_told, view.column("tells_time")[at])
    if question.asks_number:
        around.add("number_told", weights.number_told, view.column("tells_number")[at])
    if question.asks_name:
        around.add("names_told", weights.names_told, _NAMED.take(view.column("names")[at]))
    if question.window is not None:
        nearness = question.window.nearness(view.column("happened_at")[at])
        around.add("time_window", weights.time_window, nearness)
    return around


def _is_about(view: View, speaker: str, hits: Hits) -> Mask:
    """What the speaker said; a fact has no speaker: it is about whom it names."""
    said = view.said_by(speaker)
    if not view.unnamed:
        return said
    mentions = np.zeros(len(view), dtype=np.bool_)
    mentions[view.owners(hits.documents_of(terms(speaker)))] = True
    return said | (mentions & ~view.has_speaker())
