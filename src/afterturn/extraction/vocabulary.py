"""The words and phrases that the rules are made of, as parts of regular expressions."""

from __future__ import annotations

import re
from typing import Final


def _any(words: str) -> str:
    """One of the phrases, separated by a comma and a space; a phrase may be an expression."""
    return "(?:" + "|".join(re.split(r",\s+", words.strip())) + ")"


_ADVERB: Final = _any(
    """
    really, absolutely, just, also, still, now, always, never, rarely, seldom, often, sometimes,
    usually, mostly, generally, recently, currently, actually, totally, finally, definitely,
    particularly, especially, truly, mainly, only, already, honestly, no longer, probably,
    typically, normally, simply, personally, completely, regularly, occasionally, primarily,
    officially, even
    """
)
ADVERBS: Final = rf"(?: {_ADVERB}){{0,2}}"

SELF: Final = r"(?:I|[Ww]e)"
AM: Final = r"(?:I'm|I am|[Ww]e're|[Ww]e are)"
HAVE: Final = rf"{SELF}(?:'ve got|'ve had| have got| have)"
PAST: Final = rf"{SELF}(?:'ve| have)?{ADVERBS}"
NOT: Final = r"(?: don't| do not| can't| cannot)"

_NAME_PART: Final = r"[A-ZÀ-ÖØ-Þ][^\W\d_]{1,24}"
NAME: Final = rf"(?-i:{_NAME_PART}(?:[-']{_NAME_PART})?)"
FULL_NAME: Final = rf"{NAME}(?: {NAME}){{0,2}}"

_EMPTY: Final = _any(
    """
    it, its, it's, this, that, that's, these, those, them, him, her, hers, his, their, you, your,
    there, here, what, whatever, how, when, why, where, which, who, everything, anything, nothing,
    something, someone, one, some, so, too, much, more, most, enough, a lot, lots, about, is, are,
    was, were, and, or, but, the way, the idea, the fact, the part, the moment, the following,
    hope, fear, such, both, all, being able, seeing you, to see you, to$
    """
)
# What the rest of a clause may not begin with: then it says nothing by itself.
EMPTY: Final = rf"{_EMPTY}\b"
REST: Final = rf"(?!{EMPTY})[^\W_].*"

_WEEKDAY: Final = "(?:mon|tues|wednes|thurs|fri|satur|sun)day"
MONTH: Final = _any(
    """
    january, february, march, april, may, june, july, august, september, october, november,
    december
    """
)
_DAY: Final = r"\d{1,2}(?:st|nd|rd|th)?"
DATE: Final = _any(
    rf"{_DAY} (?:of )?{MONTH}, {MONTH} {_DAY}, {_WEEKDAY}, the {_DAY}, \d{{4}}-\d\d-\d\d"
)
YEAR: Final = r"(?:19|20)\d\d"
_SEASON: Final = "(?:spring|summer|autumn|fall|winter)"
_UNIT: Final = "(?:day|week|weekend|month|year|night|semester|term)s?"
_COUNT: Final = _any(r"an?, one, two, three, four, five, six, a few, a couple of, \d{1,3}")
NAMED_TIME: Final = rf"(?:{_UNIT}|{_SEASON}|{_WEEKDAY}|{MONTH})"
_FUTURE: Final = _any(
    rf"""
    tomorrow, tonight, next {NAMED_TIME}, this coming {NAMED_TIME},
    this (?:weekend|evening|afternoon|{_SEASON}|{_WEEKDAY}|{MONTH}),
    (?:on|by|until|before) {DATE}, in {_COUNT} {_UNIT}, in (?:early |late |mid-)?(?:{MONTH}|{YEAR}),
    (?:at|over) (?:the weekend|christmas|easter|new year), later this (?:week|month|year)
    """
)
FUTURE: Final = rf"\b{_FUTURE}\b"
TIME: Final = _any(
    rf"""
    yesterday, today, tomorrow, tonight, (?:last|next|this|this past) {NAMED_TIME}, on {DATE},
    in {MONTH}(?: {YEAR})?, in {YEAR}, {_COUNT} {_UNIT} ago, in {_COUNT} {_UNIT}
    """
)

_KIN_ADJECTIVE: Final = _any(
    """
    older, younger, elder, eldest, oldest, youngest, middle, big, little, twin, half, best, close,
    old, new, late, dear, good, other, first, second, former, ex
    """
)
_KIN: Final = _any(
    """
    wife, husband, spouse, partner, girlfriend, boyfriend, fiancée?, mother, mom, mum, father, dad,
    parents, sister, brother, siblings?, son, daughter, kids?, child, children, baby, grandmother,
    grandma, granny, grandfather, grandpa, grandparents, grandson, granddaughter, aunt, uncle,
    cousin, niece, nephew, (?:mother|father|sister|brother|son|daughter)-in-law,
    step(?:mother|mom|father|dad|son|daughter|brother|sister), twins?, friend, roommate, flatmate,
    housemate, neighbou?r, colleague, co-?worker, boss, manager, mentor, teacher, therapist,
    doctor, landlord
    """
)
KIN: Final = rf"(?:{_KIN_ADJECTIVE} ){{0,2}}{_KIN}"
_KIN_STATE: Final = _any(
    r"""
    lives?, lived, works?, worked, moved, studies, studied, teaches, speaks, loves, hates, likes,
    (?:was|were) born, grew up, passed away, died, graduated, retired, plays, runs, owns, has an?,
    got (?:married|engaged|divorced|promoted), had a baby, (?:was|has been) diagnosed,
    (?:is|are) (?:getting |now )?(?:married|engaged|divorced|retired|pregnant),
    (?:is|are) (?:expecting|allergic|from|called|named|vegan|vegetarian|diabetic|an?|turning|\d+),
    turn(?:s|ed) \d+, name(?:'s| is)
    """
)
KIN_STATE: Final = rf"{_KIN_STATE}\b"
_PET: Final = _any(
    """
    dogs?, pupp(?:y|ies), pups?, cats?, kittens?, kitty, hamsters?, rabbits?, bunn(?:y|ies),
    parrots?, budgies?, cockatiels?, horses?, pon(?:y|ies), guinea pigs?, goldfish, tortoises?,
    turtles?, snakes?, lizards?, geckos?, ferrets?, chickens, pets?, retrievers?, labradors?,
    poodles?, terriers?, corgis?, husk(?:y|ies), shepherds?, beagles?, dachshunds?, bulldogs?,
    spaniels?, collies?, pugs?, chihuahuas?
    """
)
PET: Final = rf"{_PET}\b"
_OCCUPATION: Final = _any(
    """
    [a-z]{2,20}(?:ist|ian|eer|ologist), nurse, doctor, chef, cook, pilot, student, lawyer,
    attorney, accountant, consultant, assistant, architect, actor, actress, author, baker, barber,
    bartender, builder, carpenter, cashier, coach, counsell?or, curator, dancer, designer,
    developer, director, driver, editor, entrepreneur, farmer, firefighter, freelancer, gardener,
    hairdresser, instructor, interpreter, investor, judge, lecturer, manager, marketer, mechanic,
    midwife, model, nanny, officer, painter, paramedic, photographer, plumber, poet, postdoc,
    producer, professor, programmer, realtor, recruiter, reporter, researcher, sailor, salesperson,
    secretary, singer, soldier, teacher, trainer, translator, tutor, veteran, vet, waiter,
    waitress, welder, writer, worker, intern, trainee, apprentice, analyst, founder, owner,
    planner, streamer, tailor, trader, mother, father, mom, mum, dad, parent, grandmother,
    grandfather, widow, widower
    """
)
OCCUPATION: Final = rf"{_OCCUPATION}\b"
_POSSESSION: Final = _any(
    """
    company, business, bakery, shop, store, restaurant, start-?up, café, cafe, studio, farm,
    agency, firm, practice, clinic, school, bar, hotel, gallery, nonprofit, charity, podcast, blog,
    channel, house, apartment, flat, condo, car, boat, garden, cabin
    """
)
POSSESSION: Final = rf"{_POSSESSION}\b"
_TRAIT: Final = _any(
    """
    vegetarian, vegan, pescatarian, flexitarian, teetotal, sober, celiac, coeliac, diabetic,
    asthmatic, (?:lactose|gluten)[- ]intolerant, (?:gluten|dairy)[- ]free, colou?r[- ]?blind,
    left-handed, deaf, blind, autistic, dyslexic
    """
)
TRAIT: Final = rf"{_TRAIT}\b"
_CONDITION: Final = _any(
    """
    allerg(?:y|ies), intolerance, asthma, diabetes, (?:celiac|coeliac)(?: disease)?, migraines?,
    adhd, epilepsy, arthritis, anxiety, depression, insomnia, cancer, disorder, disease, condition
    """
)
CONDITION: Final = rf"{_CONDITION}\b"
_FONDNESS: Final = _any(
    """
    fan of, lover of, into, obsessed with, fond of, crazy about, passionate about, keen on,
    interested in, addicted to
    """
)
FANCY: Final = rf"(?:an? )?(?:(?:big|huge|massive|great|total|real|die-hard|avid) )?{_FONDNESS}"
BORING: Final = _any(
    """
    thinking, feeling, hoping, wondering, considering, trying, waiting, struggling, looking,
    asking, debating, aiming
    """
)
_OPENER: Final = _any(
    r"""
    and, but, so, because, cause, since, although, though, while, plus, yet, or, well, yes, yeah,
    yep, yup, no, nope, nah, oh, ah, aw, wow, ok, okay, hi, hey, hello, also, by the way, btw, fyi,
    honestly, personally, tbh, to be honest, sure, thanks, thank you, then, now, anyway, anyways,
    still, hmm, haha, lol, for me, these days, nowadays, recently, lately, currently, right now,
    in fact, unfortunately, luckily, sadly, fortunately, great news, good news, guess what,
    as you know, as I said, that, just so you know, for the record, actually, correction, sorry,
    wait, scratch that,
    I (?:think|guess|believe|suppose|must say|have to say|should mention|should add)
    """
)
OPENER: Final = rf"{_OPENER}\b"


def compiled(expression: str) -> re.Pattern[str]:
    """Everything is matched without regard to case, except `NAME`."""
    return re.compile(expression, re.IGNORECASE)
