"""Embeddings of an OpenAI-compatible endpoint, through the `openai` client (extra `openai`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from afterturn.errors import ConfigurationError, MemoryUnavailable
from afterturn.logs import silence_clients
from afterturn.settings import Settings

if TYPE_CHECKING:
    from openai import OpenAI

DIMS: Final = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
}
"""Lengths of the vectors of models that everybody knows; of others they must be set."""

TEXT_CHARACTERS_MAX: Final = 8_000
"""What comes later in a text is not embedded: endpoints refuse texts of more than 8,191 tokens,
and in some scripts a character is one."""
REQUEST_TEXTS: Final = 64
REQUEST_CHARACTERS: Final = 200_000
_NO_KEY: Final = "none"  # the client wants one, local servers do not


class EndpointEmbedder:
    """`EmbeddingProvider` over an endpoint. No request is made before the first text.

    Raises `MemoryUnavailable` when the endpoint fails or is too slow, `ConfigurationError` when it
    refuses the key or does not know the model; its messages, which may quote texts, are not kept.
    Safe to share between threads and to use on both sides of a fork.
    """

    def __init__(self, model: str, settings: Settings) -> None:
        if find_spec("openai") is None:
            raise ConfigurationError(
                "AFTERTURN_EMBEDDER=openai:MODEL needs the openai client",
                hint='Install it: pip install "afterturn[openai]".',
            )
        silence_clients()
        dim = settings.embedder_dim or DIMS.get(model)
        if not model or dim is None:
            raise ConfigurationError(
                "The length of the embedder's vectors is not known",
                detail=f"AFTERTURN_EMBEDDER=openai:{model[:80]!a}",
                hint="Set AFTERTURN_EMBEDDER_DIM to what the model returns.",
            )
        self._model = model
        self._dim = dim
        self._shortened = model in DIMS and dim != DIMS[model]
        key = settings.embedder_api_key or settings.model_api_key
        self._key = key.get_secret_value() if key else os.environ.get("OPENAI_API_KEY", _NO_KEY)
        self._base_url = settings.embedder_base_url or settings.model_base_url
        self._seconds = settings.embedder_timeout_seconds
        self._client: tuple[int, OpenAI] | None = None

    @property
    def model_id(self) -> str:
        """Names the model."""
        return f"openai:{self._model}"

    @property
    def dim(self) -> int:
        """`AFTERTURN_EMBEDDER_DIM`, or what is known of the model."""
        return self._dim

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 [n, dim], as the endpoint gives them."""
        rows = [row for batch in _batches(texts) for row in self._request(batch)]
        return np.asarray(rows, dtype=np.float32).reshape(len(rows), -1 if rows else self._dim)

    def _request(self, texts: list[str]) -> list[list[float]]:
        import openai

        try:
            if self._shortened:
                answer = self._connected().embeddings.create(
                    model=self._model, input=texts, dimensions=self._dim
                )
            else:
                answer = self._connected().embeddings.create(model=self._model, input=texts)
            return [item.embedding for item in sorted(answer.data, key=lambda item: item.index)]
        except openai.APIStatusError as error:
            status = error.status_code
        except openai.APITimeoutError:
            status = 0
        except openai.APIConnectionError:
            status = -1
        # Outside the handlers, so that what the endpoint said is not even a context.
        if status in (401, 403, 404):
            raise ConfigurationError(
                "The endpoint refuses to embed",
                detail=f"it answered {status} for {self.model_id}",
                hint="Check the model's name, AFTERTURN_EMBEDDER_BASE_URL and _API_KEY.",
            )
        reason = {0: f"no answer within {self._seconds:g} s", -1: "it cannot be reached"}
        raise MemoryUnavailable(
            "The endpoint does not embed",
            detail=f"{self.model_id}: {reason.get(status, f'it answered {status}')}",
            hint="Retrieval goes on without vectors; records are embedded later.",
        )

    def _connected(self) -> OpenAI:
        """This process's client: connections are not shared across a fork."""
        from openai import OpenAI

        if self._client is None or self._client[0] != os.getpid():
            client = OpenAI(
                api_key=self._key, base_url=self._base_url, timeout=self._seconds, max_retries=1
            )
            self._client = (os.getpid(), client)
        return self._client[1]


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        cut = text[:TEXT_CHARACTERS_MAX]
        if batch and (len(batch) == REQUEST_TEXTS or size + len(cut) > REQUEST_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(cut)
        size += len(cut)
    if batch:
        yield batch
