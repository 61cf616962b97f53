"""Terms of texts in several scripts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterturn.retrieval.tokenizer import TERM_CHARACTERS_MAX, terms


def test_english_words_meet_in_their_stem() -> None:
    """Inflections, case and the genitive make no difference."""
    assert terms("Caroline's RUNNING shoes") == terms("caroline running SHOE")
    assert terms("CAROLINE\u2019S") == terms("caroline")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n\t", []),
        ("\x00", []),
        ("--- ???", []),
        ("a_b", ["a", "b"]),
        ("v2.10", ["v2", "10"]),
        ("\uff21\uff22\uff23\uff11", ["abc1"]),
        ("straße STRASSE", ["strass", "strass"]),
        ("我喜欢茶", ["我喜", "喜欢", "欢茶"]),
        ("茶", ["茶"]),
        ("iPhone手機", ["iphon", "手機"]),
        ("ชอบชา", ["ชอ", "อบ", "บช", "ชา"]),
        ("한국어 책", ["한국", "국어", "책"]),
        ("हिन्दी भाषा", ["हिन्द", "भाष"]),
        ("книги КНИГА", ["книг", "книг"]),
        ("café CAFE Müller", ["cafe", "cafe", "muller"]),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    """Unspaced scripts give pairs of characters, other words stay whole with their marks."""
    assert terms(text) == expected


def test_a_chinese_word_inside_a_sentence_is_found() -> None:
    """The pairs of a word are among the pairs of the sentence around it."""
    assert set(terms("乌龙茶")) <= set(terms("她最喜欢喝乌龙茶和咖啡"))


def test_long_terms_are_cut() -> None:
    """Encoded data does not become terms of any length."""
    assert [len(term) for term in terms("x9" * 5_000)] == [TERM_CHARACTERS_MAX]


@given(st.text())
def test_any_text_has_terms_that_are_its_own_terms_when_folded(text: str) -> None:
    """No text breaks the tokenizer, and none of its terms is blank or too long."""
    for term in terms(text):
        assert term.strip() == term
        assert 0 < len(term) <= TERM_CHARACTERS_MAX


def test_threads_do_not_mix_up_stems() -> None:
    """The stemmer keeps state, so every thread works with its own."""
    words = [f"{stem}{end}" for stem in ("walk", "talk", "jump") for end in ("ing", "ed", "s")]
    texts = [f"{word}q{i} {word}" for i in range(300) for word in words]
    with ThreadPoolExecutor(8) as pool:
        threaded = list(pool.map(terms, texts))
    assert [t[1] for t in threaded] == [w[:4] for _ in range(300) for w in words]
