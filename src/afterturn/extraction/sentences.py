"""Text cut into clauses that hold one statement each, in time linear in the text.

Every expression here and in `patterns` is tried at a bounded number of places and looks at no more
than one clause, so hostile text costs what plain text of its length costs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

PIECE_CHARACTERS: Final = 20_000
SENTENCE_CHARACTERS: Final = 400

_PIECE_OVERHANG: Final = 2_000
_END: Final = re.compile(r"[.!?…]{1,8}[\"')\]]{0,3}(?=\s|$)|\n")
_ABBREVIATION: Final = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|no|e\.g|i\.e|[ap]\.m|approx)|\b[A-Z])\.$"
)
_WRAPPED: Final = re.compile(r"(?<=[^\n]{60})\n(?=[a-z])")
_EDGES: Final = " -*\u2022'"
_SPACES: Final = re.compile(r"\s+")

# What people type for the words that the patterns look for.
_SPELLINGS: Final = (
    (re.compile(r"[\u2018\u2019\u02bc`]"), "'"),
    (re.compile(r"[\u201c\u201d]"), '"'),
    (re.compile(r"\bi(?='|\b)(?!\.)"), "I"),
    (re.compile(r"\b[Ii]m\b"), "I'm"),
    (re.compile(r"\b[Ii]ve\b"), "I've"),
    (re.compile(r"\b(do|does|did|ca|wo|have|has|is|are|was|were|could|would)nt\b"), r"\1n't"),
)
_SUBJECT: Final = r"(?:I|we|my|our|it|he|she|they|you|that|this|there)\b"
_BREAK: Final = re.compile(
    r" ?[;()\[\]\u2013\u2014] ?| --? |"
    rf",? (?:and|but|so|because|cause|since|as|although|though|while|plus|yet|or) "
    rf"(?:now )?(?={_SUBJECT})|"
    r",? (?:and|but) (?=(?:love|hate|like|enjoy|prefer|live|don't|can't|have an?|am|work (?:as|at))"
    r"\b)|"
    rf", (?=(?:{_SUBJECT}|(?:which|who|where|so|but|because|and|though)\b))"
)
_BARE_VERB: Final = re.compile(r"(?:love|hate|like|enjoy|prefer|live|don't|can't|have|am|work)\b")
_MY_OWN: Final = re.compile(r"(?:\w+,? ){0,3}(?:I|we|We)\b")


def statements(text: str) -> Iterator[str]:
    """The sentences of a piece that are not questions, in one spelling, without their full stop.

    Code between fences and quoted lines are left out: they are rarely about the speaker.
    """
    start = 0
    prose = _WRAPPED.sub(" ", _prose(text))
    for end in _END.finditer(prose):
        if end[0] == "." and _ABBREVIATION.search(prose, max(start, end.end() - 8), end.end()):
            continue
        if "?" not in end[0]:
            yield from _bounded(prose[start : end.start()])
        start = end.end()
    yield from _bounded(prose[start:])


def clauses(statement: str) -> Iterator[str]:
    """The statement's parts; a part that shares the subject `I` of the one before gets it back."""
    start, before = 0, ""
    ends = [*(m.span() for m in _BREAK.finditer(statement)), (len(statement),) * 2]
    for end, following in ends:
        clause = statement[start:end].strip(" ,")
        if _BARE_VERB.match(clause) and _MY_OWN.match(before):
            clause = f"I {clause}"
        if clause:
            yield clause
            before = clause
        start = following


def pieces(text: str, characters: int = PIECE_CHARACTERS) -> Iterator[str]:
    """The text in parts of at most so many characters, cut between lines, sentences or words."""
    start = 0
    overhang = min(_PIECE_OVERHANG, characters // 4)
    while len(text) - start > characters:
        limit = start + characters
        cuts = (text.rfind(mark, limit - overhang, limit) for mark in ("\n", ". ", " "))
        end = next((cut + 1 for cut in cuts if cut > start), limit)
        yield text[start:end]
        start = end
    yield text[start:]


def _prose(text: str) -> str:
    if "```" in text:
        text = "\n".join(text.split("```")[::2])
    if ">" in text:
        text = "\n".join(line for line in text.split("\n") if not line.startswith(">"))
    return text


def _bounded(sentence: str) -> Iterator[str]:
    """The sentence in one spelling, in parts when it is long; what has no space is no prose."""
    if not sentence or sentence.isspace():
        return
    sentence = _spelled(sentence)
    start = 0
    while len(sentence) - start > SENTENCE_CHARACTERS:
        limit = start + SENTENCE_CHARACTERS
        comma = sentence.rfind(", ", start + 1, limit)
        cut = comma if comma > 0 else sentence.rfind(" ", start + 1, limit)
        if cut > 0:
            yield sentence[start:cut]
        start = cut + 1 if cut > 0 else limit
    if start < len(sentence):
        yield sentence[start:].strip()


def _spelled(sentence: str) -> str:
    for pattern, plain in _SPELLINGS:
        sentence = pattern.sub(plain, sentence)
    return _SPACES.sub(" ", sentence).strip(_EDGES)
