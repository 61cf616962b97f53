"""What a question asks for, as far as its words show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from afterturn.retrieval.time_window import TimeWindow, time_window
from afterturn.retrieval.tokenizer import terms
from afterturn.retrieval.word_forms import FUNCTION_WORDS

_WORD: Final = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")
_POSSESSIVE: Final = re.compile(r"['\u2019]s?$")
_ASKS_TIME: Final = re.compile(
    r"\b(?:when|how long|(?:what|which) (?:date|day|time|month|year)"
    r"|how many (?:days|weeks|months|years))\b",
    re.IGNORECASE,
)
_ASKS_NUMBER: Final = re.compile(r"\bhow (?:many|much|often|old|far|long|tall|big)\b", re.I)
_ASKS_NAME: Final = re.compile(r"^\W*(?:what|which|where|who|whose)\b", re.IGNORECASE)
_ASKS_HELP: Final = re.compile(
    r"\b(?:how (?:do|can|should|would|could|might) (?:I|we)|(?:can|could|would|will) you"
    r"|what (?:should|would|could|can|are|is|steps|tools)|should I|recommend|suggest|advice"
    r"|help me|show me|tell me|give me|explain|ideas?)\b",
    re.IGNORECASE,
)
_TO_ASSISTANT: Final = re.compile(r"\b(?:you|your|yours)\b", re.IGNORECASE)
_FUNCTION_TERMS: Final = frozenset(term for word in FUNCTION_WORDS for term in terms(word))


@dataclass(frozen=True, slots=True)
class Cue:
    """A question as ranking sees it; `vector` float32 [dim] of unit length; `now` in seconds."""

    text: str
    vector: NDArray[np.float32] | None = None
    now: float | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A cue taken apart. `terms` are distinct, in order, without the words of grammar."""

    terms: tuple[str, ...]
    asks_time: bool
    asks_number: bool
    asks_name: bool
    asks_help: bool
    to_assistant: bool
    window: TimeWindow | None

    @classmethod
    def of(cls, cue: Cue) -> Question:
        """The question of a cue. One of nothing but grammar ("who am I?") keeps its words."""
        found = tuple(dict.fromkeys(terms(cue.text)))
        return cls(
            terms=tuple(term for term in found if term not in _FUNCTION_TERMS) or found,
            asks_time=_ASKS_TIME.search(cue.text) is not None,
            asks_number=_ASKS_NUMBER.search(cue.text) is not None,
            asks_name=_ASKS_NAME.search(cue.text) is not None,
            asks_help=_ASKS_HELP.search(cue.text) is not None,
            to_assistant=_TO_ASSISTANT.search(cue.text) is not None,
            window=time_window(cue.text, cue.now),
        )


def named_speaker(cue: str, names: Sequence[str]) -> str | None:
    """The one speaker that a question names, by any word of the name; `None` for none or several.

    Case counts unless the whole question is in lower case: "what will she eat" names no Will.
    """
    lower = cue == cue.lower()
    words = {_bare(w.casefold() if lower else w) for w in _WORD.findall(cue)}
    named = {
        name.casefold()
        for name in names
        if any(_called(w, lower=lower) & words for w in _WORD.findall(name) if len(w) > 1)
    }
    return named.pop() if len(named) == 1 else None


def _called(word: str, *, lower: bool) -> set[str]:
    # A speaker who is entered in lower case ("elise") is still called Elise.
    return {word.casefold()} if lower else {word, word[:1].upper() + word[1:]}


def _bare(word: str) -> str:
    return _POSSESSIVE.sub("", word) if "'" in word or "\u2019" in word else word
