"""An entry that grew step by step is the entry that is read at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from afterturn.retrieval.entries import Entry, Label
from afterturn.retrieval.question import Cue
from afterturn.retrieval.ranking import rank
from afterturn.retrieval.rows import Row
from afterturn.retrieval.view import View

from .building import PATH, message, row

DIM = 4
WORDS = ["tea", "coffee", "paris", "train", "caroline", "blue", "cat", "茶道"]
NAMES = ["", "Caroline", "Melanie"]


def vector_of(seed: int) -> NDArray[np.float32]:
    """A vector of its own, or none (zeros) for every fifth."""
    if seed % 5 == 0:
        return np.zeros(DIM, dtype=np.float32)
    return np.random.default_rng(seed).standard_normal(DIM).astype(np.float32)


@st.composite
def some_row(draw: st.DrawFn) -> tuple[Row, NDArray[np.float32]]:
    """A fact or one side of a turn, of few ids, so that rows are replaced."""
    text = " ".join(draw(st.lists(st.sampled_from(WORDS), max_size=5)))
    number = draw(st.integers(0, 11))
    minute = draw(st.integers(0, 5))
    vector = vector_of(draw(st.integers(0, 30)))
    if draw(st.booleans()):
        importance = draw(st.sampled_from([0.1, 0.9]))
        return row(f"f{number}", text, minute=minute, importance=importance), vector
    made = message(
        f"t{number}",
        draw(st.sampled_from(["user", "assistant"])),
        text,
        layer=draw(st.sampled_from(["working", "episodic"])),
        minute=minute,
        session=draw(st.sampled_from([None, "s1", "s2"])),
        speaker_name=draw(st.sampled_from(NAMES)),
    )
    return made, vector


batches = st.lists(st.lists(some_row(), max_size=6), max_size=8)
cues = st.builds(
    lambda words, seed: Cue(" ".join(words), vector_of(seed) if seed else None),
    st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=3),
    st.integers(0, 30),
)


def grown(steps: list[list[tuple[Row, NDArray[np.float32]]]]) -> Entry:
    """The entry after all steps, one update each."""
    entry = Entry(PATH, Label((0,), 0, 0))
    for number, step in enumerate(steps, start=1):
        latest = {made.record_id: (made, vector) for made, vector in step}
        rows = [made for made, _ in latest.values()]
        entry = entry.updated(Label((0,), number, 0), rows, matrix(latest))
    return entry


def at_once(steps: list[list[tuple[Row, NDArray[np.float32]]]]) -> Entry:
    """The entry of what the steps leave behind."""
    latest = {made.record_id: (made, vector) for step in steps for made, vector in step}
    rows = [made for made, _ in latest.values()]
    return Entry(PATH, Label((0,), 0, 0)).updated(Label((0,), 1, 0), rows, matrix(latest))


def matrix(latest: dict[str, tuple[Row, NDArray[np.float32]]]) -> NDArray[np.float32]:
    """The vectors of some rows."""
    return np.array([vector for _, vector in latest.values()], dtype=np.float32).reshape(-1, DIM)


def answers(entry: Entry, cue: Cue, layers: frozenset[str] | None) -> dict[str, Any]:
    """What an entry answers: the score and the signals of each record, and its twins."""
    view = View([entry], layers)
    ranking = rank(view, cue)
    found = {}
    signals = ranking.explained(range(len(view)))
    for position in range(len(view)):
        first, *twins = view.rows(position)
        found[first.record_id] = (
            first,
            sorted(twin.record_id for twin in twins),
            float(ranking.scores[position]),
            signals[position],
        )
    return found


@settings(deadline=None)
@given(batches, cues, st.sampled_from([None, frozenset({"working"}), frozenset({"semantic"})]))
def test_growing_equals_reading_at_once(
    steps: list[list[tuple[Row, NDArray[np.float32]]]], cue: Cue, layers: frozenset[str] | None
) -> None:
    """Rows, twins, scores and signals do not depend on the steps in which an entry grew."""
    warm, cold = answers(grown(steps), cue, layers), answers(at_once(steps), cue, layers)
    assert warm.keys() == cold.keys()
    for record_id, (made, twins, score, parts) in cold.items():
        found = warm[record_id]
        assert (found[0], found[1]) == (made, twins)
        # Products of other shapes differ in the last bits, which can turn the last decimal by one.
        assert abs(found[2] - score) < 1.5e-5
        for name in found[3].keys() | parts.keys():
            assert abs(found[3].get(name, 0.0) - parts.get(name, 0.0)) < 1.5e-5, name


@settings(deadline=None)
@given(batches, cues)
def test_an_older_version_answers_as_before(
    steps: list[list[tuple[Row, NDArray[np.float32]]]], cue: Cue
) -> None:
    """A reader that still ranks the previous version is not disturbed by an update."""
    entry = grown(steps)
    before = answers(entry, cue, None)
    extra = [row(f"new{i}", "tea tea") for i in range(4)]
    replaced = [*extra, *(made for made in list(entry.rows())[:3])]
    entry.updated(Label((0,), 99, 0), replaced, np.ones((len(replaced), DIM), dtype=np.float32))
    assert answers(Entry(PATH, entry.label, entry.parts), cue, None) == before


def test_three_changes_in_many_rows_leave_the_large_segment_alone() -> None:
    """A small change becomes a small segment; what was built is neither copied nor read again."""
    count = 6_000
    rows = [row(f"r{i}", f"word{i} tea") for i in range(count)]
    entry = Entry(PATH, Label((0,), 0, 0)).updated(
        Label((0,), 1, 0), rows, np.zeros((count, 0), dtype=np.float32)
    )
    changed = [row("r7", "coffee"), row("r8", "coffee"), row("new", "coffee")]
    after = entry.updated(Label((0,), 2, 0), changed, np.zeros((3, 0), dtype=np.float32))
    assert after.parts[0].segment is entry.parts[0].segment
    assert [part.alive_count for part in after.parts] == [count - 2, 3]
    assert after.count == count + 1
    assert not after.holds("missing")
    assert after.holds("new")


def test_segments_stay_few_and_dead_slots_too() -> None:
    """However many small changes come, segments are merged and dead slots are given up."""
    entry = Entry(PATH, Label((0,), 0, 0))
    for number in range(600):
        rows = [row(f"r{(number * 7 + i) % 1_500}", f"word{number}") for i in range(5)]
        entry = entry.updated(Label((0,), number + 1, 0), rows, np.zeros((5, 0), dtype=np.float32))
    assert len(entry.parts) <= 6
    slots = sum(len(part.segment) for part in entry.parts)
    assert entry.count >= 0.7 * slots
    assert entry.count == len({r.record_id for r in entry.rows()})


def test_a_label_extends_only_its_own_history() -> None:
    """An erase above, a removal, or a smaller number means reading anew."""
    old = Label((5, 0), 10, 8)
    assert Label((5, 0), 12, 8).extends(old)
    assert Label((5, 0), 12, 10).extends(old)
    assert not Label((5, 0), 12, 11).extends(old)
    assert not Label((6, 0), 12, 8).extends(old)
    assert not Label((5, 0), 9, 8).extends(old)
