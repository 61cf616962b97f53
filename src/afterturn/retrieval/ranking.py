"""Ranks what a reader may see for one question.

score = the sum of the weighted signals, brought to standard deviations above the mean of what is
ranked; the parts of a score add up to it. Ranking takes two steps. Everything visible is scored
by what its own text says: BM25, vector, coverage, the kind of sentence, who speaks. The best of
these and their neighbours, some thousand, are the candidates; for them count also the messages
around, the session, and what the question asks for. Scopes of up to `reach` records are
candidates as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from afterturn.retrieval import lexical, signals
from afterturn.retrieval.lexical import Floats, Mask, TermHits
from afterturn.retrieval.question import Cue, Question, named_speaker
from afterturn.retrieval.selection import Slots
from afterturn.retrieval.tokenizer import terms
from afterturn.retrieval.view import View
from afterturn.retrieval.weights import DEFAULT_WEIGHTS, Weights

REACH: Final = 1_000
"""How many of the best are candidates for the second step."""

# How vector and lexical evidence weigh where the evidence of other messages is borrowed.
_VECTOR_TO_LEXICAL: Final = 1.2
# Two builds of the same index may sum in another order: closer than this, scores are equal.
_SCORE_DECIMALS: Final = 5


@dataclass(frozen=True, slots=True)
class Ranking:
    """The candidates' `positions` in the view, ascending, with scores aligned.

    `own` are the weighted signals of all positions, `around` those of the candidates; `scale`
    brings them to standard deviations. `order_key` and `happened_at` are of all positions.
    """

    positions: Slots
    scores: Floats
    own: dict[str, Floats]
    around: dict[str, Floats]
    scale: float
    order_key: NDArray[np.int64]
    happened_at: Floats

    def best(self, count: int) -> Slots:
        """The places of the best `count` candidates, best first; newer first among equals."""
        chosen = np.arange(len(self.scores))
        if count < len(self.scores):
            # All that ties with the last place takes part, so that the cut is no accident.
            last = np.partition(self.scores, -count)[-count]
            chosen = np.flatnonzero(self.scores >= last)
        rows = self.positions[chosen]
        keys = (self.order_key[rows], -self.happened_at[rows], -self.scores[chosen])
        return chosen[np.lexsort(keys)][:count]

    def explained(self, places: Sequence[int]) -> list[dict[str, float]]:
        """What each signal that is not silent adds to the scores at these places."""
        at = self.positions[places]
        count = len(next(iter(self.own.values())))
        parts = {n: value[at] - np.add.reduce(value) / count for n, value in self.own.items()}
        for name, value in self.around.items():
            parts[name] = value[places] - np.add.reduce(value) / count
        added = (np.array(list(parts.values())) * self.scale).round(6).T.tolist()
        return [
            {name: part for name, part in zip(parts, row, strict=True) if part} for row in added
        ]


def rank(
    view: View, cue: Cue, weights: Weights = DEFAULT_WEIGHTS, *, reach: int = REACH
) -> Ranking:
    """The ranking of the best `reach` positions at least; equal inputs rank equally."""
    question = Question.of(cue)
    if cue.vector is None or not view.has_vector.any():
        weights = weights.without_vector()
    hits = view.hits(question.terms)
    topical = _topical(hits, view.name_terms())
    own, evidence = _own(view, cue, question, hits, topical, weights)
    base = _sum(own)
    at = _candidates(base, reach)
    borrowed = signals.Evidence.of(evidence)
    around = _around(view, question, hits, topical, borrowed, weights, at)
    scores = base[at] + _sum(around)
    base[at] = scores
    mean, scale = _scale(base)
    scores -= mean
    scores *= scale
    scores = scores.round(_SCORE_DECIMALS)
    columns = view.columns
    return Ranking(
        positions=at,
        scores=scores,
        own=own,
        around=around,
        scale=scale,
        order_key=columns["order_key"],
        happened_at=columns["happened_at"],
    )


def _own(
    view: View,
    cue: Cue,
    question: Question,
    hits: Mapping[str, TermHits],
    topical: Sequence[TermHits],
    weights: Weights,
) -> tuple[dict[str, Floats], Floats]:
    """What each record's own text says, and the evidence in it that others may borrow."""
    scores = lexical.bm25(
        hits.values(), view.piece_lengths, view.mean_length, k1=weights.k1, b=weights.b
    )
    evidence = signals.standardised(view.best_piece(scores))
    own = {"lexical": weights.lexical * evidence}
    if cue.vector is not None:
        cosines = signals.standardised(view.cosines(cue.vector), view.has_vector)
        own["vector"] = weights.vector * cosines
        cosines *= _VECTOR_TO_LEXICAL  # in place: an array as long as the scope is slow to come by
        evidence += cosines
    own["coverage"] = weights.coverage * signals.coverage(view, topical)
    if question.terms:
        own["prior"] = view.prior(weights, to_assistant=question.to_assistant)
    if (speaker := named_speaker(cue.text, view.names())) is not None:
        own["speaker"] = np.where(_is_about(view, speaker, hits), weights.speaker, 0.0)
    if weights.importance:
        own["importance"] = weights.importance * view.columns["importance"]
    if weights.recency and len(view):
        now = cue.now if cue.now is not None else float(view.columns["happened_at"].max())
        recent = signals.recency(view.columns, now, weights.recency_half_life_days)
        own["recency"] = weights.recency * recent
    return own, evidence


def _candidates(base: Floats, reach: int) -> Slots:
    if len(base) <= reach:
        return np.arange(len(base))
    last = np.partition(base, -reach)[-reach]
    best = np.flatnonzero(base >= last)
    chosen = np.zeros(len(base) + 1, dtype=np.bool_)
    for beside in (best, best - 1, best + 1):
        chosen[beside] = True  # before the first is the one too many at the end
    return np.flatnonzero(chosen[:-1])


def _around(
    view: View,
    question: Question,
    hits: Mapping[str, TermHits],
    topical: Sequence[TermHits],
    evidence: signals.Evidence,
    weights: Weights,
    at: Slots,
) -> dict[str, Floats]:
    """What the messages around each candidate say, and whether it is of the kind asked for."""
    opens, columns = view.opens_thread, view.columns
    previous = signals.previous_evidence(evidence, opens, columns["asks"], at)
    session = signals.session_lexical(view, hits.values(), at, k1=weights.k1, b=weights.b)
    around = {
        "previous": weights.previous * previous,
        "following": weights.following * signals.following_evidence(evidence, opens, at),
        "thread_coverage": weights.thread_coverage * signals.thread_coverage(view, topical, at),
        "session": weights.session * signals.session_evidence(evidence, view, at),
        "session_lexical": weights.session_lexical * session,
    }
    if question.asks_time:
        around["time_told"] = weights.time_told * columns["tells_time"][at]
    if question.asks_number:
        around["number_told"] = weights.number_told * columns["tells_number"][at]
    if question.asks_name:
        around["names_told"] = weights.names_told * np.log2(1.0 + columns["names"][at])
    if question.window is not None:
        nearness = question.window.nearness(columns["happened_at"][at])
        around["time_window"] = weights.time_window * nearness
    return around


def _topical(hits: Mapping[str, TermHits], name_terms: frozenset[str]) -> list[TermHits]:
    """The hits of what is asked about; who speaks is a signal of its own."""
    return [hit for term, hit in hits.items() if term not in name_terms] or list(hits.values())


def _is_about(view: View, speaker: str, hits: Mapping[str, TermHits]) -> Mask:
    """What the speaker said; a fact has no speaker: it is about whom it names."""
    said, has_speaker = view.said_by(speaker), view.has_speaker()
    if has_speaker.all():
        return said
    mentions = np.zeros(len(view), dtype=np.bool_)
    for term in terms(speaker):
        if term in hits:
            mentions[view.piece_owners[hits[term].documents]] = True
    return said | (mentions & ~has_speaker)


def _sum(parts: Mapping[str, Floats]) -> Floats:
    first, *others = parts.values()
    total = first.copy()
    for part in others:
        total += part
    return total


def _scale(total: Floats) -> tuple[float, float]:
    """The mean, and what brings a deviation from it to standard deviations."""
    if not len(total):
        return 0.0, 0.0
    mean = float(np.add.reduce(total)) / len(total)
    total -= mean  # in place: nobody looks at it again
    spread = signals.spread_of(total)
    return mean, 1.0 / spread if spread > 1e-9 else 0.0
