"""Facts: one of each, with all its sources; what was replaced is history and never comes back."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from afterturn.extraction.facts import fact_id
from afterturn.generations import vector_of
from afterturn.jobs.tally import Tally
from afterturn.pipeline.applying import turn_work
from afterturn.pipeline.staging import StagedTurn, stage
from afterturn.reading import Reading
from afterturn.records import MemoryLayer, MemoryRecord, Source
from afterturn.scope import MemoryScope
from afterturn.writes import WriteRequest
from afterturn.writing import PostgresWriting
from tests.pipeline.conftest import ALICE, CHAT_1, CHAT_2, SOON, Desk

NOON = datetime(2025, 5, 9, 12, tzinfo=UTC)
HOME = ("alice", "home")
_CURRENT = """
select m.path, m.text, m.turn_id, m.metadata, m.embedding is null as bare,
    coalesce((select array_agg(s.turn_id order by s.turn_id) from afterturn.memory_sources s
        where s.path = m.path and s.record_id = m.record_id and not s.pending), '{}') as turns
from afterturn.memories m where m.origin <> 'turn' and not m.pending order by m.path, m.text
"""
_HISTORY = """
select text, turn_id from afterturn.fact_statements where superseded order by said_at, turn_id
"""
_LEFT = """
select (select count(*) from afterturn.memories where origin <> 'turn')
    + (select count(*) from afterturn.memory_sources)
    + (select count(*) from afterturn.fact_statements)
"""


def about(
    text: str,
    *turns: tuple[MemoryScope, str],
    at: MemoryScope = ALICE,
    key: tuple[str, str] | None = HOME,
    importance: float = 0.5,
) -> MemoryRecord:
    """A fact with a key (or none) that rests on these turns."""
    return MemoryRecord(
        record_id=fact_id(text, key),
        text=text,
        scope_path=at.path,
        layer=MemoryLayer.SEMANTIC,
        origin="extracted",
        metadata=dict(zip(("subject", "attribute"), key, strict=True)) if key else {},
        importance=importance,
        sources=tuple(Source(turn_id=turn, turn_path=scope.path) for scope, turn in turns),
    )


async def say(desk: Desk, scope: MemoryScope, turn_id: str, minutes: int = 0) -> None:
    """Stage and record a turn that happened so many minutes after noon."""
    turn = StagedTurn(
        scope=scope,
        turn_id=turn_id,
        token=vector_of(scope.path, await desk.token(scope)),
        session=None,
        query="said",
        answer=None,
        names=None,
        metadata={},
        occurred_at=NOON + timedelta(minutes=minutes),
    )
    await desk.record(await stage(desk.database, turn, ring_after=SOON))


async def learn(desk: Desk, scope: MemoryScope, turn_id: str, *facts: MemoryRecord) -> None:
    """Apply facts as what a recorded turn's extraction gave."""
    assert await desk.extract(await desk.claim_extract(scope, turn_id), *facts) == "extracted 1"


async def current(desk: Desk) -> list[tuple[str, list[str]]]:
    """(text, source turns) of every current fact."""
    return [(row["text"], row["turns"]) for row in await desk.rows(_CURRENT)]


async def history(desk: Desk) -> list[tuple[str, str]]:
    return [(row["text"], row["turn_id"]) for row in await desk.rows(_HISTORY)]


async def test_a_later_statement_replaces_an_earlier_one(desk: Desk) -> None:
    """One current fact; the earlier statement is history."""
    for n, text in enumerate(("lives in Oslo", "lives in Bergen")):
        await say(desk, ALICE, f"t{n}", n)
        await learn(desk, ALICE, f"t{n}", about(text, (ALICE, f"t{n}")))
    assert await current(desk) == [("lives in Bergen", ["t1"])]
    assert await history(desk) == [("lives in Oslo", "t0")]


async def test_a_slow_earlier_turn_does_not_overwrite_a_later_one(desk: Desk) -> None:
    """It is the time of the turn that counts, not that of its extraction."""
    for n in range(2):
        await say(desk, ALICE, f"t{n}", n)
    await learn(desk, ALICE, "t1", about("lives in Bergen", (ALICE, "t1")))
    await learn(desk, ALICE, "t0", about("lives in Oslo", (ALICE, "t0")))
    assert await current(desk) == [("lives in Bergen", ["t1"])]
    assert await history(desk) == [("lives in Oslo", "t0")]


SAID = ["Oslo", "Oslo.", "Bergen", "Oslo", "Bergen", "BERGEN"]


@pytest.mark.parametrize("seed", range(6))
async def test_the_order_of_extraction_does_not_matter(desk: Desk, seed: int) -> None:
    """Any order, alone or in batches: the same current fact, sources and history."""
    shuffled = list(range(len(SAID)))
    random.Random(seed).shuffle(shuffled)
    print(f"seed {seed}: {shuffled}")
    for n in range(len(SAID)):
        await say(desk, ALICE, f"t{n}", n)
    for pair in (shuffled[at : at + 2] for at in range(0, len(SAID), 2)):
        turns = [await desk.claim_extract(ALICE, f"t{n}") for n in pair]
        work = [
            turn_work(turn, [about(SAID[n], (ALICE, f"t{n}"))])
            for turn, n in zip(turns, pair, strict=True)
        ]
        await desk.applier.apply("extract", turns, work, Tally())
    assert await current(desk) == [("BERGEN", ["t4", "t5"])]
    assert await history(desk) == [
        ("Oslo", "t0"),
        ("Oslo.", "t1"),
        ("Bergen", "t2"),
        ("Oslo", "t3"),
    ]


async def test_turns_of_the_same_time_count_in_the_order_they_were_handed_over(desk: Desk) -> None:
    """An import gives a whole session one time."""
    for turn_id in ("t10", "t9"):
        await say(desk, ALICE, turn_id, 0)
    await learn(desk, ALICE, "t9", about("lives in Bergen", (ALICE, "t9")))
    await learn(desk, ALICE, "t10", about("lives in Oslo", (ALICE, "t10")))
    assert await current(desk) == [("lives in Bergen", ["t9"])]


async def test_equal_facts_of_several_turns_are_one_with_several_sources(desk: Desk) -> None:
    """With a key and without, and whatever the spelling of the same words."""
    for n in range(3):
        await say(desk, ALICE, f"t{n}", n)
    for n, (keyed, plain) in enumerate(
        [
            ("Lives in Oslo.", "likes tea"),
            ("lives in oslo", "Likes tea."),
            ("lives  in Oslo", "likes  tea"),
        ]
    ):
        source = (ALICE, f"t{n}")
        await learn(desk, ALICE, f"t{n}", about(keyed, source), about(plain, source, key=None))
    assert await current(desk) == [
        ("likes  tea", ["t0", "t1", "t2"]),
        ("lives  in Oslo", ["t0", "t1", "t2"]),
    ]
    assert await history(desk) == []


async def test_two_turns_of_one_batch_that_state_the_same(desk: Desk) -> None:
    """One fact with both as sources."""
    for turn_id in ("t1", "t2"):
        await say(desk, ALICE, turn_id)
    turns = [await desk.claim_extract(ALICE, turn_id) for turn_id in ("t1", "t2")]
    work = [
        turn_work(turn, [about("likes tea", (ALICE, turn.turn_id), key=None)]) for turn in turns
    ]
    await desk.applier.apply("extract", turns, work, Tally())
    assert await current(desk) == [("likes tea", ["t1", "t2"])]


async def test_a_turn_that_states_two_things_of_one_key_means_the_last(desk: Desk) -> None:
    """As when somebody corrects themselves."""
    await say(desk, ALICE, "t1")
    stated = [about(text, (ALICE, "t1")) for text in ("lives in Oslo", "lives in Bergen")]
    await learn(desk, ALICE, "t1", *stated)
    assert await current(desk) == [("lives in Bergen", ["t1"])]


async def test_the_same_fact_of_two_users_is_two(desk: Desk) -> None:
    """Nothing is shared between scopes, not even equal words and keys."""
    bob = MemoryScope.of("acme", "bob")
    for scope in (ALICE, bob):
        await say(desk, scope, "t1")
        source = (scope, "t1")
        await learn(
            desk,
            scope,
            "t1",
            about("lives in Oslo", source, at=scope),
            about("likes tea", source, at=scope, key=None),
        )
    rows = await desk.rows(_CURRENT)
    assert sorted((row["path"], row["text"]) for row in rows) == sorted(
        (scope.stored_path, text)
        for scope in (ALICE, bob)
        for text in ("lives in Oslo", "likes tea")
    )


async def test_what_was_written_directly_is_not_learned_again(desk: Desk) -> None:
    """One row; and it is not the turn's, so that erasing the turn leaves it."""
    writing = PostgresWriting(desk.database, desk.settings)
    written = about("likes tea", key=None).model_copy(
        update={"record_id": "mine", "origin": "remembered"}
    )
    await writing.write(WriteRequest(scope=ALICE, records=(written,)))
    await desk.flush(ALICE)
    await say(desk, ALICE, "t1")
    await learn(desk, ALICE, "t1", about("likes tea", (ALICE, "t1"), key=None))
    assert await current(desk) == [("likes tea", [])]
    await desk.forget(ALICE, named={"record_ids": [], "turn_ids": ["t1"], "session": None})
    assert await current(desk) == [("likes tea", [])]


async def written(desk: Desk, text: str) -> None:
    """A fact written directly, as `remember` does, and published."""
    writing = PostgresWriting(desk.database, desk.settings)
    fact = about(text, key=None).model_copy(update={"origin": "remembered"})
    await writing.write(WriteRequest(scope=ALICE, records=(fact,)))
    await desk.flush(ALICE)


async def test_what_was_learned_and_is_written_directly_is_one_row(desk: Desk) -> None:
    """It is then the writer's: the erase of the turn leaves it."""
    await say(desk, ALICE, "t1")
    await learn(desk, ALICE, "t1", about("likes tea", (ALICE, "t1"), key=None))
    await written(desk, "Likes tea.")
    assert await current(desk) == [("Likes tea.", [])]


async def test_a_statement_in_the_words_that_were_written_directly_is_one_row(desk: Desk) -> None:
    """It replaces what was current, and a later one stands beside what was written."""
    for n in range(3):
        await say(desk, ALICE, f"t{n}", n)
    await learn(desk, ALICE, "t0", about("lives in Oslo", (ALICE, "t0")))
    await written(desk, "lives in Bergen")
    before = await desk.value(
        "select removed from afterturn.scope_generations where scope_key = afterturn.scope_key($1)",
        ALICE.stored_path,
    )
    await learn(desk, ALICE, "t1", about("lives in Bergen", (ALICE, "t1")))
    assert await current(desk) == [("lives in Bergen", [])]
    after = await desk.value(
        "select removed from afterturn.scope_generations where scope_key = afterturn.scope_key($1)",
        ALICE.stored_path,
    )
    assert after > before
    await learn(desk, ALICE, "t2", about("lives in Rome", (ALICE, "t2")))
    assert await current(desk) == [("lives in Bergen", []), ("lives in Rome", ["t2"])]


async def test_a_record_of_ones_own_id_is_replaced_by_the_later_turn(desk: Desk) -> None:
    """An extractor that keeps one record up to date, in whatever order it is run."""
    for n in range(3):
        await say(desk, ALICE, f"t{n}", n)
    for n in (1, 2, 0):
        own = about(f"profile {n}", (ALICE, f"t{n}"), key=None)
        own = own.model_copy(update={"record_id": "profile"})
        await learn(desk, ALICE, f"t{n}", own)
    assert await current(desk) == [("profile 2", ["t2"])]


async def test_history_is_exported_with_the_times_it_held(desk: Desk) -> None:
    """By the turns' times; nobody reads it as current."""
    for n, text in enumerate(("lives in Oslo", "lives in Bergen", "lives in Rome")):
        await say(desk, ALICE, f"t{n}", n)
        await learn(desk, ALICE, f"t{n}", about(text, (ALICE, f"t{n}")))
    reading = Reading(desk.database)
    held = [item async for item in reading.export(ALICE) if isinstance(item, MemoryRecord)]
    facts = [item for item in held if item.origin == "extracted"]
    times = [(NOON + timedelta(minutes=n)).isoformat() for n in range(3)]
    assert [(f.text, f.metadata.get("valid_from"), f.metadata.get("valid_to")) for f in facts] == [
        ("lives in Rome", None, None),
        ("lives in Oslo", times[0], times[1]),
        ("lives in Bergen", times[1], times[2]),
    ]
    listed = await reading.list(ALICE, layers=[MemoryLayer.SEMANTIC])
    assert [record.text for record in listed] == ["lives in Rome"]


# -- erasing


async def stated_by_two(desk: Desk) -> None:
    """Oslo said in conversation 1, then Bergen in conversation 2, both kept at the user."""
    await say(desk, CHAT_1, "t1", 1)
    await learn(desk, CHAT_1, "t1", about("lives in Oslo", (CHAT_1, "t1")))
    await say(desk, CHAT_2, "t2", 2)
    await learn(desk, CHAT_2, "t2", about("lives in Bergen", (CHAT_2, "t2")))


async def test_erasing_the_source_of_the_current_fact_brings_nothing_back(desk: Desk) -> None:
    """It was replaced: after the erase nothing is current, and history stays history."""
    await stated_by_two(desk)
    await desk.forget(CHAT_2)
    assert await current(desk) == []
    assert await history(desk) == [("lives in Oslo", "t1")]
    await desk.forget(CHAT_1)
    assert await desk.value(_LEFT) == 0


async def test_a_slow_turn_from_before_the_replaced_one_does_not_come_back_either(
    desk: Desk,
) -> None:
    """What was said before a statement that is history is history at once."""
    await stated_by_two(desk)
    await say(desk, ALICE, "t0", 0)
    await desk.forget(CHAT_2)
    await learn(desk, ALICE, "t0", about("lives in Rome", (ALICE, "t0")))
    assert await current(desk) == []
    assert await history(desk) == [("lives in Rome", "t0"), ("lives in Oslo", "t1")]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("extracted_first", [True, False])
async def test_what_was_not_extracted_yet_is_learned_as_if_the_erased_had_never_been(
    desk: Desk, named: bool, extracted_first: bool
) -> None:
    """An erase leaves no trace of what the erased turn was about, so it marks only what is there:
    whoever wants the earlier value to stay history drains first."""
    scope = ALICE if named else CHAT_2
    await say(desk, ALICE, "t1", 1)
    await say(desk, scope, "t2", 2)
    await learn(desk, scope, "t2", about("lives in Bergen", (scope, "t2")))
    if extracted_first:
        await learn(desk, ALICE, "t1", about("lives in Oslo", (ALICE, "t1")))
    await desk.forget(scope, named={"turn_ids": ["t2"]} if named else None)
    assert await current(desk) == []
    traces = await desk.rows("select record_id from afterturn.fact_statements")
    assert len(traces) == int(extracted_first)
    if not extracted_first:
        await learn(desk, ALICE, "t1", about("lives in Oslo", (ALICE, "t1")))
    assert await current(desk) == ([] if extracted_first else [("lives in Oslo", ["t1"])])
    assert await history(desk) == ([("lives in Oslo", "t1")] if extracted_first else [])


async def test_the_same_words_from_before_are_history_like_those_that_were_replaced(
    desk: Desk,
) -> None:
    """Oslo, then Bergen, which is erased; an earlier turn that says Oslo brings nothing back."""
    await stated_by_two(desk)
    await desk.forget(CHAT_2)
    await say(desk, ALICE, "t0", 0)
    await learn(desk, ALICE, "t0", about("lives in Oslo", (ALICE, "t0")))
    assert await current(desk) == []
    await desk.forget(CHAT_1)
    assert await current(desk) == []
    assert await history(desk) == [("lives in Oslo", "t0")]


async def test_a_new_statement_after_the_erase_is_current(desk: Desk) -> None:
    """Also one of the same words as the history."""
    await stated_by_two(desk)
    await desk.forget(CHAT_2)
    await say(desk, ALICE, "t3", 3)
    await learn(desk, ALICE, "t3", about("lives in Oslo", (ALICE, "t3")))
    assert await current(desk) == [("lives in Oslo", ["t3"])]


async def test_erasing_the_source_of_history_leaves_the_current_fact(desk: Desk) -> None:
    """And no word of what was before."""
    await stated_by_two(desk)
    await desk.forget(CHAT_1)
    assert await current(desk) == [("lives in Bergen", ["t2"])]
    assert await desk.value("select count(*) from afterturn.fact_statements") == 1


async def test_history_alone_makes_its_scope_one_that_the_erase_touches(desk: Desk) -> None:
    """A turn under way that could have read there is stale, though no current fact was its."""
    await stated_by_two(desk)
    before = await desk.token(ALICE)
    await desk.forget(CHAT_1)
    assert await desk.token(ALICE) != before


async def test_one_of_two_sources_is_erased(desk: Desk) -> None:
    """The fact stands on the other, in its words; erased one after the other nothing is left."""
    await say(desk, CHAT_1, "t1", 1)
    await say(desk, CHAT_2, "t2", 2)
    await learn(desk, CHAT_1, "t1", about("lives in oslo", (CHAT_1, "t1"), importance=0.2))
    await learn(desk, CHAT_2, "t2", about("Lives in OSLO", (CHAT_2, "t2"), importance=0.9))
    await desk.forget(CHAT_2)
    (row,) = await desk.rows(
        "select text, importance, turn_id from afterturn.memories where origin <> 'turn'"
    )
    assert tuple(row.values()) == ("lives in oslo", 0.2, "t1")
    assert await current(desk) == [("lives in oslo", ["t1"])]
    await desk.forget(CHAT_1)
    assert await desk.value(_LEFT) == 0


async def test_a_named_turn_takes_its_statement_along(desk: Desk) -> None:
    """In its own scope as well as at an ancestor."""
    for n, text in enumerate(("lives in Oslo", "lives in Bergen")):
        await say(desk, CHAT_1, f"t{n}", n)
        source = (CHAT_1, f"t{n}")
        await learn(desk, CHAT_1, f"t{n}", about(text, source), about(text, source, at=CHAT_1))
    named: dict[str, Any] = {"record_ids": [], "turn_ids": ["t1"], "session": None}
    await desk.forget(CHAT_1, named=named)
    assert await current(desk) == []
    assert await history(desk) == [("lives in Oslo", "t0")] * 2
    await desk.forget(CHAT_1, named=named | {"turn_ids": ["t0"]})
    assert await desk.value(_LEFT) == 0


async def test_a_named_fact_goes_with_its_history(desk: Desk) -> None:
    """'Forget where I live' means where I lived before, too."""
    await stated_by_two(desk)
    await say(desk, ALICE, "t3")
    await learn(desk, ALICE, "t3", about("likes tea", (ALICE, "t3"), key=None))
    home = fact_id("", HOME)
    await desk.forget(ALICE, named={"record_ids": [home], "turn_ids": [], "session": None})
    assert await current(desk) == [("likes tea", ["t3"])]
    assert await desk.value("select count(*) from afterturn.fact_statements") == 0


async def test_kept_facts_stay_without_the_erased_turns_history(desk: Desk) -> None:
    """`derived="keep"` keeps what is current; a later erase of the scope still finds it."""
    await stated_by_two(desk)
    await desk.forget(CHAT_2, derived="keep")
    assert [text for text, _ in await current(desk)] == ["lives in Bergen"]
    assert await history(desk) == [("lives in Oslo", "t1")]
    assert CHAT_2.segments[-1] not in str(await desk.rows("select * from afterturn.memory_sources"))
    await desk.forget(CHAT_2)
    assert await current(desk) == []


async def test_a_fact_that_was_kept_and_is_stated_again_stands_on_both(desk: Desk) -> None:
    """Keeping was asked for: only the erase of what was kept takes it."""
    await stated_by_two(desk)
    await desk.forget(CHAT_2, derived="keep")
    chat_3 = ALICE.child("chat-3")
    await say(desk, chat_3, "t3", 3)
    await learn(desk, chat_3, "t3", about("lives in Bergen", (chat_3, "t3")))
    await desk.forget(chat_3)
    assert [text for text, _ in await current(desk)] == ["lives in Bergen"]
    await desk.forget(CHAT_2)
    assert await current(desk) == []


async def test_a_fact_that_was_kept_is_replaced_like_any_other(desk: Desk) -> None:
    """And rests on what replaced it alone."""
    await stated_by_two(desk)
    await desk.forget(CHAT_2, derived="keep")
    await say(desk, ALICE, "t3", 3)
    await learn(desk, ALICE, "t3", about("lives in Rome", (ALICE, "t3")))
    assert await current(desk) == [("lives in Rome", ["t3"])]
    await desk.forget(CHAT_2)
    assert await current(desk) == [("lives in Rome", ["t3"])]


async def test_vectors_of_other_words_do_not_stay(desk: Desk) -> None:
    """A changed fact waits for its vector; the same words keep theirs."""
    await say(desk, ALICE, "t1", 1)
    await learn(desk, ALICE, "t1", about("lives in Oslo", (ALICE, "t1")))
    for n, (text, is_bare) in enumerate([("Lives in Oslo", False), ("lives in Rome", True)], 2):
        await desk.value("update afterturn.memories set embedding = '\\x00' where origin <> 'turn'")
        await say(desk, ALICE, f"t{n}", n)
        await learn(desk, ALICE, f"t{n}", about(text, (ALICE, f"t{n}")))
        (row,) = await desk.rows(_CURRENT)
        assert row["bare"] == is_bare


# -- at random, beside a model


@dataclass
class Told:
    """One statement of one turn, as the model holds it."""

    scope: MemoryScope
    turn_id: str
    order: tuple[int, int]
    text: str
    superseded: bool = False


class Expected:
    """What the statements should come to, in plain Python."""

    def __init__(self) -> None:
        self.told: dict[str, list[Told]] = {}

    def learn(self, attribute: str, told: Told) -> None:
        statements = self.told.setdefault(attribute, [])
        statements.append(told)
        for each in statements:
            each.superseded = each.superseded or any(
                later.order > each.order
                and (later.superseded or later.text.lower() != each.text.lower())
                for later in list(statements)
            )

    def forget(self, scope: MemoryScope, turn_ids: frozenset[str] | None = None) -> None:
        for attribute, statements in self.told.items():
            self.told[attribute] = [
                each
                for each in statements
                if each.scope != scope or (turn_ids is not None and each.turn_id not in turn_ids)
            ]

    def current(self) -> list[tuple[str, list[str]]]:
        found = []
        for statements in self.told.values():
            last = max(statements, key=lambda each: each.order, default=None)
            if last is not None and not last.superseded:
                turns = sorted(each.turn_id for each in statements if not each.superseded)
                found.append((last.text, turns))
        return sorted(found)


@pytest.mark.parametrize("seed", range(3))
async def test_any_story_of_statements_and_erases_comes_to_what_it_should(
    desk: Desk, seed: int
) -> None:
    """Turns extracted in any order and erased in between, by scope and by name."""
    chance = random.Random(seed)
    print(f"seed {seed}")
    expected = Expected()
    waiting: list[tuple[MemoryScope, str, tuple[int, int]]] = []
    chats = [ALICE.child(f"chat-{n}") for n in range(3)]
    for step in range(60):
        what = chance.choices(["say", "learn", "forget", "name"], [10, 14, 1, 2])[0]
        chat = chance.choice(chats)
        if what == "say":
            minute = chance.randrange(30)
            await say(desk, chat, f"t{step}", minute)
            waiting.append((chat, f"t{step}", (minute, step)))
        elif what == "learn" and waiting:
            scope, turn_id, order = waiting.pop(chance.randrange(len(waiting)))
            attribute = chance.choice(["home", "work"])
            text = f"{attribute} {chance.choice(['Oslo', 'OSLO', 'Rome', 'Bergen'])}"
            fact = about(text, (scope, turn_id), key=("alice", attribute))
            await learn(desk, scope, turn_id, fact)
            expected.learn(attribute, Told(scope, turn_id, order, text))
        elif what == "forget":
            await desk.forget(chat)
            expected.forget(chat)
            waiting = [each for each in waiting if each[0] != chat]
        elif what == "name":
            turns = frozenset(f"t{chance.randrange(step + 1)}" for _ in range(4))
            named = {"record_ids": [], "turn_ids": sorted(turns), "session": None}
            await desk.forget(chat, named=named)
            expected.forget(chat, turns)
            waiting = [each for each in waiting if each[0] != chat or each[1] not in turns]
        assert sorted(await current(desk)) == expected.current(), f"step {step}: {what}"
        held = await desk.rows("select text, turn_id, superseded from afterturn.fact_statements")
        assert sorted((row["text"], row["turn_id"], row["superseded"]) for row in held) == sorted(
            (each.text, each.turn_id, each.superseded)
            for statements in expected.told.values()
            for each in statements
        )
