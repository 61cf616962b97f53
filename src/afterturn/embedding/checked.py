"""A provider of embeddings whose every answer is checked before it is stored or compared."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from afterturn.errors import AfterturnError, ConfigurationError, MemoryUnavailable
from afterturn.intake import clean_text
from afterturn.ports import EmbeddingProvider

DIM_MAX: Final = 16_000
MODEL_ID_CHARACTERS_MAX: Final = 200

_UNIT_TOLERANCE: Final = 2e-3  # of the square of a length


class CheckedEmbedder:
    """`EmbeddingProvider` around another one.

    Blank texts get zero rows and are never sent. Rows that are not of unit length are scaled.
    A wrong shape or type is a `ConfigurationError`; a provider that raises, answers for another
    number of texts, or gives numbers that are not finite is `MemoryUnavailable`. Neither holds
    the provider's own message: it may quote the texts.
    """

    def __init__(self, provider: EmbeddingProvider) -> None:
        self._provider = provider
        self._model_id, self._dim = _identity(provider)

    @property
    def model_id(self) -> str:
        """The provider's, as it was when this was made."""
        return self._model_id

    @property
    def dim(self) -> int:
        """The provider's, as it was when this was made."""
        return self._dim

    @property
    def is_instant(self) -> bool:
        """Whether the provider says that a short text takes it well under a millisecond now."""
        return bool(getattr(self._provider, "is_instant", False))

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 [n, dim], rows of unit length or zero; the caller owns the array."""
        asked = [at for at, text in enumerate(texts) if text.strip()]
        if not asked:
            return np.zeros((len(texts), self._dim), dtype=np.float32)
        answer = self._answer([clean_text(texts[at]) for at in asked])
        found = self._checked(answer, len(asked))
        if len(asked) == len(texts):
            return found
        rows = np.zeros((len(texts), self._dim), dtype=np.float32)
        rows[asked] = found
        return rows

    def _answer(self, texts: list[str]) -> Any:
        try:
            return self._provider.embed(texts)
        except AfterturnError:
            raise
        except Exception as error:  # noqa: BLE001 - a provider may raise anything
            failure = type(error).__name__
        # Outside the handler, so that the provider's exception is not even its context.
        raise MemoryUnavailable(
            "The embedder failed",
            detail=f"{self._model_id} raised {failure}",
            hint="See AFTERTURN_EMBEDDER; retrieval goes on without vectors.",
        )

    def _checked(self, answer: Any, texts: int) -> NDArray[np.float32]:
        if not isinstance(answer, np.ndarray) or answer.dtype.kind != "f":
            given = answer.dtype if isinstance(answer, np.ndarray) else type(answer).__name__
            raise self._misfit(f"{self._model_id} gave {given}, expected a float32 array")
        if answer.ndim != 2 or answer.shape[1] != self._dim:
            raise self._misfit(
                f"{self._model_id} gave shape {answer.shape}, expected ({texts}, {self._dim})"
            )
        if answer.shape[0] != texts:
            raise MemoryUnavailable(
                "The embedder answered for another number of texts",
                detail=f"{self._model_id} gave {answer.shape[0]} vectors for {texts}",
            )
        if answer.dtype == np.float32:
            rows = answer.copy()
        else:
            with np.errstate(over="ignore"):  # what overflows is refused below
                rows = answer.astype(np.float32)
        squares = np.einsum("ij,ij->i", rows, rows)
        if _are_one(squares):
            return rows
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)  # holds any of float32
        if not np.isfinite(squares).all():
            raise MemoryUnavailable(
                "The embedder gave numbers that are not finite", detail=self._model_id
            )
        np.divide(rows, np.sqrt(squares)[:, None], out=rows, where=rows != 0.0, casting="same_kind")
        return rows

    def _misfit(self, detail: str) -> ConfigurationError:
        return ConfigurationError(
            "The embedder does not fit its description",
            detail=detail,
            hint="embed(texts) must return a float32 array of shape [n, dim].",
        )


def _identity(provider: EmbeddingProvider) -> tuple[str, int]:
    """The provider's id and length, when it has all that is needed."""
    kind = type(provider).__name__
    model_id, dim = getattr(provider, "model_id", None), getattr(provider, "dim", None)
    embed = getattr(provider, "embed", None)
    defect = ""
    if not callable(embed):
        defect = "has no embed method"
    elif inspect.iscoroutinefunction(embed):
        defect = "has an async embed"
    elif not isinstance(model_id, str) or not 0 < len(model_id) <= MODEL_ID_CHARACTERS_MAX:
        defect = f"has no model_id of 1 to {MODEL_ID_CHARACTERS_MAX} characters"
    elif not isinstance(dim, int) or not 0 < dim <= DIM_MAX:
        defect = f"has no dim from 1 to {DIM_MAX}"
    if defect or model_id is None or dim is None:
        raise ConfigurationError(
            "An embedder cannot be used",
            detail=f"{kind} {defect}",
            hint="It needs model_id (text), dim (a number) and embed(texts), "
            "a plain function that returns a float32 array of shape [n, dim].",
        )
    return model_id, dim


def _are_one(squares: NDArray[np.float32]) -> bool:
    # The sum of squares overflows to infinity, and what is no number is not near one.
    return all(abs(square - 1.0) <= _UNIT_TOLERANCE for square in squares.tolist())
