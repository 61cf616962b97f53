"""The rules: what a clause about the speaker looks like, and what kind of fact it is.

A rule is matched at the start of a clause, after its opener ("well, I think"), and claims the rest
of the clause. No repeat without a bound holds another one, so a clause is matched in few steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from afterturn.extraction import vocabulary as v
from afterturn.extraction.vocabulary import ADVERBS, AM, HAVE, NOT, PAST, REST, SELF, compiled
from afterturn.records import MemoryLayer


@dataclass(frozen=True, slots=True)
class Kind:
    """What a fact is about, and how much it is worth remembering (0 to 1)."""

    name: str
    importance: float
    layer: MemoryLayer = MemoryLayer.SEMANTIC


AGE: Final = Kind("age", 0.6)
BIRTHDAY: Final = Kind("birthday", 0.8)
CORRECTION: Final = Kind("correction", 0.8)
DISLIKE: Final = Kind("dislike", 0.5)
FAVOURITE: Final = Kind("favourite", 0.6)
HEALTH: Final = Kind("health", 0.9)
LIKE: Final = Kind("like", 0.5)
NAMED: Final = Kind("name", 0.8)
NOTE: Final = Kind("note", 0.9)
PET: Final = Kind("pet", 0.6)
PLACE: Final = Kind("place", 0.7)
PLAN: Final = Kind("plan", 0.7, MemoryLayer.PROSPECTIVE)
RELATION: Final = Kind("relation", 0.7)
REMINDER: Final = Kind("reminder", 0.8, MemoryLayer.PROSPECTIVE)
STUDY: Final = Kind("study", 0.6)
WORK: Final = Kind("work", 0.7)


def _kind_rules(kind: Kind, *expressions: str) -> list[tuple[Kind, re.Pattern[str]]]:
    return [(kind, compiled(expression)) for expression in expressions]


# The first that matches names the kind.
RULES: Final = (
    *_kind_rules(
        CORRECTION,
        rf"{SELF}(?:'m|'re| am| are)? no longer {REST}",
        rf"{SELF}(?:{NOT}|'m not| am not) (?!{v.EMPTY}|think|know)\w.{{1,120}} "
        r"any ?(?:more|longer)\b",
        rf"{PAST} (?:stopped|quit|given up|gave up|used to) (?!(?:my|the) .{{0,20}}job){REST}",
        rf"{PAST} (?:switched|converted)(?: over)?(?: from .{{1,60}})? to {REST}",
        rf"{PAST} changed my mind (?:about|on) {REST}",
    ),
    *_kind_rules(
        HEALTH,
        rf"{AM}{ADVERBS}(?: (?:severely|deathly|very|highly|mildly))? allergic to {REST}",
        rf"{AM}{ADVERBS}(?: an?)?(?: (?:strict|lifelong|practi[cs]ing))? {v.TRAIT}.*",
        rf"{PAST} (?:gone|become|became|went|turned)(?: an?)? {v.TRAIT}.*",
        rf"{HAVE}(?: an?)?(?: \w+){{0,3}} {v.CONDITION}.*",
        rf"{SELF}(?: was| were| got|'ve been| have been) diagnosed with {REST}",
        rf"(?:{AM}{ADVERBS} on|{SELF}{ADVERBS} follow) an? (?:[\w-]+ ){{1,3}}diet\b.*",
        rf"{SELF}{ADVERBS}(?:{NOT}| never| avoid)(?: (?:eat|eating|drink|drinking)) {REST}",
    ),
    *_kind_rules(
        BIRTHDAY,
        rf"my birthday(?:'s| is)(?: on| in)? (?:{v.DATE}|{v.MONTH})\b.*",
        rf"I was born (?:on|in) (?:{v.DATE}|{v.MONTH}|{v.YEAR})\b.*",
    ),
    *_kind_rules(
        PLAN,
        rf"{AM}{ADVERBS} (?!{v.BORING})[a-z]+ing\b.*{v.FUTURE}.*",
        rf"{SELF}(?:'ll| will){ADVERBS} [a-z]+\b.*{v.FUTURE}.*",
        rf"{SELF}{ADVERBS} (?:plan|intend|have|need|want|hope) to [a-z]+\b.*{v.FUTURE}.*",
        rf"{HAVE} (?:an?|my|the|our|two|another)\b.*{v.FUTURE}.*",
        rf"(?:my|our) (?:goal|plan|dream)(?: \w+){{0,3}} is to {REST}",
        r"(?:my|our) (?!favou?rite)(?:[\w'-]+ ){1,4}"
        rf"(?:is|are|starts?|begins?|leaves|ends?|takes place)\b.*{v.FUTURE}.*",
    ),
    *_kind_rules(AGE, rf"{AM}{ADVERBS}(?: turning)? \d{{1,3}}(?: years old| years of age)?$"),
    *_kind_rules(
        NAMED,
        rf"my (?:full |first |last |real |middle )?name(?:'s| is) {v.FULL_NAME}\b",
        rf"(?:everyone|everybody|people|friends|my friends) calls? me {v.FULL_NAME}\b",
        rf"I(?: go by|'m called| am called) {v.FULL_NAME}\b",
    ),
    *_kind_rules(
        PLACE,
        rf"{PAST} (?:live|lived|been living|grew up|settled|settled down|was born|was raised) "
        rf"(?:in|near|outside|on|at|with) {REST}",
        rf"{PAST} (?:live|lived|been living) (?:alone|together)\b.*",
        rf"{PAST} (?:moved|relocated|emigrated|immigrated)(?: back| out| over| away)? "
        rf"(?:to|from|into|in with|in) {REST}",
        rf"{AM}{ADVERBS} (?:living|based|located) (?:in|near|outside|at|with) {REST}",
        rf"(?:{AM}{ADVERBS}|{SELF}{ADVERBS} come)(?: originally)? from {REST}",
    ),
    *_kind_rules(
        WORK,
        rf"{PAST} (?:work|worked|been working) (?:as|at|for|in) "
        rf"(?!hours|days|ages|years|weeks|months|a while|a long|free|fun){REST}",
        rf"{AM}{ADVERBS} (?:working|employed|interning) (?:as|at|for|in) {REST}",
        rf"{PAST} (?:got|landed|started|accepted|took|found|have) (?:an?|my|the) (?:[\w-]+ ){{0,3}}"
        r"(?:job|position|role|internship|promotion)\b.*",
        rf"{PAST} (?:(?:got|was) promoted|retired|(?:got|was) laid off)\b.*",
        rf"{PAST} (?:quit|lost|left) (?:my|the) (?:[\w-]+ ){{0,3}}(?:job|position)\b.*",
        rf"{PAST} (?:run|own|founded|co-founded|started|opened|bought|manage) (?:an?|my|our|the) "
        rf"(?:[\w-]+ ){{0,4}}{v.POSSESSION}.*",
        r"my (?:\w+ )?(?:job|profession|occupation)(?:'s| is) (?:as |at |an? ).+",
    ),
    *_kind_rules(
        STUDY,
        rf"{PAST} (?:study|studied|teach|taught|graduated|majored in|major in|speak) {REST}",
        rf"{AM}{ADVERBS} (?:studying|majoring in|teaching|learning|training as) (?!to\b){REST}",
    ),
    *_kind_rules(
        RELATION,
        rf"{PAST} (?:got |been )?(?:married|engaged(?! in)|divorced)\b.*",
        rf"{AM}{ADVERBS} (?:married|engaged(?! in)|divorced|single|widowed|pregnant|expecting an?|"
        r"dating)\b.*",
        rf"{HAVE} (?:an?|one|two|three|four|five|six|no|twin|\d)(?: [a-z-]+)? {v.KIN}s?\b.*",
        rf"(?:my|our) {v.KIN}(?:,? {v.NAME},?)? {v.KIN_STATE}.*",
        rf"(?:my|our) {v.KIN}'s name is {v.NAME}\b",
    ),
    *_kind_rules(
        PET,
        rf"(?:my|our) (?:\w+ ){{0,2}}{v.PET}(?: is|'s name is) (?:called |named )?{v.NAME}\b",
        rf"(?:my|our) (?:\w+ ){{0,2}}{v.PET}(?: {v.NAME})? (?:died|passed away|is an?\b).*",
        rf"(?:{HAVE}|{PAST} (?:had|got|adopted|rescued|own|bought))(?: just)? "
        r"(?:an?|one|two|three|four|five|some|another) "
        rf"(?:(?!for|of|about|with|to|like|on)[\w-]+ ){{0,3}}{v.PET}.*",
    ),
    *_kind_rules(WORK, rf"{AM}{ADVERBS} an? (?:[\w-]+ ){{0,3}}{v.OCCUPATION}.*"),
    *_kind_rules(
        FAVOURITE,
        rf"(?:my|our) (?:[\w-]+ )?favou?rite (?:[\w-]+ ){{0,4}}(?:is|are|was) {REST}",
        rf"(?!{v.EMPTY}|he\b|she\b|they\b|we\b|I\b)(?:[\w'-]+ ){{1,6}}(?:is|are) "
        r"(?:definitely |one of |still )?my (?:all-time |absolute )?favou?rite\b.*",
    ),
    *_kind_rules(
        DISLIKE,
        rf"{SELF}{ADVERBS} (?:hate|dislike|detest|despise|loathe|(?:can't|cannot) (?:stand|bear)|"
        rf"(?:don't|do not){ADVERBS} (?:like|enjoy|care for)) {REST}",
        rf"{AM} not{ADVERBS} {v.FANCY} {REST}",
        rf"{AM}{ADVERBS} (?:afraid|scared|terrified) of {REST}",
    ),
    *_kind_rules(
        LIKE,
        rf"{SELF}{ADVERBS} (?:love|like|enjoy|adore|prefer) {REST}",
        rf"{SELF}(?:'ve| have) always (?:loved|liked|enjoyed|wanted) {REST}",
        rf"{AM}{ADVERBS} {v.FANCY} {REST}",
    ),
)

# Said in passing, anywhere in a clause: "we visited my sister Anna in Oslo".
MENTIONED: Final = (
    (RELATION, compiled(rf"\b(?:my|our) (?P<who>{v.KIN}),? (?P<name>{v.NAME})\b")),
    (PET, compiled(rf"\b(?:my|our) (?P<who>(?:new |old |little )?{v.PET}),? (?P<name>{v.NAME})\b")),
)

OPENER: Final = compiled(rf"{v.OPENER}(?:,|:|!|\.\.\.)? ?")
LEADING_TIME: Final = compiled(rf"(?P<when>{v.TIME})\b,? ?(?=(?:I|we|my|our)\b)")
CONDITIONAL: Final = compiled(
    r"(?:(?:but|and|so|or|what|even|as) )?"
    r"(?:if|unless|whether|wish|imagine|suppose|pretend|assuming|hypothetically)\b"
)
# What would need another sentence to be understood.
VAGUE: Final = compiled(
    r"\b(?:them|him|her|it|this|these|those|that one|(?:to|of|with|the|an?)$)\b"
)
ONESELF: Final = compiled(r"\b(?:I|I'm|my|me|we|our)\b")
REMEMBER: Final = compiled(
    r"(?:(?:please|and|also|just|so|ok|okay|hey)[, ]+){0,2}"
    r"(?:(?:remember|don't forget|do not forget|keep in mind|bear in mind|note|make a note)"
    r"(?: that(?!')|[:,]|(?= (?:I|my|we|our|the)\b))|for the record[:,]|fyi[:,]?) ?(?P<what>\w.+)"
)
REMIND: Final = compiled(
    r"(?:(?:please|and|also|just)[, ]+){0,2}(?:remind me|remember|don't forget) to (?P<what>\w.+)"
)
INTRODUCED: Final = (
    compiled(
        rf"(?:hi|hello|hey)(?: there| all| everyone| {v.NAME})?[,!]? (?:I'm|I am|this is) "
        rf"(?P<name>{v.FULL_NAME})(?= and\b| from\b| here\b|,|$)"
    ),
    compiled(rf"(?:(?:you can|please|just|but) ){{0,2}}call me (?P<name>{v.FULL_NAME})\b"),
)
