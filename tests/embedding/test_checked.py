"""Every answer of a provider is checked before it is stored or compared."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from afterturn.embedding.checked import CheckedEmbedder
from afterturn.errors import ConfigurationError, MemoryUnavailable

SECRET = "the safe's code is 4711"


class Provider:
    """Answers with what a function makes of the texts, and notes what it was asked."""

    model_id = "toy:1"
    dim = 3

    def __init__(self, answer: Callable[[list[str]], Any] | None = None) -> None:
        self.asked: list[list[str]] = []
        self._answer = answer or (lambda texts: np.eye(3, dtype=np.float32)[: len(texts)])

    def embed(self, texts: Sequence[str]) -> Any:
        self.asked.append(list(texts))
        return self._answer(list(texts))


def constant(answer: Any) -> CheckedEmbedder:
    return CheckedEmbedder(Provider(lambda texts: answer))


def test_a_good_answer_passes() -> None:
    """Rows come back as they are, with the provider's id and length."""
    embedder = CheckedEmbedder(Provider())
    assert (embedder.model_id, embedder.dim) == ("toy:1", 3)
    np.testing.assert_array_equal(embedder.embed(["a", "b"]), np.eye(3, dtype=np.float32)[:2])


def test_blank_texts_are_not_sent() -> None:
    """Their rows are zero, the others keep their places, and nothing is asked for nothing."""
    provider = Provider()
    embedder = CheckedEmbedder(provider)
    rows = embedder.embed([" ", "a", "", "b", "\n"])
    assert provider.asked == [["a", "b"]]
    np.testing.assert_array_equal(rows.argmax(axis=1)[[1, 3]], [0, 1])
    assert not rows[[0, 2, 4]].any()
    assert embedder.embed([]).shape == (0, 3)
    assert embedder.embed([" "]).shape == (1, 3)
    assert provider.asked == [["a", "b"]]


def test_texts_are_sent_as_they_are_stored() -> None:
    """NUL and lone surrogates, which break tokenizers, go as U+FFFD."""
    provider = Provider()
    CheckedEmbedder(provider).embed(["half \ud83d", "nul \x00"])
    assert provider.asked == [["half \ufffd", "nul \ufffd"]]


@pytest.mark.parametrize("shape", [(1, 2), (1, 4), (3,), (1, 3, 1), (0, 2), ()], ids=str)
def test_a_wrong_length_is_a_mistake_of_configuration(shape: tuple[int, ...]) -> None:
    """The shapes seen and expected are named."""
    with pytest.raises(ConfigurationError) as caught:
        constant(np.ones(shape, dtype=np.float32)).embed(["a"])
    assert f"shape {shape}, expected (1, 3)" in caught.value.detail
    assert "toy:1" in caught.value.detail


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [[1.0, 0.0, 0.0]],
        "vectors",
        np.ones((1, 3), dtype=np.int64),
        np.ones((1, 3), dtype=object),
        np.ones((1, 3), dtype=np.complex128),
        np.ones((1, 3), dtype=bool),
    ],
    ids=lambda answer: str(getattr(answer, "dtype", type(answer).__name__)),
)
def test_a_wrong_type_is_a_mistake_of_configuration(answer: object) -> None:
    """Only arrays of floats are vectors."""
    with pytest.raises(ConfigurationError, match="expected a float32 array"):
        constant(answer).embed(["a"])


def test_an_awaitable_is_a_mistake_of_configuration() -> None:
    """An async embed behind a plain function is found at the first text."""

    async def later(texts: list[str]) -> None:
        raise AssertionError

    waiting = later([])
    with pytest.raises(ConfigurationError, match="gave coroutine"):
        constant(waiting).embed(["a"])
    waiting.close()


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_another_number_of_rows_is_a_failure(rows: int) -> None:
    """A cut answer cannot be matched to its texts; asking again may help."""
    with pytest.raises(MemoryUnavailable, match=f"{rows} vectors for 2"):
        constant(np.ones((rows, 3), dtype=np.float32)).embed(["a", "b"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_numbers_that_are_not_finite_are_a_failure(bad: float) -> None:
    """One such number would poison every comparison; a float64 that overflows is one."""
    with pytest.raises(MemoryUnavailable, match="not finite"):
        constant(np.array([[1.0, bad, 0.0]], dtype=np.float64)).embed(["a"])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.dtype(">f4")])
def test_rows_are_scaled_to_unit_length(dtype: Any) -> None:
    """A model that does not normalise is compared fairly; a zero row stays zero."""
    rows = constant(np.array([[3, 0, 4], [0, 0, 0], [0, 2, 0]], dtype=dtype)).embed(["a", "b", "c"])
    assert rows.dtype == np.float32
    assert rows.dtype.isnative
    expected = np.array([[0.6, 0.0, 0.8], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    np.testing.assert_allclose(rows, expected, rtol=1e-6)


@given(
    hnp.arrays(np.float32, (4, 3), elements=st.floats(-(2.0**120), 2.0**120, width=32)),
)
def test_any_finite_answer_gives_unit_or_zero_rows(answer: Any) -> None:
    """Also very large and very small ones."""
    lengths = np.linalg.norm(constant(answer).embed(["a", "b", "c", "d"]).astype(float), axis=1)
    zero = ~answer.any(axis=1)
    np.testing.assert_allclose(lengths[~zero], 1.0, atol=2e-3)
    assert not lengths[zero].any()


def test_the_providers_array_is_left_alone() -> None:
    """A provider may keep what it returned: it is neither scaled nor handed out."""
    kept = np.full((1, 3), 2, dtype=np.float32)
    rows = constant(kept).embed(["a"])
    rows[:] = 7
    assert (kept == 2).all()


@pytest.mark.parametrize("error", [ValueError(SECRET), ConnectionError(SECRET), KeyError(SECRET)])
def test_a_provider_that_fails_is_out_of_reach(error: Exception) -> None:
    """Only the type is told: the message, and the traceback, may quote the texts."""

    def fail(texts: list[str]) -> None:
        raise error

    with pytest.raises(MemoryUnavailable) as caught:
        CheckedEmbedder(Provider(fail)).embed([SECRET])
    assert f"toy:1 raised {type(error).__name__}" in caught.value.detail
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


@pytest.mark.parametrize("error", [MemoryUnavailable("away"), ConfigurationError("no model")])
def test_an_error_of_ours_passes(error: Exception) -> None:
    """A provider that already says what is wrong is not reworded."""

    def fail(texts: list[str]) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        CheckedEmbedder(Provider(fail)).embed(["a"])
    assert caught.value is error


def test_checking_twice_is_legal() -> None:
    """A checked provider is a provider."""
    twice = CheckedEmbedder(CheckedEmbedder(Provider()))
    np.testing.assert_array_equal(twice.embed(["a"]), [[1, 0, 0]])


def described(**changes: object) -> Any:
    attributes = {"model_id": "toy:1", "dim": 3, "embed": lambda self, texts: None, **changes}
    given = {name: value for name, value in attributes.items() if value is not ...}
    return type("Described", (), given)()


async def embed_later(self: object, texts: list[str]) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("provider", "defect"),
    [
        (object(), "object has no embed"),
        (described(embed=...), "Described has no embed"),
        (described(embed="soon"), "has no embed"),
        (described(embed=embed_later), "has an async embed"),
        (described(model_id=...), "has no model_id"),
        (described(model_id=""), "has no model_id"),
        (described(model_id=7), "has no model_id"),
        (described(model_id="m" * 201), "has no model_id"),
        (described(dim=...), "has no dim"),
        (described(dim=0), "has no dim"),
        (described(dim=-3), "has no dim"),
        (described(dim=16_001), "has no dim"),
        (described(dim="3"), "has no dim"),
        (described(dim=3.0), "has no dim"),
    ],
)
def test_an_object_that_is_no_provider_is_refused(provider: Any, defect: str) -> None:
    """When parts are put together, with the type and the defect."""
    with pytest.raises(ConfigurationError) as caught:
        CheckedEmbedder(provider)
    assert defect in caught.value.detail
