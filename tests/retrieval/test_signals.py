"""Signals against what one would write down for them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from afterturn.retrieval import signals
from afterturn.retrieval.lexical import PIECE_TERMS
from afterturn.retrieval.view import View

from .building import entry, message

numbers = st.lists(st.integers(-1_000, 1_000), max_size=40)


@given(numbers, st.data())
def test_standard_values_are_deviations_from_the_mean(some: list[int], data: st.DataObject) -> None:
    """They are those of the known values; an unknown one is average."""
    known = data.draw(st.lists(st.booleans(), min_size=len(some), max_size=len(some)))
    values, mask = np.array(some, dtype=np.float64), np.array(known, dtype=np.bool_)
    deviation = float(values[mask].std()) if any(known) else 0.0
    expected = np.zeros(len(some))
    if deviation:
        expected[mask] = (values[mask] - values[mask].mean()) / deviation
    found = signals.standard(values.copy(), mask).at(np.arange(len(some)))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_values_that_differ_by_their_last_bits_are_equal() -> None:
    """What the order of a sum makes is no deviation."""
    values = np.full(1_000, 12.3)
    values[::7] = np.nextafter(12.3, 13)
    assert signals.standard(values).per_spread == 0.0


def test_many_values_are_summed_as_few_are() -> None:
    """A scope too large for one sum has the same spread."""
    values = np.random.default_rng(1).standard_normal(23_456)
    found = signals.standard(values)
    np.testing.assert_allclose([found.mean, 1 / found.per_spread], [values.mean(), values.std()])


WORDS = [f"w{number}" for number in range(60)]
texts = st.lists(
    st.lists(st.sampled_from([*WORDS, *["filler"] * 60]), max_size=3 * PIECE_TERMS), max_size=8
)


@given(texts, st.lists(st.sampled_from(WORDS), unique=True, min_size=1), st.integers(0, 7))
def test_thread_coverage_is_of_a_message_and_the_one_before(
    said: list[list[str]], asked: list[str], second: int
) -> None:
    """However many words are asked for, and in however many pieces a text lies."""
    rows = [
        message(f"t{at}", "user", " ".join(text), minute=at, session=f"s{int(at >= second)}")
        for at, text in enumerate(said)
    ]
    view = View([entry(rows)], None)
    hits = view.hits(asked)
    shares = dict(zip(hits.terms, hits.shares.tolist(), strict=True))
    found = signals.thread_coverage(view, hits, np.arange(len(view), dtype=np.intp))
    for position, covered in enumerate(found.tolist()):
        (own,) = view.rows(position)
        before = [row for row in rows if row.session == own.session and row.turn_id < own.turn_id]
        words = {*own.text.split(), *(before[-1].text.split() if before else ())}
        expected = sum(share for term, share in shares.items() if term in words)
        assert abs(covered - expected) < 1e-9
