"""An inverted index over a fixed set of documents, and BM25 over several of them at once.

An index never changes: new documents make a new small index, and `merge` makes one of several
(see `segments`). So a reader needs no lock. Postings lie in compressed rows: term `t` owns
`documents[starts[t]:starts[t + 1]]`, ascending, and `counts` beside it.

A document here is a piece of a text: long texts are split (`pieces`), and a text is as good as
its best piece. In assistant chats, where answers run over pages, that is worth 3 to 5 points of
R@10; short messages are one piece each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Positions: TypeAlias = NDArray[np.int32]
Mask: TypeAlias = NDArray[np.bool_]

QUERY_TERMS_MAX: Final = 256
"""Of a longer question only the rarest terms are looked up: a pasted file is no question."""


_TABLE_MAX: Final = 1 << 21
"""A table of terms by groups is no larger than this: it takes several for more."""

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

    def span(self, term: str) -> slice:
        """Where the postings of a term lie; empty when no document holds it."""
        at = self.vocabulary.get(term)
        if at is None:
            return slice(0, 0)
        return slice(self.starts.item(at), self.starts.item(at + 1))


@dataclass(frozen=True, slots=True)
class Hits:
    """Where the terms of a question occur in what is ranked, one row for each posting.

    `documents` intp and `counts` float64 of shape [postings], the postings of each term together
    and in the order of `terms`: `sizes[t]` of them, from `ends[t]` to `ends[t + 1]`; `idf` float64
    [terms].
    """

    terms: tuple[str, ...]
    documents: NDArray[np.intp]
    counts: Floats
    sizes: NDArray[np.intp]
    ends: NDArray[np.intp]
    idf: Floats

    def spread(self, values: Floats) -> Floats:
        """For each posting the value of its term."""
        return values.repeat(self.sizes)

    def without(self, terms: frozenset[str]) -> Hits:
        """The hits of all terms but these; all of them where nothing else is left."""
        kept = [at for at, term in enumerate(self.terms) if term not in terms]
        if not kept or len(kept) == len(self.terms):
            return self
        names, sizes = tuple([self.terms[at] for at in kept]), self.sizes.take(kept)
        documents, counts = self._of(self.documents, kept), self._of(self.counts, kept)
        return Hits(names, documents, counts, sizes, _ends(sizes), self.idf.take(kept))

    @property
    def shares(self) -> Floats:
        """The share of each term in the idf mass of all, [terms]."""
        return np.asarray(self.idf / (np.add.reduce(self.idf) or 1.0))

    def documents_of(self, terms: Iterable[str]) -> NDArray[np.intp]:
        """The documents that hold any of these terms, once for each."""
        wanted = [self.terms.index(term) for term in terms if term in self.terms]
        return self._of(self.documents, wanted) if wanted else self.documents[:0]

    def _of(self, postings: NDArray[Any], terms: Sequence[int]) -> NDArray[Any]:
        return np.concatenate([postings[self.ends[at] : self.ends[at + 1]] for at in terms])


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


def merge(
    parts: Sequence[tuple[LexicalIndex, Mask]], order: NDArray[np.intp] | None = None
) -> LexicalIndex:
    """One index of the texts kept in each part; terms nobody uses any more go.

    `order` says which of the kept ones comes first, second and so on, by default as they lie.
    """
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
    term, document = np.concatenate(terms), np.concatenate(documents)
    owner, length = np.concatenate(owners), np.concatenate(lengths)
    if order is not None:
        owner = _inverse(order).astype(np.int32)[owner]
        moved = np.argsort(owner, kind="stable")
        owner, length = owner[moved], length[moved]
        document = _inverse(moved).astype(np.int32)[document]
    # Stable: it takes a third of the time where most lies in order already.
    by_term = np.argsort(term * max(len(owner), 1) + document, kind="stable")
    used, compact = np.unique(term[by_term], return_inverse=True)
    names = list(union)
    return LexicalIndex(
        vocabulary={names[t]: at for at, t in enumerate(used.tolist())},
        starts=_starts(compact, len(used)),
        documents=document[by_term],
        counts=np.concatenate(counts)[by_term],
        lengths=length,
        owners=owner,
    )


def _inverse(order: NDArray[np.intp]) -> NDArray[np.intp]:
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places


def _starts(sorted_terms: NDArray[np.int64], terms: int) -> NDArray[np.int64]:
    sizes = np.bincount(sorted_terms, minlength=terms)
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)))


def find(
    terms: Iterable[str], parts: Sequence[tuple[LexicalIndex, Positions | None, int]], total: int
) -> Hits:
    """Where each distinct term occurs in all parts together; of too many the rarest terms.

    A part is an index, for each of its documents its number or -1 where it is not ranked (`None`
    where each is its own number), and what is to be added to the numbers to have them among the
    `total` ranked ones. The idf is
    joint: a term is as rare as it is in everything that is ranked, whichever part holds it.
    """
    wanted = tuple(dict.fromkeys(terms))
    documents, counts, sizes = _together([_postings(wanted, *part) for part in parts])
    hits = _hits(wanted, documents, counts, sizes, total)
    if len(hits.terms) <= QUERY_TERMS_MAX:
        return hits
    rarest = np.sort(np.argsort(-hits.idf, kind="stable")[:QUERY_TERMS_MAX])
    kept = np.isin(np.arange(len(hits.terms)), rarest).repeat(hits.sizes)
    names = tuple(hits.terms[at] for at in rarest.tolist())
    sizes = hits.sizes[rarest].tolist()
    return _hits(names, hits.documents[kept], hits.counts[kept], sizes, total)


_Postings: TypeAlias = tuple[NDArray[np.intp], Floats, list[int]]


def _postings(
    terms: Sequence[str], index: LexicalIndex, number_of: Positions | None, start: int
) -> _Postings:
    """Numbers and counts of the ranked documents of each term, then how many each has."""
    spans = [index.span(term) for term in terms]
    sizes = [span.stop - span.start for span in spans]
    if not any(sizes):
        return np.zeros(0, dtype=np.intp), np.zeros(0), sizes
    documents = np.concatenate([index.documents[span] for span in spans], dtype=np.intp)
    counts = np.concatenate([index.counts[span] for span in spans], dtype=np.float64)
    if number_of is not None:
        documents = number_of.take(documents).astype(np.intp)
        if np.minimum.reduce(documents) < 0:
            ranked = documents >= 0
            documents, counts = documents[ranked], counts[ranked]
            of_terms = np.arange(len(terms)).repeat(sizes)[ranked]
            sizes = np.bincount(of_terms, minlength=len(terms)).tolist()
    if start:
        documents += start
    return documents, counts, sizes


def _together(parts: Sequence[_Postings]) -> _Postings:
    """The postings of several parts, those of each term together."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return np.zeros(0, dtype=np.intp), np.zeros(0), []
    sizes = np.array([of_part for _, _, of_part in parts], dtype=np.intp)
    of_terms = np.concatenate([np.arange(sizes.shape[1]).repeat(each) for each in sizes])
    order = np.argsort(of_terms, kind="stable")
    documents = np.concatenate([each for each, _, _ in parts]).take(order)
    counts = np.concatenate([each for _, each, _ in parts]).take(order)
    return documents, counts, sizes.sum(axis=0).tolist()


def _hits(
    terms: Sequence[str],
    documents: NDArray[np.intp],
    counts: Floats,
    sizes: Sequence[int],
    total: int,
) -> Hits:
    """The hits of the terms that have any, with their idf among `total` documents."""
    found = tuple([term for term, size in zip(terms, sizes, strict=False) if size])
    frequency = np.array([size for size in sizes if size], dtype=np.intp)
    idf = _idf(frequency, total)
    return Hits(found, documents, counts, frequency, _ends(frequency), idf)


def _ends(sizes: NDArray[np.intp]) -> NDArray[np.intp]:
    ends = np.zeros(len(sizes) + 1, dtype=np.intp)
    np.add.accumulate(sizes, out=ends[1:])
    return ends


def bm25(hits: Hits, lengths: Floats, mean_length: float, *, k1: float, b: float) -> Floats:
    """Okapi BM25 with the idf that is never negative; `lengths` [total] in terms.

    Work is proportional to the postings of the query's terms. Each query term counts once.
    """
    if not len(hits.documents) or not mean_length:
        return np.zeros(len(lengths))
    weights = lengths.take(hits.documents)
    weights *= k1 * b / mean_length
    weights += k1 * (1 - b)
    weights += hits.counts
    np.divide(hits.counts, weights, out=weights)
    weights *= hits.spread(hits.idf * (k1 + 1))
    return summed(hits.documents, weights, len(lengths))


def grouped_bm25(
    hits: Hits,
    groups: NDArray[np.integer[Any]],
    lengths: Floats,
    mean_length: float,
    *,
    k1: float,
    b: float,
) -> Floats:
    """`bm25` of groups of documents, each as one: `groups` [postings], `lengths` [groups]."""
    total = len(lengths)
    scores = np.zeros(total)
    if not len(groups) or not mean_length:
        return scores
    norms = lengths * (k1 * b / mean_length)
    norms += k1 * (1 - b)
    ends = hits.ends.tolist()
    at_once = max(1, _TABLE_MAX // total)
    for first in range(0, len(hits.terms), at_once):
        last = min(first + at_once, len(hits.terms))
        span = slice(ends[first], ends[last])
        places = np.arange(0, (last - first) * total, total).repeat(hits.sizes[first:last])
        places += groups[span]
        table = summed(places, hits.counts[span], (last - first) * total).reshape(-1, total)
        idf = _idf(np.add.reduce(table > 0, axis=1), total)
        table /= table + norms
        scores += (idf * (k1 + 1)) @ table
    return scores


def _idf(frequency: NDArray[np.intp], total: int) -> Floats:
    """log(1 + (total - frequency + 0.5) / (frequency + 0.5))."""
    return np.asarray(np.log((total + 1) / (frequency + 0.5)))


def summed(places: NDArray[np.intp], values: Floats, total: int) -> Floats:
    """The sum of the values of each place, [total]."""
    # Of nothing at all bincount makes integers.
    return np.bincount(places, values, total).astype(np.float64, copy=False)
