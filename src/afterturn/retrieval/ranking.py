"""Ranks what a reader may see for one question.

score = the sum of the weighted signals, brought to standard deviations above the mean of what is
ranked; the parts of a score add up to it. Ranking takes two steps. Everything visible is scored
by what its own text says: BM25, vector, coverage, the kind of sentence, who speaks. The best of
these and their neighbours, some thousand, are the candidates; for them count also the messages
around, the session, and what the question asks for. Scopes of up to `reach` records are
candidates as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """The candidates' `positions` in the view, ascending, with scores and parts aligned."""

    positions: Slots
    scores: Floats
    parts: dict[str, Floats]
    order_key: NDArray[np.int64]
    happened_at: Floats

    def best(self, count: int) -> Slots:
        """The places of the best `count` candidates, best first; newer first among equals."""
        chosen = np.arange(len(self.scores))
        if count < len(self.scores):
            # All that ties with the last place takes part, so that the cut is no accident.
            last = np.partition(self.scores, -count)[-count]
            chosen = np.flatnonzero(self.scores >= last)
        keys = (self.order_key[chosen], -self.happened_at[chosen], -self.scores[chosen])
        return chosen[np.lexsort(keys)][:count]

    def explained(self, place: int) -> dict[str, float]:
        """What each signal that is not silent adds to the score at a place."""
        parts = {name: round(float(part[place]), 6) for name, part in self.parts.items()}
        return {name: part for name, part in parts.items() if part}


def rank(
    view: View, cue: Cue, weights: Weights = DEFAULT_WEIGHTS, *, reach: int = REACH
) -> Ranking:
    """The ranking of the best `reach` positions at least; equal inputs rank equally."""
    question = Question.of(cue)
    hits = view.hits(question.terms)
    own, evidence = _own(view, cue, question, hits, weights)
    base = _sum(own, len(view))
    at = _candidates(base, reach)
    around = _around(view, question, hits, signals.Evidence.of(evidence), weights, at)
    total = base.copy()
    total[at] += _sum(around, len(at))
    mean, scale = _scale(total)
    count = max(len(view), 1)
    parts = {name: (value[at] - value.mean()) * scale for name, value in own.items() if len(at)}
    parts |= {name: (value - value.sum() / count) * scale for name, value in around.items()}
    scores = np.round((total[at] - mean) * scale, _SCORE_DECIMALS)
    columns = view.columns[at]
    return Ranking(at, scores, parts, columns["order_key"], columns["happened_at"])


def _own(
    view: View,
    cue: Cue,
    question: Question,
    hits: Mapping[str, TermHits],
    weights: Weights,
) -> tuple[dict[str, Floats], Floats]:
    """What each record's own text says, and the evidence in it that others may borrow."""
    lengths = view.piece_lengths
    mean = float(lengths.mean()) if len(lengths) else 0.0
    scores = lexical.bm25(hits.values(), lengths, mean, k1=weights.k1, b=weights.b)
    evidence = signals.standardised(view.best_piece(scores))
    own = {"lexical": weights.lexical * evidence}
    if cue.vector is not None:
        cosines = signals.standardised(view.cosines(cue.vector), view.has_vector)
        own["vector"] = weights.vector * cosines
        evidence = evidence + _VECTOR_TO_LEXICAL * cosines
    names = view.names()
    own["coverage"] = weights.coverage * signals.coverage(view, _topical(hits, names))
    if question.terms:
        own["prior"] = view.prior(weights, to_assistant=question.to_assistant)
    if (speaker := named_speaker(cue.text, names)) is not None:
        own["speaker"] = np.where(_is_about(view, speaker), weights.speaker, 0.0)
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
    evidence: signals.Evidence,
    weights: Weights,
    at: Slots,
) -> dict[str, Floats]:
    """What the messages around each candidate say, and whether it is of the kind asked for."""
    opens, columns = view.opens_thread, view.columns
    topical = _topical(hits, view.names())
    previous = signals.previous_evidence(evidence, opens, columns["asks"], at)
    session = signals.session_lexical(view, hits.values(), at, k1=weights.k1, b=weights.b)
    around = {
        "previous": weights.previous * previous,
        "following": weights.following * signals.following_evidence(evidence, opens, at),
        "thread_coverage": weights.thread_coverage * signals.thread_coverage(view, topical, at),
        "session": weights.session * signals.session_evidence(evidence, view, at),
        "session_lexical": weights.session_lexical * session,
    }
    kinds = columns[at]
    if question.asks_time:
        around["time_told"] = weights.time_told * kinds["tells_time"]
    if question.asks_number:
        around["number_told"] = weights.number_told * kinds["tells_number"]
    if question.asks_name:
        around["names_told"] = weights.names_told * np.log2(1.0 + kinds["names"])
    if question.window is not None:
        nearness = question.window.nearness(kinds["happened_at"])
        around["time_window"] = weights.time_window * nearness
    return around


def _topical(hits: Mapping[str, TermHits], names: tuple[str, ...]) -> list[TermHits]:
    """The hits of what is asked about; who speaks is a signal of its own."""
    of_names = {term for name in names for term in terms(name)}
    return [hit for term, hit in hits.items() if term not in of_names] or list(hits.values())


def _is_about(view: View, speaker: str) -> Mask:
    """What the speaker said; a fact has no speaker: it is about whom it names."""
    mentions = np.zeros(len(view), dtype=np.bool_)
    for hit in view.hits(terms(speaker)).values():
        mentions[view.piece_owners[hit.documents]] = True
    return view.said_by(speaker) | (mentions & ~view.has_speaker())


def _sum(parts: Mapping[str, Floats], count: int) -> Floats:
    total = np.zeros(count)
    for part in parts.values():
        total += part
    return total


def _scale(total: Floats) -> tuple[float, float]:
    """The mean, and what brings a deviation from it to standard deviations."""
    if not len(total):
        return 0.0, 0.0
    mean, spread = float(total.mean()), float(total.std())
    return mean, 1.0 / spread if spread > 1e-9 else 0.0
