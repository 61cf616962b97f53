"""What a question asks for, and when."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterturn.retrieval.question import Cue, Question
from afterturn.retrieval.time_window import time_window
from afterturn.retrieval.traits import traits

NOW = datetime(2024, 5, 15, 18, tzinfo=UTC)  # a Wednesday
DAY = 86_400.0


def nearness(cue: str, *days: str, now: datetime | None = NOW) -> list[float]:
    """How near noon of these days is to what the cue names."""
    window = time_window(cue, now.timestamp() if now else None)
    assert window is not None, cue
    times = [datetime.fromisoformat(f"{day}T12:00+00:00").timestamp() for day in days]
    return [round(float(near), 2) for near in window.nearness(np.array(times))]


@pytest.mark.parametrize(
    ("cue", "inside", "outside"),
    [
        ("What happened on 5 January 2024?", "2024-01-05", "2024-02-05"),
        ("What happened on January 5th, 2024?", "2024-01-05", "2023-01-05"),
        ("What about the 5th of Jan?", "2023-01-05", "2023-03-05"),
        ("Where was I on 2024-01-05?", "2024-01-05", "2024-03-05"),
        ("Who came in May 2023?", "2023-05-20", "2023-08-20"),
        ("Who came in December?", "2021-12-24", "2021-08-24"),
        ("Where did we go in summer 2023?", "2023-07-15", "2024-02-15"),
        ("What did he do in 2022?", "2022-10-15", "2024-05-15"),
        ("What did I eat yesterday?", "2024-05-14", "2024-05-01"),
        ("What did I eat last week?", "2024-05-09", "2024-03-09"),
        ("Who called last Monday?", "2024-05-13", "2024-04-13"),
        ("Who called two weeks ago?", "2024-05-01", "2024-03-01"),
        ("Who called 3 months ago?", "2024-02-15", "2023-09-15"),
    ],
)
def test_a_window_is_where_it_is_named(cue: str, inside: str, outside: str) -> None:
    """1 inside, next to nothing far away."""
    near, far = nearness(cue, inside, outside)
    assert near == 1.0
    assert far < 0.1


def test_what_is_told_soon_after_counts_a_little() -> None:
    """People tell of a day some days later."""
    day, after, long_after = nearness("on 5 January 2024", "2024-01-05", "2024-01-07", "2024-01-20")
    assert day == 1.0 > after > 0.3 > long_after


@pytest.mark.parametrize(
    "cue", ["", "I may march on", "31 June", "May I?", "since you asked", "the last one", "99"]
)
def test_what_names_no_time_is_no_window(cue: str) -> None:
    """Verbs, impossible days and bare numbers."""
    assert time_window(cue, NOW.timestamp()) is None


def test_words_that_count_from_now_need_a_now() -> None:
    """Without one they name nothing."""
    assert time_window("yesterday", None) is None


@given(st.text(max_size=80), st.floats(-1e11, 1e11))
def test_no_cue_breaks_it(cue: str, now: float) -> None:
    """Any text gives a window or none; a window is finite."""
    window = time_window(cue, now)
    if window is not None:
        assert window.start < window.end


@given(st.integers(0, 10**9), st.sampled_from(["day", "week", "month", "year"]))
def test_long_ago_is_no_error(count: int, unit: str) -> None:
    """Before the first year there is nothing to name."""
    time_window(f"{count} {unit}s ago", NOW.timestamp())


@pytest.mark.parametrize(
    ("cue", "kind"),
    [
        ("When did she leave?", "asks_time"),
        ("How long was the trip?", "asks_time"),
        ("How many cats are there?", "asks_number"),
        ("Which city was it?", "asks_name"),
        ("What did you recommend?", "to_assistant"),
        ("How should I lay out the page?", "asks_help"),
    ],
)
def test_the_kind_of_a_question(cue: str, kind: str) -> None:
    """By its first words, or by whom it addresses."""
    assert getattr(Question.of(Cue(cue)), kind)
    assert not getattr(Question.of(Cue("oolong tea")), kind)


def test_words_of_grammar_are_left_out_unless_there_are_no_others() -> None:
    """They match everything or nothing."""
    assert Question.of(Cue("What did she eat with the train?")).terms == ("eat", "train")
    assert Question.of(Cue("who am I?")).terms == ("who", "be", "i")


def test_traits_of_texts() -> None:
    """What each is looked for."""
    told = traits("I moved to Lisbon last year with 2 cats.")
    assert told == (False, True, True, True, False, 1)
    assert traits("Really?").asks
    assert traits("").names == 0
