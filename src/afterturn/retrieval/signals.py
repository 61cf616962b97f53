"""The signals that a score is summed from: pure functions over arrays of ranked positions.

Positions lie by conversation and time (see `selection`), so the neighbours of a message are the
positions beside it, unless a conversation opens between them. What is computed for all positions
costs little; the rest is computed for `at`, the positions of the candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from afterturn.retrieval import lexical
from afterturn.retrieval.lexical import Floats, Mask, TermHits
from afterturn.retrieval.selection import Columns, Slots
from afterturn.retrieval.view import View

SECONDS_A_DAY: Final = 86_400.0
_SPREAD_MIN: Final = 1e-9


def standardised(values: Floats, known: Mask | None = None) -> Floats:
    """Deviations from the mean in standard deviations; zeros where all values are equal.

    With `known`, mean and deviation are those of the known values, and the others count as
    average: a record without a vector is neither favoured nor pushed down.
    """
    if known is not None and not known.all():
        spread_out = np.zeros(len(values))
        spread_out[known] = standardised(values[known])
        return spread_out
    if not len(values):
        return np.zeros(0)
    deviations: Floats = values - np.add.reduce(values) / len(values)
    spread = spread_of(deviations)
    if spread < _SPREAD_MIN:
        return np.zeros(len(values))
    deviations /= spread
    return deviations


def spread_of(deviations: Floats) -> float:
    """The standard deviation of what deviates from a mean by so much."""
    # Not a BLAS product: its threads cost more than they gain on so little.
    return math.sqrt(float(np.einsum("i,i->", deviations, deviations)) / len(deviations))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the texts themselves say, on the scale of its mean and deviation.

    Standardised only where it is looked at: most of it is not.
    """

    values: Floats
    mean: float
    spread: float

    @classmethod
    def of(cls, values: Floats) -> Evidence:
        """The evidence with its scale."""
        if not len(values):
            return cls(values, 0.0, 0.0)
        mean = float(np.add.reduce(values)) / len(values)
        return cls(values, mean, spread_of(values - mean))

    def scaled(self, values: Floats) -> Floats:
        """Some of the values in standard deviations above the mean."""
        if self.spread < _SPREAD_MIN:
            return np.zeros(len(values))
        return np.asarray((values - self.mean) / self.spread)


def coverage(view: View, hits: Sequence[TermHits]) -> Floats:
    """The share of the question's idf mass found in the best piece of each text, 0 to 1."""
    mass = sum(hit.idf for hit in hits)
    if not mass:
        return np.zeros(len(view))
    documents = np.concatenate([hit.documents for hit in hits])
    shares = np.repeat([hit.idf / mass for hit in hits], [len(hit.documents) for hit in hits])
    covered = np.bincount(documents, shares, view.pieces)
    return view.best_piece(covered.astype(np.float64, copy=False))


def thread_coverage(view: View, hits: Sequence[TermHits], at: Slots) -> Floats:
    """The share of the question's idf mass found in a message or the one before it, 0 to 1.

    Who answers a question does not repeat its words.
    """
    covered = np.zeros(len(at))
    mass = sum(hit.idf for hit in hits)
    before = np.where(view.opens_thread[at], len(view), at - 1)
    for start in range(0, len(hits), 8):
        # A bit for each of eight terms, and what every set of them covers.
        holds = np.zeros(len(view) + 1, dtype=np.uint8)  # the last stands for "nothing before"
        covers = np.zeros(1)
        for bit, hit in enumerate(hits[start : start + 8]):
            holds[view.owners(hit.documents)] |= np.uint8(1 << bit)
            covers = np.concatenate((covers, covers + hit.idf / mass))
        covered += covers[holds[at] | holds[before]]
    return covered


def previous_evidence(evidence: Evidence, opens_thread: Mask, asks: Mask, at: Slots) -> Floats:
    """The evidence of the message before, where it asks; 0 at the start of a conversation."""
    counts = ~opens_thread[at]
    before = np.where(counts, at - 1, 0)
    counts &= asks[before]
    return np.where(counts, evidence.scaled(evidence.values[before]), 0.0)


def following_evidence(evidence: Evidence, opens_thread: Mask, at: Slots) -> Floats:
    """The evidence of the message after, 0 at the end of a conversation."""
    after = np.minimum(at + 1, len(opens_thread) - 1)
    ends = (at == after) | opens_thread[after]
    return np.where(ends, 0.0, evidence.scaled(evidence.values[after]))


def session_evidence(evidence: Evidence, view: View, at: Slots) -> Floats:
    """The best evidence of each candidate's session: what it was about."""
    if not len(at):
        return np.zeros(0)
    best = np.maximum.reduceat(evidence.values, view.session_starts)
    return evidence.scaled(best[view.session_of[at]])


def session_lexical(
    view: View, hits: Iterable[TermHits], at: Slots, *, k1: float, b: float
) -> Floats:
    """BM25 of each candidate's whole session, standardised over the sessions."""
    by_session = [_in_sessions(view, hit) for hit in hits]
    mean = view.mean_session_length
    scores = lexical.bm25(by_session, view.session_lengths, mean, k1=k1, b=b)
    return standardised(scores)[view.session_of[at]]


def _in_sessions(view: View, hit: TermHits) -> TermHits:
    sessions = view.session_of[view.owners(hit.documents)]
    counts = np.bincount(sessions, hit.counts, view.sessions).astype(np.float64, copy=False)
    (which,) = counts.nonzero()
    idf = math.log1p((view.sessions - len(which) + 0.5) / (len(which) + 0.5))
    return TermHits(which, counts[which], idf)


def recency(columns: Columns, now: float, half_life_days: float) -> Floats:
    """1 for what happens now, a half after a half-life; `now` in seconds since the epoch."""
    age = np.maximum(now - columns["happened_at"], 0.0) / SECONDS_A_DAY
    return np.asarray(np.exp2(-age / half_life_days))
