"""The error tree: what catches what, what a reader sees, and what survives a process boundary."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from afterturn import errors
from afterturn.errors import (
    AfterturnError,
    ConfigurationError,
    ErasedScope,
    ErasePending,
    MemoryContractError,
    MemoryUnavailable,
    NotMigrated,
    ScopeViolation,
    StaleTurn,
)

PARENTS = {
    MemoryUnavailable: AfterturnError,
    ErasePending: MemoryUnavailable,
    MemoryContractError: AfterturnError,
    StaleTurn: MemoryContractError,
    ErasedScope: MemoryContractError,
    NotMigrated: MemoryContractError,
    ScopeViolation: AfterturnError,
    ConfigurationError: AfterturnError,
}
every_error = pytest.mark.parametrize("kind", [AfterturnError, *PARENTS])


def test_the_tree_is_the_one_that_is_documented() -> None:
    """Each error has the parent by which callers catch it, and there are no others."""
    defined = {each for each in vars(errors).values() if isinstance(each, type)}
    assert defined == {AfterturnError, *PARENTS}
    for kind, parent in PARENTS.items():
        assert kind.__base__ is parent
    assert AfterturnError.__base__ is Exception


@every_error
def test_an_error_says_what_happened_what_was_seen_and_what_to_do(
    kind: type[AfterturnError],
) -> None:
    """In one line; detail and hint are optional, and each is an attribute."""
    error = kind("It broke", detail="3 of 4", hint="Try again.")
    assert str(error) == "It broke (3 of 4). Try again."
    assert (error.message, error.detail, error.hint) == ("It broke", "3 of 4", "Try again.")
    assert str(kind("It broke")) == "It broke"
    assert str(kind("It broke", hint="Try again.")) == "It broke. Try again."
    assert str(kind("It broke", detail="3 of 4")) == "It broke (3 of 4)"


@every_error
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_error_keeps_everything(kind: type[AfterturnError], protocol: int) -> None:
    """Also one that was raised, and also a copy."""
    with pytest.raises(kind) as raised:
        raise kind("It broke", detail="3 of 4", hint="Try again.")
    pickled = pickle.dumps(raised.value, protocol)
    for again in (pickle.loads(pickled), copy.copy(raised.value)):  # noqa: S301 - our own
        assert type(again) is kind
        assert (again.message, again.detail, again.hint) == ("It broke", "3 of 4", "Try again.")
        assert str(again) == str(raised.value)
        assert again.args == raised.value.args


def test_an_error_of_another_process_arrives_as_it_was_raised() -> None:
    """As from a pool of processes."""
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(ErasePending) as raised,
    ):
        pool.submit(_refuse).result(timeout=60)
    assert raised.value.hint == "Try again when it is done."


def _refuse() -> None:
    raise ErasePending("An erase stands", detail="v1/acme", hint="Try again when it is done.")
