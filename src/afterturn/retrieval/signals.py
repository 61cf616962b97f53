"""The signals that a score is summed from: pure functions over arrays of ranked positions.

Positions lie by conversation and time (see `selection`), so the neighbours of a message are the
positions beside it, unless a conversation opens between them. What is computed for all positions
costs little; the rest is computed for `at`, the positions of the candidates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from afterturn.retrieval import lexical
from afterturn.retrieval.lexical import Floats, Mask, TermHits
from afterturn.retrieval.selection import Columns, Slots
from afterturn.retrieval.view import View

SECONDS_A_DAY: Final = 86_400.0
_SPREAD_MIN: Final = 1e-9


def standardised(values: NDArray[np.floating], known: Mask | None = None) -> Floats:
    """Deviations from the mean in standard deviations; zeros where all values are equal.

    With `known`, mean and deviation are those of the known values, and the others count as
    average: a record without a vector is neither favoured nor pushed down.
    """
    if known is not None and bool(known.all()):
        known = None
    present = values if known is None else values[known]
    if not len(present):
        return np.zeros(len(values))
    mean = float(present.mean(dtype=np.float64))
    spread = float(present.std(dtype=np.float64))
    if spread < _SPREAD_MIN:
        return np.zeros(len(values))
    deviations = (values - mean) / spread
    return np.asarray(deviations if known is None else np.where(known, deviations, 0.0), np.float64)


def coverage(view: View, hits: Iterable[TermHits]) -> Floats:
    """The share of the question's idf mass found in the best piece of each text, 0 to 1."""
    covered = np.zeros(view.pieces)
    mass = 0.0
    for hit in hits:
        covered[hit.documents] += hit.idf
        mass += hit.idf
    return view.best_piece(covered) / mass if mass else np.zeros(len(view))


def thread_coverage(view: View, hits: Iterable[TermHits], at: Slots) -> Floats:
    """The share of the question's idf mass found in a message or the one before it, 0 to 1.

    Who answers a question does not repeat its words.
    """
    covered = np.zeros(len(at))
    holds = np.zeros(len(view) + 1, dtype=np.bool_)  # the last stands for "nothing before"
    before = np.where(view.opens_thread[at], len(view), at - 1)
    mass = 0.0
    for hit in hits:
        holders = view.piece_owners[hit.documents]
        holds[holders] = True
        covered += hit.idf * (holds[at] | holds[before])
        holds[holders] = False
        mass += hit.idf
    return covered / mass if mass else covered


def previous_evidence(evidence: Floats, opens_thread: Mask, asks: Mask, at: Slots) -> Floats:
    """The evidence of the message before, where it asks; 0 at the start of a conversation."""
    counts = ~opens_thread[at]
    before = np.where(counts, at - 1, 0)
    return np.where(counts & asks[before], evidence[before], 0.0)


def following_evidence(evidence: Floats, opens_thread: Mask, at: Slots) -> Floats:
    """The evidence of the message after, 0 at the end of a conversation."""
    after = np.minimum(at + 1, len(evidence) - 1)
    ends = (at == after) | opens_thread[after]
    return np.where(ends, 0.0, evidence[after])


def session_evidence(evidence: Floats, view: View, at: Slots) -> Floats:
    """The best evidence of each candidate's session: what it was about."""
    if not len(at):
        return np.zeros(0)
    best = np.maximum.reduceat(evidence, view.session_starts)
    return np.asarray(best[view.session_of[at]])


def session_lexical(
    view: View, hits: Iterable[TermHits], at: Slots, *, k1: float, b: float
) -> Floats:
    """BM25 of each candidate's whole session, standardised over the sessions."""
    lengths = view.session_lengths
    by_session = [_in_sessions(view, hit) for hit in hits]
    mean = float(lengths.mean()) if len(lengths) else 0.0
    scores = lexical.bm25(by_session, lengths, mean, k1=k1, b=b)
    return standardised(scores)[view.session_of[at]]


def _in_sessions(view: View, hit: TermHits) -> TermHits:
    sessions = view.session_of[view.piece_owners[hit.documents]]
    which, inverse = np.unique(sessions, return_inverse=True)
    counts = np.bincount(inverse, hit.counts).astype(np.float64)
    idf = np.log1p((view.sessions - len(which) + 0.5) / (len(which) + 0.5))
    return TermHits(which.astype(np.intp), counts, float(idf))


def recency(columns: Columns, now: float, half_life_days: float) -> Floats:
    """1 for what happens now, a half after a half-life; `now` in seconds since the epoch."""
    age = np.maximum(now - columns["happened_at"], 0.0) / SECONDS_A_DAY
    return np.asarray(np.exp2(-age / half_life_days))
