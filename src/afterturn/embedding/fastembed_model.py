"""The models of fastembed (extra `fastembed`): ONNX, downloaded on first use."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from afterturn.errors import ConfigurationError

TEXT_CHARACTERS_MAX: Final = 16_000
"""Models read a few hundred tokens; what comes later would only be tokenised."""


class FastEmbedEmbedder:
    """`EmbeddingProvider` over a fastembed model by its name, for example BAAI/bge-small-en-v1.5.

    Nothing is loaded or downloaded before the first text; later the model is in fastembed's own
    cache. Texts and questions are embedded alike, without the prefixes that some models want.
    `ConfigurationError` when fastembed is not installed or does not know the model.
    """

    def __init__(self, model: str) -> None:
        if find_spec("fastembed") is None:
            raise ConfigurationError(
                "AFTERTURN_EMBEDDER=fastembed:MODEL needs fastembed",
                hint='Install it: pip install "afterturn[fastembed]".',
            )
        from fastembed import TextEmbedding

        known = {each["model"].lower(): each for each in TextEmbedding.list_supported_models()}
        description = known.get(model.lower())
        if description is None:
            raise ConfigurationError(
                "fastembed does not know this model",
                detail=f"got {model[:80]!a}, it knows {len(known)}, "
                f"for example {next(iter(sorted(known)))}",
                hint="TextEmbedding.list_supported_models() lists them.",
            )
        self._name: str = description["model"]
        self._dim: int = description["dim"]
        self._model: Any = None
        self._lock = threading.Lock()

    @property
    def model_id(self) -> str:
        """Names the model."""
        return f"fastembed:{self._name}"

    @property
    def dim(self) -> int:
        """What fastembed says of the model."""
        return self._dim

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 [n, dim]. Raises what fastembed raises, for example when it cannot download."""
        from fastembed import TextEmbedding

        with self._lock:
            if self._model is None:
                self._model = TextEmbedding(self._name)
        rows = list(self._model.embed([text[:TEXT_CHARACTERS_MAX] for text in texts]))
        return np.asarray(rows, dtype=np.float32).reshape(len(rows), self._dim)
