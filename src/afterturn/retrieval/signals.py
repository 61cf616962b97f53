"""The signals that a score is summed from: pure functions over arrays of ranked positions.

Positions lie by conversation and time (see `selection`), so the neighbours of a message are the
positions beside it, unless a conversation opens between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from afterturn.retrieval.lexical import Floats, Mask, TermHits
from afterturn.retrieval.selection import Columns

SESSION_BEST: Final = 3
_SECONDS_A_DAY: Final = 86_400.0
_SPREAD_MIN: Final = 1e-9
_WORD: Final = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")


def standardised(values: Floats, known: Mask | None = None) -> Floats:
    """Deviations from the mean in standard deviations; zeros where all values are equal.

    With `known`, mean and deviation are those of the known values, and the others count as
    average: a record without a vector is neither favoured nor pushed down.
    """
    present = values if known is None else values[known]
    if not len(present):
        return np.zeros(len(values))
    spread = float(present.std())
    if spread < _SPREAD_MIN:
        return np.zeros(len(values))
    deviations = (values - present.mean()) / spread
    return deviations if known is None else np.where(known, deviations, 0.0)


def previous_evidence(evidence: Floats, opens_thread: Mask) -> Floats:
    """The evidence of the message before, 0 at the start of a conversation.

    A question is often answered by the message after the one that shares its words.
    """
    before = np.zeros(len(evidence))
    before[1:] = evidence[:-1]
    before[opens_thread] = 0.0
    return before


def following_evidence(evidence: Floats, opens_thread: Mask) -> Floats:
    """The evidence of the message after, 0 at the end of a conversation."""
    after = np.zeros(len(evidence))
    after[:-1] = np.where(opens_thread[1:], 0.0, evidence[1:])
    return after


def session_evidence(evidence: Floats, opens_session: Mask) -> Floats:
    """For each position the mean of its session's best `SESSION_BEST`: what it was about."""
    if not len(evidence):
        return evidence
    starts = np.flatnonzero(opens_session)
    group = np.cumsum(opens_session) - 1
    sizes = np.diff(np.append(starts, len(evidence)))
    rest, total = evidence.copy(), np.zeros(len(starts))
    for rank in range(SESSION_BEST):
        best = np.maximum.reduceat(rest, starts)
        total += np.where(sizes > rank, best, 0.0)
        at = np.flatnonzero(rest == best[group])
        first = np.ones(len(at), dtype=np.bool_)
        first[1:] = np.diff(group[at]) != 0  # of equal ones, only one is taken out
        rest[at[first]] = -np.inf
    return np.asarray((total / np.minimum(sizes, SESSION_BEST))[group])


def coverage(hits: Iterable[TermHits], opens_thread: Mask) -> Floats:
    """The share of the question's idf mass found in a message or the one before it, 0 to 1."""
    covered = np.zeros(len(opens_thread))
    holds = np.zeros(len(opens_thread) + 1, dtype=np.bool_)
    mass = 0.0
    for hit in hits:
        holds[hit.positions] = True
        after = hit.positions + 1
        after = after[~holds[after]]  # those that hold it are counted already
        after = after[after < len(opens_thread)]
        covered[hit.positions] += hit.idf
        covered[after[~opens_thread[after]]] += hit.idf
        holds[hit.positions] = False
        mass += hit.idf
    return covered / mass if mass else covered


def named_speaker(cue: str, names: Sequence[str]) -> str | None:
    """The one speaker that a question names, by any word of the name; `None` for none or several.

    Case counts unless the whole question is in lower case: "what will she eat" names no Will.
    """
    lower = cue == cue.lower()
    words = {_bare(w.casefold() if lower else w) for w in _WORD.findall(cue)}
    named = {
        name.casefold()
        for name in names
        if any((w.casefold() if lower else w) in words for w in _WORD.findall(name) if len(w) > 1)
    }
    return named.pop() if len(named) == 1 else None


def _bare(word: str) -> str:
    return re.sub(r"['\u2019]s$", "", word)


def addresses_assistant(cue: str) -> bool:
    """Whether a question is about what the assistant said ("what did you recommend?")."""
    return re.search(r"\b(?:you|your|yours)\b", cue, re.IGNORECASE) is not None


def recency(columns: Columns, now: float, half_life_days: float) -> Floats:
    """1 for what happens now, a half after a half-life; `now` in seconds since the epoch."""
    age = np.maximum(now - columns["happened_at"], 0.0) / _SECONDS_A_DAY
    return np.asarray(np.exp2(-age / half_life_days))
