"""What everybody has one of at a time, so that a later statement replaces an earlier one."""

from __future__ import annotations

import re
from typing import Final

from afterturn.extraction.vocabulary import ADVERBS, AM, FULL_NAME, PAST, SELF, compiled

_DIET: Final = r"(?:vegetarian|vegan|pescatarian|flexitarian)"

_ATTRIBUTES: Final = (
    ("home", compiled(rf"{SELF}{ADVERBS} live{ADVERBS} (?:in|near|outside|on|at) ")),
    ("home", compiled(rf"{AM}{ADVERBS} (?:living|based|located) (?:in|near|outside|at) ")),
    (
        "home",
        compiled(
            rf"{PAST}{ADVERBS} (?:moved|relocated|emigrated)(?: back| out| over| away)?"
            r"(?: from .{1,40}?)? to (?!the (?:left|right|front|back)\b)"
        ),
    ),
    ("employer", compiled(rf"{SELF}{ADVERBS} work{ADVERBS} (?:at|for) ")),
    ("employer", compiled(rf"{AM}{ADVERBS} (?:working|employed) (?:at|for) ")),
    ("employer", compiled(rf"{PAST} (?:started|joined|got|took) .{{0,60}}\bjob at ")),
    ("occupation", compiled(rf"{SELF}{ADVERBS} work as ")),
    ("occupation", compiled(rf"{AM}{ADVERBS} (?:working|employed) as ")),
    ("occupation", compiled(r"my (?:job|profession|occupation)(?:'s| is) ")),
    ("age", compiled(rf"{AM}{ADVERBS}(?: turning)? \d{{1,3}}(?: years old| years of age)?$")),
    ("birthday", compiled(r"my birthday(?:'s| is) ")),
    ("name", compiled(rf"my (?:full )?name(?:'s| is) {FULL_NAME}\b")),
    (
        "marital status",
        compiled(
            rf"(?:{AM}{ADVERBS}|{SELF}(?:'ve| have)?{ADVERBS} (?:got|been)) "
            r"(?:married|engaged|divorced|single|widowed)\b"
        ),
    ),
    ("diet", compiled(rf"{AM}{ADVERBS}(?: an?)?(?: strict| lifelong)? {_DIET}\b")),
    ("diet", compiled(rf"{AM} no longer(?: an?)? {_DIET}\b")),
    ("diet", compiled(rf"{PAST} (?:gone|become|became|went|turned) {_DIET}\b")),
)
_LEFT: Final = frozenset({"home", "employer", "occupation"})
_NO_LONGER: Final = compiled(r"\bno longer\b|\bany ?(?:more|longer)\b|\bused to\b")
_FAVOURITE: Final = compiled(r"my (?:all-time )?favou?rite (?P<thing>[\w-]+(?: [\w-]+){0,2}?) is ")


def attribute_of(words: str) -> str | None:
    """The attribute that a clause in the speaker's own words gives a value to, if it is single."""
    favourite = _FAVOURITE.match(words)
    if favourite:
        return f"favourite {re.sub('s$', '', favourite['thing'].lower())}"
    name = next((name for name, pattern in _ATTRIBUTES if pattern.match(words)), None)
    # What somebody has left says nothing of where they are now, and may be said after that.
    return None if name in _LEFT and _NO_LONGER.search(words) else name
