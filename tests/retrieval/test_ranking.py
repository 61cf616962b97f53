"""What each signal does to a ranking, on small conversations."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterturn.retrieval.entries import Entry
from afterturn.retrieval.question import Cue, named_speaker
from afterturn.retrieval.ranking import rank
from afterturn.retrieval.rows import Row
from afterturn.retrieval.traits import traits
from afterturn.retrieval.view import View
from afterturn.retrieval.weights import Weights

from .building import START, best_ids, entry, message, ranked, row


def explained(entries: list[Entry], cue: str) -> dict[str, dict[str, float]]:
    """What each signal adds, by record id."""
    view, ranking = ranked(entries, cue)
    added = ranking.explained(range(len(view)))
    return {view.rows(p)[0].record_id: parts for p, parts in enumerate(added)}


FILLER = [row(f"filler{i}", f"nothing{i} of note{i}") for i in range(8)]


def test_the_record_that_shares_the_rare_words_comes_first() -> None:
    """Lexical evidence alone finds the answer, without any vector."""
    rows = [row("a", "she likes oolong tea"), row("b", "she likes trains"), *FILLER]
    assert best_ids([entry(rows)], "what about oolong?")[0] == "a"


def test_vectors_find_what_shares_no_word() -> None:
    """The record whose vector is the question's comes first when no word matches."""
    rows = [row("a", "a beverage"), row("b", "a locomotive")]
    vectors = np.array([[1, 0], [0, 1]], dtype=np.float32)
    cue = Cue("tea", np.array([1, 0], dtype=np.float32))
    assert best_ids([entry(rows, vectors)], cue) == ["a", "b"]


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_an_unusable_stored_vector_counts_as_missing(bad: float) -> None:
    """Zero and not finite vectors neither win nor spoil the scores of the others."""
    rows = [row("a", "x"), row("b", "y"), row("c", "z")]
    vectors = np.array([[1, 0], [bad, bad], [0, 1]], dtype=np.float32)
    view, ranking = ranked([entry(rows, vectors)], Cue("tea", np.array([1, 0], dtype=np.float32)))
    assert int(view.has_vector.sum()) == 2
    assert np.isfinite(ranking.scores).all()
    order = best_ids([entry(rows, vectors)], Cue("tea", np.array([1, 0], dtype=np.float32)))
    assert order == ["a", "b", "c"]


def test_the_parts_of_a_score_add_up_to_it() -> None:
    """What `signals` says about a memory explains its score completely."""
    rows = [
        message("t1", "user", "I bought oolong tea", minute=1),
        message("t1", "assistant", "Enjoy it", minute=1),
        *FILLER,
    ]
    view, ranking = ranked([entry(rows)], "which tea")
    for added, score in zip(ranking.explained(range(len(view))), ranking.scores, strict=True):
        assert sum(added.values()) == pytest.approx(score, abs=1e-4)


def test_scores_are_deviations_from_the_mean() -> None:
    """Over everything ranked the scores have mean 0 and deviation 1."""
    _, ranking = ranked([entry([row("a", "tea"), row("b", "tea tea"), *FILLER])], "tea")
    assert ranking.scores.mean() == pytest.approx(0, abs=1e-5)
    assert ranking.scores.std() == pytest.approx(1, abs=1e-5)


def test_the_answer_after_the_question_is_lifted() -> None:
    """A message without a shared word gains from its neighbours, within its session only."""
    rows = [
        message("t1", "user", "which perfume do you wear?", minute=1, session="s1"),
        message("t1", "assistant", "bergamot mostly", minute=1, session="s1"),
        message("t2", "user", "hello there friend", minute=2, session="s2"),
        *FILLER,
    ]
    by_id = explained([entry(rows)], "perfume")
    assert best_ids([entry(rows)], "perfume")[:2] == ["t1:user:episodic", "t1:assistant:episodic"]
    lifted, other = by_id["t1:assistant:episodic"], by_id["t2:user:episodic"]
    assert lifted["previous"] > other["previous"]
    assert lifted["thread_coverage"] > other["thread_coverage"]


def test_conversations_lie_in_the_order_of_their_time() -> None:
    """What happened orders a session, before when it was recorded, in whatever order it is read."""
    late, early = datetime(2024, 3, 2, tzinfo=UTC), datetime(2024, 3, 1, tzinfo=UTC)
    times = {"third": (late, 0), "first": (early, 5), "second": (early, 9)}
    rows = [
        row(text, text, layer="episodic", session="s1", minute=minute, occurred_at=when)
        for text, (when, minute) in times.items()
    ]
    assert in_order(rows) == ["first", "second", "third"]


def test_the_user_comes_before_the_assistant_and_turns_stay_together() -> None:
    """Also among turns that happened in the same instant."""
    sides = [("b", "assistant"), ("a", "assistant"), ("b", "user"), ("a", "user")]
    rows = [message(turn, side, f"{turn} {side}") for turn, side in sides]
    order = in_order(rows)
    assert sorted(order[::2]) == ["a user", "b user"]
    for user, assistant in zip(order[::2], order[1::2], strict=True):
        assert assistant == user.replace("user", "assistant")


def in_order(rows: list[Row]) -> list[str]:
    """The texts as they lie in a view."""
    view = View([entry(rows)], None)
    return [view.rows(p)[0].text for p in range(len(view))]


def test_a_question_that_names_one_speaker_prefers_what_they_said() -> None:
    """The same words of the other speaker, and facts about nobody, rank lower."""
    rows = [
        message("t1", "user", "I went hiking", minute=1, speaker_name="Caroline"),
        message("t2", "assistant", "I went hiking", minute=2, speaker_name="Melanie"),
        row("fact", "Caroline went hiking"),
        row("other", "went hiking"),
        *FILLER,
    ]
    order = best_ids([entry(rows)], "When did Caroline go hiking?")
    assert set(order[:2]) == {"t1:user:episodic", "fact"}


@pytest.mark.parametrize(
    ("cue", "named"),
    [
        ("What did Caroline say?", "caroline"),
        ("what does caroline's cat eat", "caroline"),
        ("What will she eat?", None),
        ("Where did Will go?", "will"),
        ("Caroline and Melanie", None),
        ("nobody", None),
        ("", None),
    ],
)
def test_named_speaker(cue: str, named: str | None) -> None:
    """Exactly one speaker is named; a capital letter tells Will from will."""
    assert named_speaker(cue, ["Caroline", "Melanie Smith", "Will"]) == named


def test_what_the_user_said_is_preferred_unless_the_assistant_is_asked() -> None:
    """In a chat with an assistant the user's side holds the facts about the user."""
    rows = [
        message("t1", "assistant", "blue paint", minute=1),
        message("t2", "user", "blue paint", minute=2, session="s2"),
        *FILLER,
    ]
    assert best_ids([entry(rows)], "blue paint")[0] == "t2:user:episodic"
    asked = explained([entry(rows)], "which blue paint did you suggest")
    told = explained([entry(rows)], "which blue paint was it")
    user, assistant = "t2:user:episodic", "t1:assistant:episodic"
    assert asked[user].get("prior") == asked[assistant].get("prior")
    assert told[user]["prior"] > told[assistant]["prior"]


@pytest.mark.parametrize(
    ("text", "standing"),
    [
        ("Always name the versions when I ask about libraries.", True),
        ("Got it. Please never use semicolons", True),
        ("I'm busy, so I prefer short answers", True),
        ("She prefers tea", True),
        ("I\u2019d rather walk", True),
        ("I have always loved the sea", False),
        ("We never went there", False),
        ("a preferable way", False),
    ],
)
def test_standing_wishes_are_told_from_ordinary_talk(text: str, standing: bool) -> None:
    """An order at the start of a sentence or a taste holds from now on; a habit is none."""
    assert traits(text).standing is standing


@pytest.mark.parametrize(
    ("cue", "asks"),
    [
        ("How should I lay out the page?", True),
        ("Could you recommend a library?", True),
        ("When did Alice go to the lake?", False),
        ("Who painted the kitchen?", False),
    ],
)
def test_who_asks_for_help_gets_what_was_said_to_hold_from_now_on(cue: str, asks: bool) -> None:
    """A standing wish counts where something is asked for, and not as the assistant's words."""
    wish = "Always write tests first when I ask about code"
    rows = [
        message("t1", "user", wish, minute=1, session="s1"),
        message("t2", "assistant", wish, minute=2, session="s2"),
        message("t3", "user", "Nobody writes tests first", minute=3, session="s3"),
        *FILLER,
    ]
    by_id = explained([entry(rows)], cue)
    told = [
        by_id[f"t{n}:{side}:episodic"] for n, side in ((1, "user"), (2, "assistant"), (3, "user"))
    ]
    if asks:
        assert told[0]["standing"] > 0 > told[1]["standing"] == told[2]["standing"]
    else:
        assert not any("standing" in parts for parts in told)


def test_a_message_counts_once_in_the_ranking() -> None:
    """The `working` twin is not ranked for itself, so the other scores do not change by it."""
    both = [
        message("t1", "user", "oolong tea", layer=layer, minute=1)
        for layer in ("working", "episodic")
    ]
    one, two = [both[1], *FILLER], [*both, *FILLER]
    assert best_ids([entry(two)], "oolong") == best_ids([entry(one)], "oolong")
    view, ranking = ranked([entry(two)], "oolong")
    first = int(ranking.best(1)[0])
    assert [r.layer for r in view.rows(first)] == ["episodic", "working"]
    only_working = View([entry(two)], frozenset({"working"}))
    assert [only_working.rows(0)[0].layer, len(only_working)] == ["working", 1]


def test_ancestors_are_ranked_with_one_idf() -> None:
    """A word is as common as it is in everything visible, so scopes can be compared."""
    chat = "v1/acme/alice/chat/"
    above = entry([row("a", "tea house"), row("b", "house")])
    own = entry([row("c", "tea house", path=chat), row("d", "x", path=chat)])
    view, ranking = ranked([above, own], "tea")
    scores = {view.rows(p)[0].record_id: ranking.scores[p] for p in range(len(view))}
    assert scores["a"] == scores["c"] > scores["b"] == scores["d"]


def test_a_blank_question_gives_the_newest_first() -> None:
    """Without any evidence all are equal, and the latest come first."""
    rows = [row(f"r{i}", "text", minute=i) for i in (2, 0, 3, 1)]
    assert best_ids([entry(rows)], " ") == ["r3", "r2", "r1", "r0"]
    assert best_ids([entry(rows)], "\x00\n") == ["r3", "r2", "r1", "r0"]


def test_no_records_give_no_ranking() -> None:
    """Empty entries and excluded layers are ranked without complaint."""
    assert best_ids([entry([])], "tea") == []
    assert best_ids([], "tea") == []
    assert best_ids([entry([row("a", "tea")])], "tea", frozenset({"working"})) == []
    assert best_ids([entry([row("a", "tea")])], "tea", frozenset()) == []


def test_one_record_has_an_average_score() -> None:
    """A single record is found, with nothing to compare it to."""
    _, ranking = ranked([entry([row("a", "tea")])], "tea")
    assert ranking.scores.tolist() == [0.0]


def test_recency_is_an_option() -> None:
    """Without the option age plays no part; with it the newer of two equal records leads."""
    rows = [row("new", "tea", minute=60 * 24 * 40), row("old", "tea"), *FILLER]
    view = View([entry(rows)], None)
    plain, recent = rank(view, Cue("tea")), rank(view, Cue("tea"), Weights(recency=1.0))
    at = {view.rows(p)[0].record_id: p for p in range(len(view))}
    assert plain.scores[at["new"]] == plain.scores[at["old"]]
    assert recent.scores[at["new"]] > recent.scores[at["old"]]
    later = Cue("tea", now=START.timestamp() + 86_400 * 400)
    assert rank(view, later, Weights(recency=1.0)).scores[at["new"]] > 0


def test_a_session_is_as_good_as_its_best_message() -> None:
    """What a session was about lifts its other messages, and nothing outside it."""
    rows = [
        message("t1", "user", "oolong tea is what I like", minute=1, session="s1"),
        *(
            message(f"f{i}", "user", f"other words {i}", minute=2 + i, session="s1")
            for i in range(4)
        ),
        *(
            message(f"g{i}", "user", f"other words {i}", minute=9 + i, session="s2")
            for i in range(4)
        ),
    ]
    by_id = explained([entry(rows)], "oolong tea")
    assert by_id["f3:user:episodic"]["session"] > by_id["g3:user:episodic"]["session"]
    ranks = best_ids([entry(rows)], "oolong tea")
    assert ranks.index("f3:user:episodic") < ranks.index("g3:user:episodic")


@given(st.integers(1, 40), st.integers(1, 50), st.data())
def test_the_best_are_a_prefix_of_the_whole_order(
    total: int, count: int, data: st.DataObject
) -> None:
    """Cutting early gives the same first places, ties included."""
    words = data.draw(
        st.lists(st.sampled_from(["tea", "tea tea", "no"]), min_size=total, max_size=total)
    )
    _, ranking = ranked([entry([row(f"r{i}", w) for i, w in enumerate(words)])], "tea")
    assert ranking.best(count).tolist() == ranking.best(total).tolist()[:count]
