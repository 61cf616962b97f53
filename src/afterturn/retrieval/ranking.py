"""Ranks everything a reader may see for one question.

score = the sum of the weighted signals, brought to standard deviations above the mean of what is
ranked. Lexical and vector evidence come first; the conversation adds what neighbours, session,
coverage and speaker say. The parts of a score add up to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from afterturn.retrieval import lexical, signals
from afterturn.retrieval.lexical import Floats
from afterturn.retrieval.tokenizer import terms
from afterturn.retrieval.view import View
from afterturn.retrieval.weights import DEFAULT_WEIGHTS, Weights

# Two builds of the same index may sum in another order: closer than this, scores are equal.
_SCORE_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class Cue:
    """A question as ranking sees it; `vector` float32 [dim] of unit length; `now` in seconds."""

    text: str
    vector: NDArray[np.float32] | None = None
    now: float | None = None


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores of all positions of a view, and what each signal adds to them."""

    scores: Floats
    parts: dict[str, Floats] = field(default_factory=dict)
    order_key: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    happened_at: Floats = field(default_factory=lambda: np.zeros(0))

    def best(self, count: int) -> NDArray[np.intp]:
        """The positions of the best `count`, best first; what is newer first among equals."""
        chosen = np.arange(len(self.scores))
        if count < len(self.scores):
            # All that ties with the last place takes part, so that the cut is no accident.
            last = np.partition(self.scores, -count)[-count]
            chosen = np.flatnonzero(self.scores >= last)
        keys = (self.order_key[chosen], -self.happened_at[chosen], -self.scores[chosen])
        return chosen[np.lexsort(keys)][:count]

    def explained(self, position: int) -> dict[str, float]:
        """What each signal that is not silent adds to the score at a position."""
        parts = {name: round(float(part[position]), 6) for name, part in self.parts.items()}
        return {name: part for name, part in parts.items() if part}


def rank(view: View, cue: Cue, weights: Weights = DEFAULT_WEIGHTS) -> Ranking:
    """Scores for every position of the view; equal inputs give equal rankings, however cached."""
    raw = _evidence(view, cue, weights)
    evidence = np.sum(list(raw.values()), axis=0) if raw else np.zeros(len(view))
    raw |= _conversation(view, evidence, weights)
    raw |= _options(view, cue, weights)
    total = np.sum(list(raw.values()), axis=0)
    spread = float(total.std()) if len(view) else 0.0
    scale = 1.0 / spread if spread > 1e-9 else 0.0
    parts = {name: (value - value.mean()) * scale for name, value in raw.items() if len(view)}
    scores = np.round((total - total.mean()) * scale if len(view) else total, _SCORE_DECIMALS)
    return Ranking(scores, parts, view.columns["order_key"], view.columns["happened_at"])


def _evidence(view: View, cue: Cue, weights: Weights) -> dict[str, Floats]:
    """What a record's own text says."""
    hits = view.hits(terms(cue.text))
    scores = lexical.bm25(hits, view.lengths(), k1=weights.k1, b=weights.b)
    raw = {"lexical": weights.lexical * signals.standardised(scores)}
    if cue.vector is not None:
        cosines = signals.standardised(view.cosines(cue.vector), view.has_vector)
        raw["vector"] = weights.vector * cosines
    raw["coverage"] = weights.coverage * signals.coverage(hits, view.opens_thread)
    return raw


def _conversation(view: View, evidence: Floats, weights: Weights) -> dict[str, Floats]:
    """What the messages around it say."""
    before = signals.previous_evidence(evidence, view.opens_thread)
    after = signals.following_evidence(evidence, view.opens_thread)
    session = signals.session_evidence(evidence, view.opens_session)
    return {
        "previous": weights.previous * before,
        "following": weights.following * after,
        "session": weights.session * session,
    }


def _options(view: View, cue: Cue, weights: Weights) -> dict[str, Floats]:
    """Who spoke, and what is off by default."""
    raw: dict[str, Floats] = {}
    name = signals.named_speaker(cue.text, view.names())
    if name is not None:
        spoke = view.said_by(name)
        mentions = np.zeros(len(view), dtype=np.bool_)
        for hit in view.hits(terms(name)):
            mentions[hit.positions] = True
        # A fact has no speaker: it is about whom it names.
        about = spoke | (mentions & ~view.has_speaker())
        raw["speaker"] = np.where(about, weights.speaker, 0.0)
    if cue.text.strip() and not signals.addresses_assistant(cue.text):
        raw["user_side"] = weights.user_side * view.columns["is_user"]
    if weights.importance:
        raw["importance"] = weights.importance * view.columns["importance"]
    if weights.recency and len(view):
        now = cue.now if cue.now is not None else float(view.columns["happened_at"].max())
        raw["recency"] = weights.recency * signals.recency(
            view.columns, now, weights.recency_half_life_days
        )
    return raw
