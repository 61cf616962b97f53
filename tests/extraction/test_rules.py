"""What the rule extractor finds, how it words it, and what it leaves alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from afterturn.extraction.facts import fact_id
from afterturn.extraction.policy import FactPolicy
from afterturn.extraction.rules import FACTS_PER_TURN_MAX, RuleExtractor
from afterturn.extraction.run import run_extraction
from afterturn.extraction.validation import validate_extractor
from afterturn.ports import MemoryExtractorPort
from afterturn.records import MemoryLayer, Source
from tests.extraction.turns import SAID_AT, SCOPE, facts, records, request, turn

SAID = [
    ("relation", "My mother's name is Ruth", "The user's mother's name is Ruth"),
    (
        "plan",
        "My goal this year is to run a marathon",
        "The user's goal this year is to run a marathon",
    ),
    ("name", "My name is Nora Jensen.", "The user's name is Nora Jensen"),
    ("name", "Hi, I'm Nora.", "The user's name is Nora"),
    ("name", "you can call me Nono", "The user's name is Nono"),
    (
        "place",
        "I moved to Lisbon last month and I love it there.",
        "The user moved to Lisbon last month",
    ),
    ("place", "Last month I moved to Lisbon.", "The user moved to Lisbon last month"),
    ("place", "well, actually, i live in porto now!! \U0001f60a", "The user lives in porto now"),
    (
        "place",
        "We've lived in a small town near Bergen for ten years",
        "The user has lived in a small town near Bergen for ten years",
    ),
    ("place", "I'm from Norway originally", "The user is from Norway originally"),
    ("place", "I grew up in Oslo, but it was dull.", "The user grew up in Oslo"),
    (
        "work",
        "I work as a nurse at St. Mary's Hospital.",
        "The user works as a nurse at St. Mary's Hospital",
    ),
    ("work", "I'm a software engineer.", "The user is a software engineer"),
    ("work", "I quit my job at Equinor", "The user quit the user's job at Equinor"),
    ("work", "we own a bakery in Bergen", "The user owns a bakery in Bergen"),
    ("study", "I'm learning Spanish", "The user is learning Spanish"),
    ("study", "I speak Norwegian and Portuguese", "The user speaks Norwegian and Portuguese"),
    (
        "like",
        "I really love hiking with my dog.",
        "The user really loves hiking with the user's dog",
    ),
    ("like", "I'm a big fan of jazz", "The user is a big fan of jazz"),
    ("like", "I think I prefer tea", "The user prefers tea"),
    ("dislike", "I don't like cilantro.", "The user doesn't like cilantro"),
    ("dislike", "I can\u2019t stand jazz!", "The user can't stand jazz"),
    ("dislike", "I'm not into horror movies", "The user is not into horror movies"),
    ("favourite", "My favourite colour is green.", "The user's favourite colour is green"),
    ("favourite", "Dune is my favorite book", "Dune is the user's favorite book"),
    ("relation", "my sister Anna lives in Oslo", "The user's sister Anna lives in Oslo"),
    (
        "relation",
        "We visited my older sister Anna in Oslo.",
        "The user's older sister is called Anna",
    ),
    ("relation", "My wife is called Maria.", "The user's wife is called Maria"),
    ("relation", "I have two kids.", "The user has two kids"),
    ("relation", "I got married in 2019", "The user got married in 2019"),
    ("pet", "I have a golden retriever named Rex", "The user has a golden retriever named Rex"),
    ("pet", "Took my dog Rex to the vet", "The user's dog is called Rex"),
    ("pet", "My cat Misty died", "The user's cat Misty died"),
    ("plan", "I'm flying to Rome next Friday.", "The user is flying to Rome next Friday"),
    ("plan", "Next Friday I'm flying to Rome.", "The user is flying to Rome next Friday"),
    ("plan", "I'll start a new job on 14 May", "The user will start a new job on 14 May"),
    ("plan", "My exam is on May 14th.", "The user's exam is on May 14th"),
    (
        "plan",
        "I have a dentist appointment tomorrow",
        "The user has a dentist appointment tomorrow",
    ),
    (
        "plan",
        "I'm moving to Berlin next month, if it works out",
        "The user is moving to Berlin next month, if it works out",
    ),
    ("birthday", "My birthday is on 3 March.", "The user's birthday is on 3 March"),
    ("age", "I'm 34 years old", "The user is 34 years old"),
    ("health", "im a vegetarian", "The user is a vegetarian"),
    (
        "health",
        "I'm allergic to peanuts and shellfish, so please be careful.",
        "The user is allergic to peanuts and shellfish",
    ),
    ("health", "i dont eat pork", "The user doesn't eat pork"),
    ("health", "I was diagnosed with asthma", "The user was diagnosed with asthma"),
    ("correction", "I no longer eat meat.", "The user no longer eats meat"),
    (
        "correction",
        "I don't work at Siemens any more.",
        "The user doesn't work at Siemens any more",
    ),
    ("correction", "I used to live in Bergen", "The user used to live in Bergen"),
    (
        "note",
        "Please remember that the gate code is 4711 and the wifi is slow.",
        "The gate code is 4711 and the wifi is slow",
    ),
    ("note", "Remember that I'm allergic to nuts", "The user is allergic to nuts"),
    ("reminder", "Remind me to call mom", "The user wants to be reminded to call mom"),
]


@pytest.mark.parametrize(("kind", "said", "fact"), SAID, ids=[said for _, said, _ in SAID])
async def test_finds(kind: str, said: str, fact: str) -> None:
    """Each kind is found in plain words and told so that it stands alone."""
    found = await records(turn(said))
    assert [(each.metadata["kind"], each.text) for each in found] == [(kind, fact)]


@pytest.mark.parametrize(
    "said",
    [
        "Do I live in Oslo?",
        "Did you know that my sister Anna lives in Oslo?",
        "I love jazz, don't you?",
        "If I move to Berlin, I'll buy a bike next year.",
        "I wish I lived in Paris",
        "Imagine I live in a castle.",
        'She said "I live in Paris"',
        "\u201cI live in Paris,\u201d he said.",
        'He said "well, I live in Paris"',
        "> I live in Paris\n",
        "```\nI live in Paris\n```",
        "I love it",
        "I love that!",
        "I love hiking with them",
        "I'm learning a lot from this",
        "I love " + "very " * 30 + "long sentences",
        "I'd love a coffee",
        "I love you",
        "I like your painting",
        "I'm a bit tired.",
        "I'm working on it.",
        "What should I do next Friday",
        "Anna lives in Oslo and loves jazz.",
        "Ich wohne in Berlin und mag Jazz.",
        "",
        "   \n\t",
        "\U0001f600" * 50,
        "I",
        "my",
        "I love",
        "remember",
    ],
)
async def test_leaves_alone(said: str) -> None:
    """Questions, conditions, quotations, small talk and other people's news are no facts."""
    assert await facts(said) == []


async def test_one_sentence_may_hold_several_facts() -> None:
    """Clauses are told apart, and a shared subject is given back."""
    said = "I'm a teacher and love cooking but hate running, and my sister Anna lives in Oslo."
    assert await facts(said) == [
        "The user is a teacher",
        "The user loves cooking",
        "The user hates running",
        "The user's sister Anna lives in Oslo",
    ]


async def test_without_names_only_the_user_is_heard() -> None:
    """What an assistant says of itself is no memory."""
    assert await facts("I live in Oslo", "I live in a data centre") == ["The user lives in Oslo"]
    assert await facts(None, "I live in a data centre") == []


async def test_with_names_both_sides_are_heard() -> None:
    """Two people talk: each fact names who it is about."""
    found = await records(
        turn(
            "I live in Oslo. I love the tree in your garden.",
            "My dog Rex does!",
            names=["Ann", "Bo"],
        )
    )
    assert [(each.metadata["speaker"], each.text) for each in found] == [
        ("user", "Ann lives in Oslo"),
        ("user", "Ann loves the tree in Bo's garden"),
        ("assistant", "Bo's dog is called Rex"),
    ]


async def test_between_two_people_remember_is_advice() -> None:
    """With names, only what someone wants remembered of themselves is a note."""
    assert (
        await facts("Remember, the key is to rest. Don't forget to sleep.", names=["A", "B"]) == []
    )
    assert await facts("Remember that I'm allergic to nuts", names=["Ann", "Bo"]) == [
        "Ann is allergic to nuts"
    ]


async def test_speaker_name_names_the_user() -> None:
    """Where only the message's own speaker is known, that name is used."""
    assert await facts("I live in Oslo", speaker_name="Nora") == ["Nora lives in Oslo"]


@pytest.mark.parametrize(
    "names",
    [
        None,
        [],
        ["Ann"],
        ["Ann", "Bo", "Cy"],
        ["Ann", ""],
        ["Ann", None],
        "Ann",
        7,
        ["A" * 201, "Bo"],
    ],
)
async def test_names_that_are_none_are_ignored(names: Any) -> None:
    """Metadata is the caller's: whatever is no pair of names leaves the user unnamed."""
    assert await facts("I live in Oslo", "I live in Rome", names=names) == [
        "The user lives in Oslo"
    ]


@pytest.mark.parametrize(
    "name", ["My", "Me", "Us", "I", r"\g<0>", "We Love", "Your", "O'Hara", "李娜"]
)
async def test_any_name_survives_the_retelling(name: str) -> None:
    """A name that looks like a pronoun or an escape is not replaced in its turn."""
    told = await facts("I love my dog and my sister Anna", names=[name, "Bo"])
    assert told[0] == f"{name} loves {name}'s dog"


async def test_a_name_that_is_known_is_no_news() -> None:
    """Who is introduced under the name that the turn gives anyway is not a fact."""
    assert await facts("Hi, I'm Nora. My name is Nora.", names=["Nora", "Bo"]) == []
    assert await facts("My name is Nora Jensen.", names=["Nora", "Bo"]) == [
        "Nora's name is Nora Jensen"
    ]


async def test_control_characters_do_not_stand_for_names() -> None:
    """No character of a text is taken for one of the speakers."""
    assert await facts("I love jazz\x01 and\x00 tea", names=["Ann", "Bo"]) == [
        "Ann loves jazz  and  tea"
    ]


async def test_a_name_is_kept_on_one_line() -> None:
    """A line break in a name cannot start a line of its own in a prompt."""
    assert await facts("I live in Oslo", speaker_name=" Nora\n\nsystem:") == [
        "Nora system: lives in Oslo"
    ]


async def test_records_are_complete() -> None:
    """Ids are those of the facts; the rest is the turn's or the kind's."""
    home, trip = await records(turn("I live in Oslo. I'm flying to Rome next Friday."))
    assert home.record_id == fact_id(home.text, ("the user", "home"))
    assert trip.record_id == fact_id(trip.text)
    assert (home.layer, trip.layer) == (MemoryLayer.SEMANTIC, MemoryLayer.PROSPECTIVE)
    assert home.metadata == {
        "kind": "place",
        "speaker": "user",
        "subject": "the user",
        "attribute": "home",
    }
    assert trip.metadata == {"kind": "plan", "speaker": "user"}
    for record in (home, trip):
        assert record.scope_path == SCOPE.path
        assert record.origin == "extracted"
        assert record.occurred_at == SAID_AT
        assert record.recorded_at is None
        assert record.sources == (Source(turn_id="t-1", turn_path=SCOPE.path),)
        assert 0 < record.importance < 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("I live in Oslo", "Actually, I moved to Bergen last week."),
        ("I'm based in Oslo", "We've just moved from Oslo to Bergen"),
        ("I live near Oslo", "I now live in Bergen"),
        ("I live in Oslo", "That was long ago, but now I live in Bergen"),
        ("I work at a bank", "I got a new job at the harbour"),
        ("I work as a nurse", "I'm working as a teacher now"),
        ("I'm 31 years old", "I'm 32"),
        ("My favourite colour is blue", "These days my favorite colour is green"),
        ("I'm single", "We got married in May"),
        ("I'm a vegetarian", "I'm no longer vegetarian"),
        ("I'm vegetarian", "I've gone vegan"),
        ("My birthday is on 3 May", "Correction: my birthday is on 4 May"),
    ],
)
async def test_a_later_value_replaces_an_earlier_one(first: str, second: str) -> None:
    """Of what everybody has one at a time both statements have one id, and different words."""
    (before,), (after,) = await records(turn(first)), await records(turn(second))
    assert before.record_id == after.record_id
    assert before.text != after.text


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("I love jazz", "I love opera"),
        ("I'm from Oslo", "I live in Bergen"),
        ("I started a new job at the harbour", "I no longer work at the bank"),
        ("I live in Bergen", "I used to live in Oslo"),
        ("I'm allergic to nuts", "I'm allergic to cats"),
        ("My sister Anna lives in Oslo", "My sister Mia lives in Bergen"),
        ("My favourite colour is blue", "My favourite band is Abba"),
        ("I speak French", "I speak Greek"),
    ],
)
async def test_what_one_can_have_several_of_stays_side_by_side(first: str, second: str) -> None:
    """Another one of the kind contradicts nothing."""
    found = [*await records(turn(first)), *await records(turn(second))]
    assert len({record.record_id for record in found}) == len(found) >= 2


async def test_facts_of_two_people_are_kept_apart() -> None:
    """Where both have names each has a home."""
    said = turn("I live in Oslo", "I live in Bergen", names=["Nora", "Mia"])
    assert len({record.record_id for record in await records(said)}) == 2


async def test_facts_go_where_the_policy_says() -> None:
    """To an ancestor, and to the layers that are allowed."""
    policy = FactPolicy(level=2, layers=(MemoryLayer.EPISODIC,))
    answer = await RuleExtractor(policy).extract(request(turn("I live in Oslo")))
    (record,) = answer.records
    assert (record.scope_path, record.layer) == (SCOPE.ancestor(2).path, MemoryLayer.EPISODIC)


async def test_said_ten_times_counts_once() -> None:
    """Repeating a claim, or calling it important, gives it no more weight."""
    once = await records(turn("I live in Oslo"))
    assert await records(turn("I live in Oslo. " * 10 + "i live in OSLO")) == once


async def test_at_most_twenty_facts_the_important_ones_in_order() -> None:
    """Of many facts the least important give way, and the order of what was said is kept."""
    likes = [f"I love fruit number {n}." for n in range(40)]
    said = " ".join([*likes[:20], "I'm allergic to nuts.", *likes[20:], "I live in Oslo."])
    found = await records(turn(said))
    assert len(found) == FACTS_PER_TURN_MAX
    assert [each.text for each in found][-2:] == [
        "The user is allergic to nuts",
        "The user lives in Oslo",
    ]
    assert len({each.record_id for each in found}) == FACTS_PER_TURN_MAX


async def test_several_turns_keep_their_own_sources() -> None:
    """A fact of one turn must go when that turn is erased, whatever else was in the request."""
    found = await records(turn("I live in Oslo"), turn("I love jazz", turn_id="t-2"))
    assert [[s.turn_id for s in r.sources] for r in found] == [["t-1"], ["t-2"]]


async def test_the_same_turn_gives_the_same_records() -> None:
    """Work that is repeated after a crash writes the same rows."""
    said = turn("I live in Oslo. My sister Anna is a nurse. I love jazz.")
    assert await records(said) == await records(said)


async def test_unstorable_characters_do_no_harm() -> None:
    """NUL and lone surrogates become U+FFFD in the facts, as everywhere."""
    (fact,) = await facts("I live in Os\x00lo \ud83d near the sea")
    assert "\x00" not in fact
    assert "\ud83d" not in fact
    assert fact.startswith("The user lives in Os")


async def test_long_texts_let_others_run() -> None:
    """Between pieces of a long text other tasks of the event loop get their turn."""
    turns_taken = 0

    async def neighbour() -> None:
        nonlocal turns_taken
        while True:
            turns_taken += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(neighbour())
    await facts("We talked about the weather for a while. " * 5_000)
    task.cancel()
    assert turns_taken >= 5_000 * 41 // 20_000


async def test_it_is_an_extractor() -> None:
    """It passes its own validation, and its answer passes admission whole."""
    extractor: MemoryExtractorPort = RuleExtractor()
    validate_extractor(extractor)
    extracted = await run_extraction(
        extractor, request(turn("I live in Oslo. I love jazz.")), timeout_seconds=30
    )
    assert (len(extracted.records), extracted.refused, extracted.degraded) == (2, 0, False)
    assert {s.turn_id for record in extracted.records for s in record.sources} == {"t-1"}
