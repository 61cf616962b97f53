"""One question to an OpenAI-compatible endpoint, in the strictest form that it understands.

Forms, from the strictest: an answer by JSON schema, the arguments of a tool, plain text that is to
be JSON. An endpoint that refuses one is asked in the next, and from then on in the one that went.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final, Literal

from afterturn.extraction import prompt
from afterturn.turns import Cause, TokenUsage

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

Form = Literal["schema", "tool", "plain"]

_FORMS: Final[tuple[Form, ...]] = ("schema", "tool", "plain")
# What says that the form of the question was not understood.
_NOT_UNDERSTOOD: Final = frozenset({400, 415, 422, 501})
# The key, the model's name, the quota, the load: nothing that the turns have done.
_UNAVAILABLE: Final = frozenset({401, 402, 403, 404, 421, 425, 429, 502, 503, 504, 520, 521, 522,
                                 523, 524, 529})  # fmt: skip
_TRANSIENT: Final = frozenset({408, 409, 500})


class ModelFailure(Exception):
    """A call that gave no answer; never leaves the service. `reason` is a short code."""

    def __init__(
        self, reason: str, cause: Cause = "", retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cause: Cause = cause
        self.retry_after_seconds = retry_after_seconds


@dataclass
class Spent:
    """Calls and tokens of one request, counted when they are spent."""

    usage: TokenUsage = TokenUsage()  # noqa: RUF009 - frozen

    def count(self, *, calls: int = 0, prompt_tokens: int = 0, completion_tokens: int = 0) -> None:
        """Add to it."""
        self.usage += TokenUsage(
            calls=calls, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens
        )


class ChatModel:
    """Asks the model; remembers in which form it understands questions."""

    def __init__(self, client: AsyncOpenAI, model: str) -> None:
        self._client = client
        self._model = model
        self._form = 0
        self._is_proven = False

    async def ask(
        self, messages: Sequence[Mapping[str, str]], spent: Spent, *, timeout_seconds: float
    ) -> str:
        """The text of the answer. Raises `ModelFailure`, at the latest after the timeout."""
        until = time.monotonic() + timeout_seconds
        form = self._form
        while True:
            try:
                left = max(0.001, until - time.monotonic())
                answer = await self._call(_FORMS[form], messages, spent, left)
            except _FormRefusedError as refused:
                if self._is_proven or form == len(_FORMS) - 1:
                    raise _failure(refused.status) from None
                form += 1
            else:
                self._form, self._is_proven = form, True
                return answer

    async def _call(
        self, form: Form, messages: Sequence[Mapping[str, str]], spent: Spent, seconds: float
    ) -> str:
        import openai

        spent.count(calls=1)
        try:
            # The client's own timeout starts anew with every byte.
            async with asyncio.timeout(seconds):
                response = await self._client.chat.completions.create(
                    model=self._model,
                    messages=list(messages),  # type: ignore[arg-type] # roles are plain text here
                    timeout=seconds,
                    **_asked_as(form),
                )
        except (TimeoutError, openai.APITimeoutError):
            raise ModelFailure("timeout") from None
        except openai.APIStatusError as error:
            if error.status_code in _NOT_UNDERSTOOD:
                raise _FormRefusedError(error) from None
            raise _failure(error) from None
        except openai.APIConnectionError:
            raise ModelFailure("unavailable: connection", "unavailable") from None
        except (openai.OpenAIError, ValueError, TypeError):
            raise ModelFailure("failed: not an answer") from None
        return _answer_of(response, spent)


class _FormRefusedError(Exception):
    def __init__(self, status: APIStatusError) -> None:
        super().__init__(status.status_code)
        self.status = status


def _asked_as(form: Form) -> dict[str, Any]:
    if form == "schema":
        schema = {"name": prompt.NAME, "strict": True, "schema": prompt.SCHEMA}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    if form == "tool":
        function = {
            "name": prompt.NAME,
            "description": "Hands over the facts.",
            "parameters": prompt.SCHEMA,
        }
        return {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": prompt.NAME}},
        }
    return {}


def _answer_of(response: Any, spent: Spent) -> str:
    """The text of an answer, which may be of any shape: not every endpoint keeps the protocol."""
    usage = getattr(response, "usage", None)
    spent.count(
        prompt_tokens=_count(getattr(usage, "prompt_tokens", 0)),
        completion_tokens=_count(getattr(usage, "completion_tokens", 0)),
    )
    choices = getattr(response, "choices", None)
    if not isinstance(choices, list) or not choices:
        raise ModelFailure("failed: not an answer")
    choice = choices[0]
    message = getattr(choice, "message", None)
    if getattr(message, "refusal", None):
        raise ModelFailure("unusable: refusal", "unusable")
    if getattr(choice, "finish_reason", None) == "content_filter":
        raise ModelFailure("unusable: content filter", "unusable")
    for call in getattr(message, "tool_calls", None) or ():
        arguments = getattr(getattr(call, "function", None), "arguments", None)
        if isinstance(arguments, dict):
            return json.dumps(arguments)
        if isinstance(arguments, str) and arguments.strip():
            return arguments
    content = getattr(message, "content", None)
    if isinstance(content, list):  # parts, as some servers answer
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _count(given: object) -> int:
    return given if isinstance(given, int) and 0 <= given < 2**40 else 0


def _failure(error: APIStatusError) -> ModelFailure:
    status = error.status_code
    if status in _UNAVAILABLE:
        return ModelFailure(f"unavailable: {status}", "unavailable", _retry_after(error))
    if status in _TRANSIENT or status >= 500:
        return ModelFailure(f"failed: {status}")
    return ModelFailure(f"unusable: {status}", "unusable")


def _retry_after(error: APIStatusError) -> float | None:
    """Seconds that the endpoint asks to wait: a number of them, or a date."""
    headers = error.response.headers
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < 1e9:
            return seconds
    try:
        at = email.utils.parsedate_to_datetime(headers["retry-after"])
    except (KeyError, ValueError, TypeError):
        return None
    return max(0.0, at.replace(tzinfo=at.tzinfo or UTC).timestamp() - time.time())
