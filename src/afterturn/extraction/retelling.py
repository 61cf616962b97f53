"""What somebody said of themselves, told with their name.

"I love my dog" becomes "Nora loves Nora's dog". No he, she or they: the sentence must stand alone
among those about other people.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from afterturn.extraction.vocabulary import ADVERBS

_PRESENT: Final = frozenset(
    re.findall(
        r"\w+",
        """
        adore agree avoid believe belong bike bring build buy call care change check choose
        clean collect come commute consider cook crave dance despise detest dislike draw dream
        drink drive eat enjoy exercise expect fear feel find follow forget garden get give go
        grow hate head help hike hope identify intend invest jog keep know lead learn leave like
        live loathe look love make manage mean meditate meet mentor miss need organise organize
        own paint plan play practice practise prefer promise raise rent ride row run sail save
        say see seem sell send sew sing ski sleep speak spend start stay stop struggle study
        suffer support surf swim take talk teach tend think train travel trust try turn
        understand use value visit volunteer wait wake walk want watch wear wish work worry
        write
        """,
    )
)
_IRREGULAR: Final = {
    "am": "is", "are": "is", "aren't": "isn't", "were": "was", "weren't": "wasn't",
    "have": "has", "haven't": "hasn't", "do": "does", "don't": "doesn't",
}  # fmt: skip
_NAME: Final = "\x00"
_LISTENER: Final = "\x01"
_STAND_INS: Final = re.compile("[\x00\x01]")
_CONTRACTED: Final = {"m": " is", "re": " is", "ve": " has", "ll": " will", "d": " would"}
_FIRST_PERSON: Final = re.compile(
    r"(?<!Book )(?<!Part )(?<!Type )(?<!War )(?<!Chapter )(?<!Elizabeth )\b(?:I|[Ww]e)\b"
    rf"(?:'(?P<contracted>m|re|ve|ll|d))?(?P<adverbs>{ADVERBS})"
    r"(?: (?P<verb>[a-z]+(?:'t)?)\b)?"
)
_OBJECTS: Final = re.compile(r"\b(?:[Mm]y|[Oo]ur|[Mm]ine|[Oo]urs|[Mm]e|us|[Mm]yself)\b")
_YOURS: Final = re.compile(r"\b[Yy]our\b")
_ADDRESSED: Final = re.compile(r"\b[Yy]ou(?:'\w+)?\b")


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who speaks, and the one spoken to where that is known by name."""

    name: str
    listener: str | None = None


def retell(clause: str, speaker: Speaker) -> str | None:
    """The clause in the third person as a sentence; `None` where it needs the one spoken to."""
    if _ADDRESSED.search(clause) or (speaker.listener is None and _YOURS.search(clause)):
        return None
    # Names go in last: one may look like a word that is replaced.
    told = _FIRST_PERSON.sub(_subject, _STAND_INS.sub(" ", clause))
    told = _OBJECTS.sub(lambda match: _NAME + ("'s" if _is_owner(match[0]) else ""), told)
    told = _YOURS.sub(f"{_LISTENER}'s", told)
    told = told.replace(_NAME, speaker.name).replace(_LISTENER, speaker.listener or "")
    return told[:1].upper() + told[1:]


def third_person(verb: str) -> str:
    """The form after he or she; verbs that are not known to be in the present stay as they are."""
    if verb not in _PRESENT:
        return _IRREGULAR.get(verb, verb)
    if verb.endswith(("s", "x", "z", "ch", "sh", "o")):
        return f"{verb}es"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return f"{verb[:-1]}ies"
    return f"{verb}s"


def _subject(match: re.Match[str]) -> str:
    contracted, verb = match["contracted"], match["verb"]
    told = _NAME + (_CONTRACTED[contracted] if contracted else "") + match["adverbs"]
    if verb is None:
        return told
    return f"{told} {verb if contracted else third_person(verb)}"


def _is_owner(word: str) -> bool:
    return word.lower() in {"my", "our", "mine", "ours"}
