"""The inverted index against BM25 as one would write it down."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterturn.retrieval import lexical
from afterturn.retrieval.lexical import LexicalIndex

Document = list[str]
documents = st.lists(st.lists(st.sampled_from("abcdefg"), max_size=8), max_size=12)
queries = st.lists(st.sampled_from("abcdefgz"), max_size=6)


def naive(corpus: Sequence[Document], query: Sequence[str], k1: float, b: float) -> list[float]:
    mean = sum(map(len, corpus)) / len(corpus)
    scores = []
    for document in corpus:
        score = 0.0
        for term in dict.fromkeys(query):
            frequency = sum(term in other for other in corpus)
            count = document.count(term)
            if count:
                idf = math.log(1 + (len(corpus) - frequency + 0.5) / (frequency + 0.5))
                length = len(document) / mean
                score += idf * count * (k1 + 1) / (count + k1 * (1 - b + b * length))
        scores.append(score)
    return scores


def scored(parts: Sequence[tuple[LexicalIndex, list[int]]], query: Sequence[str]) -> list[float]:
    """BM25 of all ranked documents; a part's list says where each document stands, or -1."""
    placed = [(index, np.array(places, dtype=np.int32), 0) for index, places in parts]
    total = sum(int((places >= 0).sum()) for _, places, _ in placed)
    lengths = np.zeros(total)
    for index, places, _ in placed:
        lengths[places[places >= 0]] = index.lengths[places >= 0]
    hits = lexical.find(query, placed, total)
    mean = float(lengths.mean()) if total else 0.0
    return [float(score) for score in lexical.bm25(hits, lengths, mean, k1=0.9, b=0.75)]


def postings(index: LexicalIndex, term: str) -> tuple[list[int], list[float]]:
    """The documents that hold a term, and how often each does."""
    span = index.span(term)
    return index.documents[span].tolist(), index.counts[span].tolist()


@given(documents, queries)
def test_scores_equal_the_formula(corpus: list[Document], query: list[str]) -> None:
    """Every document's score is what the formula gives."""
    if corpus:
        found = scored([(lexical.build(corpus), list(range(len(corpus))))], query)
        np.testing.assert_allclose(found, naive(corpus, query, 0.9, 0.75), atol=1e-12)


@given(documents, documents, queries)
def test_several_indexes_score_as_one(
    first: list[Document], second: list[Document], query: list[str]
) -> None:
    """The idf is joint: it makes no difference which part holds a document."""
    apart = [
        (lexical.build(first), list(range(len(first)))),
        (lexical.build(second), list(range(len(first), len(first) + len(second)))),
    ]
    together = [(lexical.build(first + second), list(range(len(first) + len(second))))]
    np.testing.assert_allclose(scored(apart, query), scored(together, query), atol=1e-12)


@given(documents, queries, st.data())
def test_documents_that_are_not_ranked_leave_no_trace(
    corpus: list[Document], query: list[str], data: st.DataObject
) -> None:
    """A dead or excluded document counts neither in the idf nor in the mean length."""
    keep = data.draw(st.lists(st.booleans(), min_size=len(corpus), max_size=len(corpus)))
    places = [sum(keep[:at]) if kept else -1 for at, kept in enumerate(keep)]
    kept = [document for document, wanted in zip(corpus, keep, strict=True) if wanted]
    found = scored([(lexical.build(corpus), places)], query)
    expected = naive(kept, query, 0.9, 0.75) if kept and any(kept) else [0.0] * len(kept)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@given(documents, documents, st.data())
def test_merging_equals_building_from_what_is_kept(
    first: list[Document], second: list[Document], data: st.DataObject
) -> None:
    """A merged index has the postings, lengths and words of the documents kept, and no others."""
    corpus = [*first, *second]
    keep = data.draw(st.lists(st.booleans(), min_size=len(corpus), max_size=len(corpus)))
    masks = np.array(keep, dtype=np.bool_)
    merged = lexical.merge(
        [
            (lexical.build(first), masks[: len(first)]),
            (lexical.build(second), masks[len(first) :]),
        ]
    )
    built = lexical.build([d for d, wanted in zip(corpus, keep, strict=True) if wanted])
    assert merged.lengths.tolist() == built.lengths.tolist()
    assert merged.vocabulary.keys() == built.vocabulary.keys()
    for term in built.vocabulary:
        assert postings(merged, term) == postings(built, term)


@given(documents, st.lists(st.integers(0, 3), min_size=12, max_size=12), queries)
@pytest.mark.parametrize("table", [1, 1 << 21])
def test_groups_score_as_if_each_were_one_document(
    table: int, corpus: list[Document], groups: list[int], query: list[str]
) -> None:
    """A session's BM25 is that of its messages put together, in however many tables it is made."""
    whole: list[Document] = [[] for _ in range(4)]
    for document, group in zip(corpus, groups, strict=False):
        whole[group] += document
    if not any(whole):
        return
    places = np.arange(len(corpus), dtype=np.int32)
    hits = lexical.find(query, [(lexical.build(corpus), places, 0)], len(corpus))
    of_hits = np.array(groups, dtype=np.intp)[hits.documents]
    lengths = np.array([float(len(each)) for each in whole])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lexical, "_TABLE_MAX", table)
        found = lexical.grouped_bm25(hits, of_hits, lengths, lengths.mean(), k1=0.9, b=0.75)
    np.testing.assert_allclose(found, naive(whole, query, 0.9, 0.75), atol=1e-12)


def test_of_a_huge_question_the_rarest_terms_are_looked_up() -> None:
    """A pasted file costs a bounded number of terms, and the rare ones are those that count."""
    common = [f"common{i}" for i in range(lexical.QUERY_TERMS_MAX + 50)]
    index = lexical.build([common, [*common, "needle"]])
    places = np.array([0, 1], dtype=np.int32)
    hits = lexical.find([*common, "needle"], [(index, places, 0)], 2)
    assert len(hits.terms) == lexical.QUERY_TERMS_MAX
    assert "needle" in hits.terms
    assert hits.documents_of(["needle"]).tolist() == [1]
    assert hits.ends[-1] == len(hits.documents) == len(hits.counts) == sum(hits.sizes)
