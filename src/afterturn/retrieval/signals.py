"""The signals that a score is summed from: pure functions over arrays of ranked positions.

Positions lie by conversation and time (see `selection`), so the neighbours of a message are the
positions beside it, unless a conversation opens between them. What is computed for all positions
costs little; the rest is computed for `at`, the positions of the candidates.

A question to a thousand records is some hundred calls of numpy, each of about a microsecond: what
counts there is their number, and that a method (`take`) takes half as long as an index.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from afterturn.retrieval import lexical
from afterturn.retrieval.lexical import Floats, Hits, Mask
from afterturn.retrieval.selection import Slots
from afterturn.retrieval.view import View

SECONDS_A_DAY: Final = 86_400.0
# Less than this share of the mean square is what the last bits of sums make.
_VARIANCE_MIN: Final = 1e-12
# More than so many OpenBLAS adds up in threads, which cost more than they gain on so little.
_ALONE_MAX: Final = 10_000
# A float64 holds a bit for each of so many terms, exactly; a row of `_SETS` one for each of eight.
_BITS: Final = 48
_SET_TERMS: Final = 8
_POWERS: Final = np.ldexp(1.0, np.arange(_BITS)).astype(np.float64)
# Row by row the terms in each set of `_SET_TERMS` of them.
_SETS: Final = (np.arange(1 << _SET_TERMS)[:, None] >> np.arange(_SET_TERMS) & 1).astype(np.float64)


class Standard(NamedTuple):
    """Values, and what brings them to standard deviations from their mean.

    They are not brought there all at once, as two passes over the scope would, but where they are
    looked at. `per_spread` is one by the standard deviation, 0 where all values are equal.
    """

    values: Floats
    mean: float
    per_spread: float

    def at(self, positions: Slots) -> Floats:
        """The values at these positions (beyond an end: at that end) brought there."""
        found = self.values.take(positions, mode="clip")
        found -= self.mean
        found *= self.per_spread
        return found


def standard(values: Floats, known: Mask | None = None, *, mean: float | None = None) -> Standard:
    """The values with their mean, which may be known already, and spread.

    With `known`, both are those of the known values, and the others become average, in place: a
    record without a vector is neither favoured nor pushed down.
    """
    if known is not None:
        _, mean, per_spread = standard(values[known])
        values[~known] = mean
        return Standard(values, mean, per_spread)
    if not len(values):
        return Standard(values, 0.0, 0.0)
    if mean is None:
        mean = float(np.add.reduce(values)) / len(values)
    square = _square_sum(values) / len(values)
    variance = square - mean * mean
    per_spread = 1.0 / math.sqrt(variance) if variance > _VARIANCE_MIN * square else 0.0
    return Standard(values, mean, per_spread)


def _square_sum(values: Floats) -> float:
    if len(values) <= _ALONE_MAX:
        return float(values @ values)
    parts = [values[at : at + _ALONE_MAX] for at in range(0, len(values), _ALONE_MAX)]
    return float(sum([part @ part for part in parts]))


def _of(values: NDArray[Any], at: Slots) -> NDArray[Any]:
    """The values of the candidates, which are all there are where they are as many."""
    return values if len(at) == len(values) else values.take(at)


def coverage(view: View, hits: Hits) -> Floats:
    """The share of the question's idf mass found in the best piece of each text, 0 to 1."""
    return view.best_piece(lexical.summed(hits.documents, hits.spread(hits.shares), view.pieces))


def thread_coverage(view: View, hits: Hits, at: Slots) -> Floats:
    """The share of the question's idf mass found in a message or the one before it, 0 to 1.

    Who answers a question does not repeat its words.
    """
    covered = np.zeros(len(at))
    continues = ~_of(view.opens_thread, at)
    for start in range(0, len(hits.terms), _BITS):
        share, sizes = hits.shares[start : start + _BITS], hits.sizes[start : start + _BITS]
        span = slice(hits.ends[start], hits.ends[start + len(share)])
        # A bit for each term: in a piece it counts once, so their sum is the set of its terms.
        bits = _POWERS[: len(share)].repeat(sizes)
        sets = view.any_piece(lexical.summed(hits.documents[span], bits, view.pieces))
        before = sets.take(at - 1, mode="clip") * continues
        found = _of(sets, at).astype(np.intp) | before.astype(np.intp)
        for first in range(0, len(share), _SET_TERMS):
            some = share[first : first + _SET_TERMS]
            covers = _SETS[: 1 << len(some), : len(some)] @ some
            covered += covers.take(found >> first & (1 << len(some)) - 1)
    return covered


def previous_evidence(evidence: Standard, view: View, at: Slots) -> Floats:
    """The evidence of the message before, where it asks; 0 at the start of a conversation."""
    return np.asarray(evidence.at(at - 1) * _of(view.was_asked, at))


def following_evidence(evidence: Standard, view: View, at: Slots) -> Floats:
    """The evidence of the message after, 0 at the end of a conversation."""
    return np.asarray(evidence.at(at + 1) * _of(view.goes_on, at))


def session_evidence(evidence: Standard, view: View, at: Slots) -> Floats:
    """The best evidence of each candidate's session: what it was about."""
    if not len(at):
        return np.zeros(0)
    best = evidence._replace(values=np.maximum.reduceat(evidence.values, view.session_starts))
    return best.at(_of(view.session_of, at))


def session_lexical(view: View, hits: Hits, at: Slots, *, k1: float, b: float) -> Floats:
    """BM25 of each candidate's whole session, standardised over the sessions."""
    if not len(at):
        return np.zeros(0)
    sessions = view.session_of.take(view.owners(hits.documents))
    mean = view.mean_session_length
    scores = lexical.grouped_bm25(hits, sessions, view.session_lengths, mean, k1=k1, b=b)
    return standard(scores).at(_of(view.session_of, at))


def recency(happened_at: Floats, now: float, half_life_days: float) -> Floats:
    """1 for what happens now, a half after a half-life; times in seconds since the epoch."""
    age = np.maximum(now - happened_at, 0.0) / SECONDS_A_DAY
    return np.asarray(np.exp2(-age / half_life_days))
