"""Whether an object can serve as an extractor, judged by its signature and never by a call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, Final

from afterturn.errors import ConfigurationError

_POSITIONAL: Final = frozenset({Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD})


def validate_extractor(extractor: object) -> None:
    """Pass an object whose async `extract` takes one request, and `None`.

    Anything else is a `ConfigurationError` that names the type, the defect and the remedy. A
    signature that cannot be inspected passes. Partials, bound methods, callable objects and
    decorators that keep `__wrapped__` are judged by what they wrap.
    """
    if extractor is None:
        return
    extract = getattr(extractor, "extract", None)
    if not callable(extract):
        raise _unusable(extractor, "has no method `extract`", "Give it one")
    signature = _signature(extract)
    if signature is None and not _is_plain_function(extract):
        return
    if _is_async(extract, inspect.isasyncgenfunction):
        raise _unusable(extractor, "yields from `extract`", "Return one ExtractionResult")
    if not _is_async(extract, inspect.iscoroutinefunction):
        raise _unusable(extractor, "has a synchronous `extract`", "Make it async")
    if signature is not None and not _takes_one(signature):
        remedy = "Take one required argument, the request"
        if isinstance(extractor, type):
            remedy = "Pass an instance, not the class"
        raise _unusable(extractor, f"has `extract{_shown(signature)}`", remedy)


def _takes_one(signature: Signature) -> bool:
    required = [
        parameter.kind
        for parameter in signature.parameters.values()
        if parameter.default is Parameter.empty
        and parameter.kind not in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    ]
    return len(required) == 1 and required[0] in _POSITIONAL


def _signature(extract: Callable[..., Any]) -> Signature | None:
    try:
        return inspect.signature(extract)
    except (TypeError, ValueError):
        return None


def _is_plain_function(extract: Callable[..., Any]) -> bool:
    """Whether Python can tell for certain that calling it is synchronous or not."""
    return inspect.isfunction(_innermost(extract)) or inspect.ismethod(_innermost(extract))


def _is_async(extract: Callable[..., Any], is_kind: Callable[[object], bool]) -> bool:
    """Whether the callable, what it wraps, or its `__call__` is of the asynchronous kind."""
    inner = _innermost(extract)
    return is_kind(extract) or is_kind(inner) or is_kind(_innermost(type(inner).__call__))


def _innermost(extract: Callable[..., Any]) -> Callable[..., Any]:
    """What is under partials and decorators that keep `__wrapped__`."""
    for _ in range(100):
        if isinstance(extract, functools.partial):
            extract = extract.func
        elif callable(wrapped := getattr(extract, "__wrapped__", None)):
            extract = wrapped
        else:
            break
    return extract


def _shown(signature: Signature) -> str:
    """The parameters without their annotations and values."""
    bare = [
        parameter.replace(annotation=Parameter.empty)
        if parameter.default is Parameter.empty
        else parameter.replace(annotation=Parameter.empty, default=...)
        for parameter in signature.parameters.values()
    ]
    return str(Signature(bare)).replace("Ellipsis", "...")


def _unusable(extractor: object, defect: str, remedy: str) -> ConfigurationError:
    kind = extractor if isinstance(extractor, type) else type(extractor)
    return ConfigurationError(
        "An extractor cannot be used",
        detail=f"{kind.__qualname__} {defect}",
        hint=f"{remedy}: async def extract(self, request: ExtractionRequest) -> ExtractionResult.",
    )
