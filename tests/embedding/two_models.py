"""Two embedders that count letters, with vectors of different lengths, and one that breaks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Letters:
    """Counts the first `dim` letters of the alphabet."""

    def __init__(self, dim: int) -> None:
        self.model_id = f"letters-{dim}"
        self.dim = dim

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = [[text.count(chr(97 + at)) + 0.1 for at in range(self.dim)] for text in texts]
        vectors = np.asarray(rows, dtype=np.float32)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


class Breaking(Letters):
    """Fails once it has embedded as many texts as the chances say."""

    left = 0

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if Breaking.left < len(texts):
            raise RuntimeError("the model went away")
        Breaking.left -= len(texts)
        return super().embed(texts)


def first() -> Letters:
    return Letters(3)


def second() -> Letters:
    return Letters(5)


def breaking() -> Breaking:
    return Breaking(5)
