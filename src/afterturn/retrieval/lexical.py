"""An inverted index over a fixed set of documents, and BM25 over several of them at once.

An index never changes: new documents make a new small index, and `merge` makes one of several
(see `segments`). So a reader needs no lock. Postings lie in compressed rows: term `t` owns
`documents[starts[t]:starts[t + 1]]`, ascending, and `counts` beside it.

A document here is a piece of a text: long texts are split (`pieces`), and a text is as good as
its best piece. In assistant chats, where answers run over pages, that is worth 3 to 5 points of
R@10; short messages are one piece each.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Positions: TypeAlias = NDArray[np.int32]
Mask: TypeAlias = NDArray[np.bool_]

QUERY_TERMS_MAX: Final = 256
"""Of a longer question only the rarest terms are looked up: a pasted file is no question."""


PIECE_TERMS: Final = 60
"""About so many terms a piece of a long text has; one and a half times as many stay whole."""


@dataclass(frozen=True, slots=True)
class LexicalIndex:
    """`documents` int32 and `counts` float32 of shape [postings], `lengths` int32 [documents].

    `owners` int32 [documents], ascending: the slot of the text that a document is a piece of.
    """

    vocabulary: dict[str, int]
    starts: NDArray[np.int64]
    documents: Positions
    counts: NDArray[np.float32]
    lengths: Positions
    owners: Positions

    @property
    def nbytes(self) -> int:
        """Bytes held, the vocabulary's estimated."""
        words = sum(map(sys.getsizeof, self.vocabulary)) + 72 * len(self.vocabulary)
        arrays = (self.starts, self.documents, self.counts, self.lengths, self.owners)
        return words + sum(array.nbytes for array in arrays)

    def postings(self, term: str) -> tuple[Positions, NDArray[np.float32]] | None:
        """The documents that hold a term and how often; `None` when none does."""
        at = self.vocabulary.get(term)
        if at is None:
            return None
        span = slice(self.starts[at], self.starts[at + 1])
        return self.documents[span], self.counts[span]


@dataclass(frozen=True, slots=True)
class TermHits:
    """Where one query term occurs: documents among all that is ranked, and how often there."""

    documents: NDArray[np.intp]
    counts: Floats
    idf: float


def pieces(terms: Sequence[str]) -> list[Sequence[str]]:
    """A text's terms in pieces of equal length; a short text is one piece, an empty one too."""
    count = max(1, round(len(terms) / PIECE_TERMS)) if len(terms) > PIECE_TERMS * 3 // 2 else 1
    size = -(-len(terms) // count)
    return [terms[at : at + size] for at in range(0, len(terms), size)] if size else [terms]


def build(
    documents: Sequence[Sequence[str]],
    owners: Sequence[int] | None = None,
    only: frozenset[str] | None = None,
) -> LexicalIndex:
    """The index of documents given as terms; without `owners` each is a text of its own.

    With `only` other terms are counted in the lengths and left out otherwise.
    """
    lengths = np.fromiter(map(len, documents), dtype=np.int32, count=len(documents))
    if only is not None:
        documents = [[term for term in terms if term in only] for terms in documents]
    vocabulary: dict[str, int] = {}
    # setdefault with len() numbers each new term by its first occurrence.
    ids = [vocabulary.setdefault(t, len(vocabulary)) for terms in documents for t in terms]
    sizes = np.fromiter(map(len, documents), dtype=np.int32, count=len(documents))
    term_of = np.asarray(ids, dtype=np.int64)
    document_of = np.repeat(np.arange(len(documents), dtype=np.int64), sizes)
    pairs, counts = np.unique(term_of * max(len(documents), 1) + document_of, return_counts=True)
    term, document = np.divmod(pairs, max(len(documents), 1))
    return LexicalIndex(
        vocabulary=vocabulary,
        starts=_starts(term, len(vocabulary)),
        documents=document.astype(np.int32),
        counts=counts.astype(np.float32),
        lengths=lengths,
        owners=np.arange(len(documents), dtype=np.int32)
        if owners is None
        else np.asarray(owners, dtype=np.int32),
    )


def merge(parts: Sequence[tuple[LexicalIndex, Mask]]) -> LexicalIndex:
    """One index of the texts kept in each part, in order; terms nobody uses any more go."""
    union: dict[str, int] = {}
    terms, documents, counts, lengths, owners = [], [], [], [], []
    offset = texts = 0
    for index, keep_texts in parts:
        keep = keep_texts[index.owners]
        known = [union.setdefault(t, len(union)) for t in index.vocabulary]
        term_of = np.repeat(np.asarray(known, dtype=np.int64), np.diff(index.starts))
        kept = keep[index.documents]
        renumbered = np.cumsum(keep) - 1 + offset
        terms.append(term_of[kept])
        documents.append(renumbered[index.documents[kept]].astype(np.int32))
        counts.append(index.counts[kept])
        lengths.append(index.lengths[keep])
        owners.append((np.cumsum(keep_texts) - 1 + texts)[index.owners[keep]].astype(np.int32))
        offset += int(keep.sum())
        texts += int(keep_texts.sum())
    term = np.concatenate(terms)
    # Stable, so that documents stay ascending within a term.
    order = np.argsort(term, kind="stable")
    used, compact = np.unique(term[order], return_inverse=True)
    names = list(union)
    return LexicalIndex(
        vocabulary={names[t]: at for at, t in enumerate(used.tolist())},
        starts=_starts(compact, len(used)),
        documents=np.concatenate(documents)[order],
        counts=np.concatenate(counts)[order],
        lengths=np.concatenate(lengths),
        owners=np.concatenate(owners),
    )


def _starts(sorted_terms: NDArray[np.int64], terms: int) -> NDArray[np.int64]:
    sizes = np.bincount(sorted_terms, minlength=terms)
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)))


def find(
    terms: Iterable[str], parts: Sequence[tuple[LexicalIndex, Positions, int]], total: int
) -> dict[str, TermHits]:
    """Where each distinct term occurs in all parts together, rarest terms first when cut.

    A part is an index, for each of its documents its number or -1 where it is not ranked, and
    what is to be added to the numbers to have them among the `total` ranked ones. The idf is
    joint: a term is as rare as it is in everything that is ranked, whichever part holds it.
    """
    found: dict[str, TermHits] = {}
    for term in dict.fromkeys(terms):
        places, counts = [], []
        for index, number_of, start in parts:
            postings = index.postings(term)
            if postings is None:
                continue
            place, count = number_of[postings[0]], postings[1]
            if np.minimum.reduce(place) < 0:
                ranked = place >= 0
                place, count = place[ranked], count[ranked]
            places.append(place + start if start else place)
            counts.append(count)
        if frequency := sum(map(len, places)):
            idf = math.log1p((total - frequency + 0.5) / (frequency + 0.5))
            found[term] = TermHits(
                (places[0] if len(places) == 1 else np.concatenate(places)).astype(np.intp),
                (counts[0] if len(counts) == 1 else np.concatenate(counts)).astype(np.float64),
                idf,
            )
    if len(found) > QUERY_TERMS_MAX:
        rarest = sorted(found, key=lambda term: -found[term].idf)[:QUERY_TERMS_MAX]
        found = {term: found[term] for term in rarest}
    return found


def bm25(
    hits: Iterable[TermHits], lengths: Floats, mean_length: float, *, k1: float, b: float
) -> Floats:
    """Okapi BM25 with the idf that is never negative; `lengths` [total] in terms.

    Work is proportional to the postings of the query's terms. Each query term counts once.
    """
    found = list(hits)
    if not found or not mean_length:
        return np.zeros(len(lengths))
    # All terms at once: most have few postings, and an array operation costs as much as 1,000.
    documents = np.concatenate([hit.documents for hit in found])
    counts = np.concatenate([hit.counts for hit in found])
    weights = lengths[documents]
    weights *= k1 * b / mean_length
    weights += k1 * (1 - b)
    weights += counts
    np.divide(counts, weights, out=weights)
    weights *= np.repeat(
        [hit.idf * (k1 + 1) for hit in found], [len(hit.documents) for hit in found]
    )
    scores: Floats = np.bincount(documents, weights, len(lengths)).astype(np.float64, copy=False)
    return scores
