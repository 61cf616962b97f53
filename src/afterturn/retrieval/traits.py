"""What a text is like whatever is asked: evidence of the kind of sentence that holds facts.

People tell of themselves in the first person, so that is where facts about them stand. The words
looked for are English; digits are not.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

TEXT_CHARACTERS_MAX: Final = 4_000
"""Only the beginning of a text is looked at: enough to know its kind."""
NAMES_MAX: Final = 9
"""Names beyond are not counted."""

_FIRST_PERSON: Final = re.compile(r"\b(?:I|[Mm]y|[Mm]e|[Ww]e|[Oo]ur|[Mm]ine)\b")
_TIME: Final = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|last|next|ago|since|weeks?|weekends?|months?|years?"
    r"|days|hours?|(?:mon|tues|wednes|thurs|fri|satur|sun)day|mornings?|afternoons?|evenings?"
    r"|recently|just|soon|january|february|march|april|june|july|august|september|october"
    r"|november|december|christmas|birthday|holidays?|(?:19|20)\d\d)\b",
    re.IGNORECASE,
)
_NUMBER: Final = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|once|twice|dozens?|couple|few"
    r"|several|hundreds?|thousands?)\b",
    re.IGNORECASE,
)
# How somebody tells what holds from now on: as an order at the start of a sentence, or as a taste.
_STANDING: Final = re.compile(
    r"(?:^|[.!?;:\n]\s*|\bplease,? )(?:always|never|from now on|in (?:the )?future|whenever"
    r"|every time|make sure|be sure to|remember (?:to|that)|avoid|do not|don['\u2019]t)\b"
    r"|\bI(?:['\u2019]d| would)? (?:strongly |really |generally |usually |always |much )?prefer\b"
    r"|\bI(?:['\u2019]d| would) rather\b|\bprefers\b|\bmy (?:strong )?preferences?\b",
    re.IGNORECASE,
)
# Not at the start of a sentence, where every word has a capital.
_NAME: Final = re.compile(r"(?<=[a-z,;:] )[A-Z][a-z]+|\b[A-Z]{2,}\b")


class Traits(NamedTuple):
    """The traits of one text, in the order of the columns that hold them."""

    asks: bool
    """Whether it ends in a question."""
    first_person: bool
    tells_time: bool
    tells_number: bool
    standing: bool
    """Whether it tells how something is wanted from now on: an instruction or a preference."""
    names: int
    """Words with a capital inside a sentence, up to `NAMES_MAX`: names of people, places, works."""


def traits(text: str) -> Traits:
    """The traits of a text."""
    begin = text[:TEXT_CHARACTERS_MAX]
    return Traits(
        asks=text.rstrip().endswith(("?", "\uff1f")),
        first_person=_FIRST_PERSON.search(begin) is not None,
        tells_time=_TIME.search(begin) is not None,
        tells_number=_NUMBER.search(begin) is not None,
        standing=_STANDING.search(begin) is not None,
        names=min(len(_NAME.findall(begin)), NAMES_MAX),
    )
