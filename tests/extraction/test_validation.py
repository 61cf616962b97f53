"""What may serve as an extractor, judged without calling it."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from afterturn.errors import ConfigurationError
from afterturn.extraction.rules import RuleExtractor
from afterturn.extraction.validation import validate_extractor
from afterturn.turns import ExtractionRequest, ExtractionResult

Method = Callable[..., Any]


class Plain:
    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        raise AssertionError("validation must not call")


class WithOptions:
    async def extract(
        self,
        request: ExtractionRequest,
        retries: int = 3,
        *rest: Any,
        deep: bool = False,
        **more: Any,
    ) -> ExtractionResult:
        raise AssertionError


class PositionalOnly:
    async def extract(self, request: ExtractionRequest, /) -> ExtractionResult:
        raise AssertionError


class Static:
    @staticmethod
    async def extract(request: ExtractionRequest) -> ExtractionResult:
        raise AssertionError


def traced(method: Method) -> Method:
    @functools.wraps(method)
    async def inner(*args: Any, **kwargs: Any) -> Any:
        return await method(*args, **kwargs)

    return inner


def handed_on(method: Method) -> Method:
    """A plain function around an async one, as many tracing decorators are."""

    @functools.wraps(method)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return inner


class Traced:
    @traced
    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        raise AssertionError


class HandedOn:
    @handed_on
    @traced
    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        raise AssertionError


class WithPartialMethod:
    async def _extract(self, depth: int, request: ExtractionRequest) -> ExtractionResult:
        raise AssertionError

    extract = functools.partialmethod(_extract, 2)


class AsyncCallable:
    async def __call__(self, request: ExtractionRequest) -> ExtractionResult:
        raise AssertionError


class Holding:
    """Has whatever it is given as `extract`."""

    def __init__(self, extract: object) -> None:
        self.extract = extract


async def with_model(model: str, request: ExtractionRequest) -> ExtractionResult:
    raise AssertionError


class Uninspectable:
    """As a function of an extension module can be."""

    __signature__ = "none that Python knows"

    def __call__(self, request: ExtractionRequest) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    "extractor",
    [
        None,
        RuleExtractor(),
        Plain(),
        WithOptions(),
        PositionalOnly(),
        Static(),
        Static,
        Traced(),
        HandedOn(),
        WithPartialMethod(),
        Holding(functools.partial(with_model, "small")),
        Holding(functools.partial(functools.partial(with_model), "small")),
        Holding(Plain().extract),
        Holding(AsyncCallable()),
        Holding(Uninspectable()),
        Holding(dict),
    ],
    ids=lambda extractor: type(extractor).__name__,
)
def test_passes(extractor: object) -> None:
    """One required positional argument of an async method passes, however it is wrapped."""
    validate_extractor(extractor)


class Nothing:
    pass


class Attribute:
    extract = "later"


class Synchronous:
    def extract(self, request: ExtractionRequest) -> ExtractionResult:
        raise AssertionError


class SynchronousTraced:
    @handed_on
    def extract(self, request: ExtractionRequest) -> ExtractionResult:
        raise AssertionError


class Streaming:
    async def extract(self, request: ExtractionRequest) -> AsyncIterator[ExtractionResult]:
        yield ExtractionResult()


class NoArgument:
    async def extract(self) -> ExtractionResult:
        raise AssertionError


class TwoArguments:
    async def extract(self, request: ExtractionRequest, scope: str) -> ExtractionResult:
        raise AssertionError


class OptionalOnly:
    async def extract(self, request: ExtractionRequest | None = None) -> ExtractionResult:
        raise AssertionError


class KeywordOnly:
    async def extract(self, *, request: ExtractionRequest) -> ExtractionResult:
        raise AssertionError


class RequiredKeyword:
    async def extract(self, request: ExtractionRequest, *, model: str) -> ExtractionResult:
        raise AssertionError


class Anything:
    async def extract(self, *args: Any, **kwargs: Any) -> ExtractionResult:
        raise AssertionError


class SynchronousCallable:
    def __call__(self, request: ExtractionRequest) -> ExtractionResult:
        raise AssertionError


@pytest.mark.parametrize(
    ("extractor", "defect", "remedy"),
    [
        (Nothing(), "has no method", "async def extract"),
        (Attribute(), "has no method", "async def extract"),
        (object(), "has no method", "async def extract"),
        (Synchronous(), "synchronous", "async"),
        (SynchronousTraced(), "synchronous", "async"),
        (Holding(SynchronousCallable()), "synchronous", "async"),
        (Holding(len), "synchronous", "async"),
        (Holding(lambda request: None), "synchronous", "async"),
        (Streaming(), "yields", "one ExtractionResult"),
        (NoArgument(), "extract()", "one required argument"),
        (TwoArguments(), "extract(request, scope)", "one required argument"),
        (OptionalOnly(), "extract(request=...)", "one required argument"),
        (KeywordOnly(), "extract(*, request)", "one required argument"),
        (RequiredKeyword(), "extract(request, *, model)", "one required argument"),
        (Anything(), "extract(*args, **kwargs)", "one required argument"),
        (Plain, "extract(self, request)", "instance"),
        (Holding(with_model), "extract(model, request)", "one required argument"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_refuses(extractor: object, defect: str, remedy: str) -> None:
    """Everything else is refused with its type, the defect and the remedy."""
    with pytest.raises(ConfigurationError) as caught:
        validate_extractor(extractor)
    kind = extractor if isinstance(extractor, type) else type(extractor)
    assert kind.__name__ in caught.value.detail
    assert defect in caught.value.detail
    assert remedy in caught.value.hint


def test_default_values_are_not_shown() -> None:
    """A default may be a key or a text, so the message only says that there is one."""

    class Keyed:
        async def extract(self, key: str = "sk-secret") -> ExtractionResult:
            raise AssertionError

    with pytest.raises(ConfigurationError) as caught:
        validate_extractor(Keyed())
    assert "sk-secret" not in str(caught.value)


def test_a_plain_function_with_a_broken_signature_is_still_synchronous() -> None:
    """That a signature cannot be read excuses its shape, not what is known without it."""

    def extract(request: ExtractionRequest) -> None:
        raise AssertionError

    extract.__signature__ = "broken"  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match="synchronous"):
        validate_extractor(Holding(extract))
