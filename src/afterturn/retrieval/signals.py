"""The signals that a score is summed from: pure functions over arrays of ranked positions.

Positions lie by conversation and time (see `selection`), so the neighbours of a message are the
positions beside it, unless a conversation opens between them. What is computed for all positions
costs little; the rest is computed for `at`, the positions of the candidates.

A question to a thousand records is some hundred calls of numpy, each of about a microsecond: what
counts there is their number, and that a method (`take`) takes half as long as an index.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from afterturn.retrieval import lexical
from afterturn.retrieval.lexical import Floats, Hits, Mask
from afterturn.retrieval.selection import Slots
from afterturn.retrieval.view import View

SECONDS_A_DAY: Final = 86_400.0
_SPREAD_MIN: Final = 1e-9
# From so many on OpenBLAS adds up in threads, which cost more than they gain on so little.
_THREADED_FROM: Final = 10_000
_SET_TERMS: Final = 8
# Row by row the terms in each set of `_SET_TERMS` of them.
_SETS: Final = (np.arange(1 << _SET_TERMS)[:, None] >> np.arange(_SET_TERMS) & 1).astype(np.float64)


def standardise(values: Floats, known: Mask | None = None) -> Floats:
    """Turn values, in place, into standard deviations from their mean; zeros where all are equal.

    With `known`, mean and deviation are those of the known values, and the others count as
    average: a record without a vector is neither favoured nor pushed down.
    """
    if known is not None:
        of_known = standardise(values[known])
        values[:] = 0.0
        values[known] = of_known
    elif len(values):
        values -= np.add.reduce(values) / len(values)
        values *= per_spread(values)
    return values


def per_spread(deviations: Floats) -> float:
    """One by the standard deviation of what deviates from a mean by so much, 0 where none does."""
    if not len(deviations):
        return 0.0
    if len(deviations) < _THREADED_FROM:
        square = float(deviations @ deviations)
    else:
        square = float(np.einsum("i,i->", deviations, deviations))
    spread = math.sqrt(square / len(deviations))
    return 1.0 / spread if spread > _SPREAD_MIN else 0.0


def coverage(view: View, hits: Hits, shares: Floats) -> Floats:
    """The share of the question's idf mass found in the best piece of each text, 0 to 1."""
    return view.best_piece(lexical.summed(hits.documents, shares.take(hits.term), view.pieces))


def thread_coverage(view: View, hits: Hits, shares: Floats, at: Slots) -> Floats:
    """The share of the question's idf mass found in a message or the one before it, 0 to 1.

    Who answers a question does not repeat its words.
    """
    covered = np.zeros(len(at))
    owners, ends = view.owners(hits.documents), hits.ends.tolist()
    before = np.where(view.opens_thread.take(at), len(view), at - 1)
    for start in range(0, len(hits.terms), _SET_TERMS):
        share = shares[start : start + _SET_TERMS]
        # A bit for each of eight terms, and what every set of them covers.
        sets = np.zeros(len(view) + 1, dtype=np.uint8)  # the last stands for "nothing before"
        for bit in range(len(share)):
            span = slice(ends[start + bit], ends[start + bit + 1])
            sets[owners[span]] |= np.uint8(1 << bit)
        covers = _SETS[: 1 << len(share), : len(share)] @ share
        covered += covers.take(sets.take(at) | sets.take(before))
    return covered


def previous_evidence(evidence: Floats, view: View, at: Slots) -> Floats:
    """The evidence of the message before, where it asks; 0 at the start of a conversation."""
    return np.asarray(evidence.take(at - 1, mode="wrap") * view.was_asked.take(at))


def following_evidence(evidence: Floats, view: View, at: Slots) -> Floats:
    """The evidence of the message after, 0 at the end of a conversation."""
    return np.asarray(evidence.take(at + 1, mode="wrap") * view.goes_on.take(at))


def session_evidence(evidence: Floats, view: View, at: Slots) -> Floats:
    """The best evidence of each candidate's session: what it was about."""
    if not len(at):
        return np.zeros(0)
    best = np.maximum.reduceat(evidence, view.session_starts)
    return best.take(view.session_of.take(at))


def session_lexical(view: View, hits: Hits, at: Slots, *, k1: float, b: float) -> Floats:
    """BM25 of each candidate's whole session, standardised over the sessions."""
    if not len(at):
        return np.zeros(0)
    sessions = view.session_of.take(view.owners(hits.documents))
    mean = view.mean_session_length
    scores = lexical.grouped_bm25(hits, sessions, view.session_lengths, mean, k1=k1, b=b)
    return standardise(scores).take(view.session_of.take(at))


def recency(happened_at: Floats, now: float, half_life_days: float) -> Floats:
    """1 for what happens now, a half after a half-life; times in seconds since the epoch."""
    age = np.maximum(now - happened_at, 0.0) / SECONDS_A_DAY
    return np.asarray(np.exp2(-age / half_life_days))
