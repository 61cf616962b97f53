"""Words of a text as index terms: casefolded, stemmed, CJK and Thai as bigrams.

Latin words lose their accents and are stemmed as English, with the irregular forms brought to
their base. Cyrillic, Greek, Arabic, Armenian, Devanagari and Tamil words are stemmed by the one
stemmer of their script. All other words stay whole.

Scripts that are written without spaces (Han, kana, Hangul, Thai, Lao, Khmer, Burmese) give
overlapping pairs of characters, which need no dictionary and find every word of two characters
or more. Words are split at anything that is neither letter, digit nor combining mark.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from functools import cache, lru_cache
from typing import Any, Final

import snowballstemmer

from afterturn.retrieval.word_forms import BASE_FORMS

TERM_CHARACTERS_MAX: Final = 64
"""Longer terms (encoded data, long URLs) are cut: nobody types them, and they fill the memory."""

_UNSPACED: Final = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u1100-\u11ff\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff"  # Hangul jamo, kana
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"  # Han, Hangul
    "\U00020000-\U0003ffff"  # Han, supplementary planes
)
_ASCII_WORD: Final = re.compile(r"[a-z0-9]+(?:'[a-z0-9]+)*")


@cache
def _any_word() -> re.Pattern[str]:
    """A run of an unspaced script, or a word of any other; combining marks belong to the word.

    Built on first use: `re` has no class for marks, so their code points are listed.
    """
    marks = "".join(
        re.escape(chr(point))
        for point in range(0x300, 0x3100)
        if unicodedata.category(chr(point)).startswith("M")
    )
    letter = rf"(?:(?![{_UNSPACED}])(?:[^\W_]|[{marks}]))"
    return re.compile(rf"([{_UNSPACED}]+)|((?![{marks}]){letter}+(?:'{letter}+)*)")


def terms(text: str) -> list[str]:
    """The index terms of a text in order, with repetitions; empty for blank text."""
    folded = text.casefold() if text.isascii() else _folded(text)
    if folded.isascii():
        return [_stem(word[:TERM_CHARACTERS_MAX]) for word in _ASCII_WORD.findall(folded)]
    found: list[str] = []
    for run, word in _any_word().findall(folded):
        if run:
            found.extend(_bigrams(run))
        else:
            found.append(_stem(word[:TERM_CHARACTERS_MAX]))
    return found


def _folded(text: str) -> str:
    # NFKC after casefolding too: folding can take a composed character apart.
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return folded.replace("\u2019", "'")


def _bigrams(run: str) -> list[str]:
    if len(run) == 1:
        return [run]
    return [run[at : at + 2] for at in range(len(run) - 1)]


# The language of a script that several are written in is that of most of its writers.
_LANGUAGES: Final = (
    ("\u0370", "\u03ff", "greek"),
    ("\u0400", "\u04ff", "russian"),
    ("\u0530", "\u058f", "armenian"),
    ("\u0600", "\u06ff", "arabic"),
    ("\u0900", "\u097f", "hindi"),
    ("\u0b80", "\u0bff", "tamil"),
)
_ACCENTS: Final = re.compile("[\u0300-\u036f]+")

# A stemmer keeps the word it works on in itself, so each thread has its own.
_stemmers = threading.local()


@lru_cache(maxsize=50_000)
def _stem(word: str) -> str:
    if word.isdigit():
        return word
    if not word.isascii():
        bare = _ACCENTS.sub("", unicodedata.normalize("NFKD", word))
        if not bare.isascii():
            return _stemmed(_language(word[0]), word) or word
        word = bare
    return _stemmed("english", BASE_FORMS.get(word, word)) or word


def _language(letter: str) -> str:
    return next((name for first, last, name in _LANGUAGES if first <= letter <= last), "")


def _stemmed(language: str, word: str) -> str:
    if not language:
        return word
    stemmer: Any = getattr(_stemmers, language, None)
    if stemmer is None:
        stemmer = snowballstemmer.stemmer(language)
        setattr(_stemmers, language, stemmer)
    stemmed: str = stemmer.stemWord(word)
    return stemmed[:TERM_CHARACTERS_MAX].strip()
