"""The default embedder: wordllama's static word vectors, read from its wheel, offline.

wordllama holds the tokenizer and the matrix. The pooling is done here, because its own pads each
batch to its longest text: one text of 1 MiB among 64 would take some 64 GB. Texts are tokenised
one by one: that is no slower on one thread, needs no thread pool, and so survives a fork.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from afterturn.errors import ConfigurationError

CONFIG: Final = "l2_supercat"
DIM: Final = 256

# The tokenizer holds the interpreter lock: about 2 ms for this many characters.
PIECE_CHARACTERS: Final = 8_000


class WordLlamaEmbedder:
    """`EmbeddingProvider` over wordllama. Nothing is loaded before the first text.

    A row is the mean of a text's word vectors at unit length; a blank text has a zero row. A long
    text is embedded whole. Safe to share between threads and to use on both sides of a fork; the
    model (33 MB) is loaded once a process.
    """

    @property
    def model_id(self) -> str:
        """Names the model and its length."""
        return f"wordllama:{CONFIG}:{DIM}"

    @property
    def dim(self) -> int:
        """256."""
        return DIM

    @property
    def is_instant(self) -> bool:
        """Whether the model is loaded: then a question takes some 0.05 ms."""
        return _once.is_loaded

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 [n, 256]. `ConfigurationError` when the installed wordllama lacks the model."""
        rows = np.zeros((len(texts), DIM), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            if text.strip():
                _add_words(row, text, _once.model())
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        np.divide(rows, lengths, out=rows, where=lengths > 0)
        return rows


class _Model(NamedTuple):
    tokenizer: Any
    vectors: NDArray[np.float32]


def _add_words(row: NDArray[np.float32], text: str, model: _Model) -> None:
    for piece in _pieces(text):
        ids = model.tokenizer.encode(piece, add_special_tokens=False).ids
        row += model.vectors[ids].sum(axis=0)


def _pieces(text: str) -> Iterator[str]:
    """The text cut at spaces, so that a piece's words are those of the text."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        space = text.rfind(" ", start, start + PIECE_CHARACTERS)
        end = space if space > start else start + PIECE_CHARACTERS
        yield text[start:end]
        # The tokenizer puts a space before each piece.
        start = end + 1 if space > start else end
    yield text[start:]


class _Once:
    """The model of this process, loaded by whoever needs it first."""

    def __init__(self) -> None:
        self._loaded: _Model | None = None
        self.unlock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.unlock)

    def unlock(self) -> None:
        """Forget a lock that a thread of the parent process may have held."""
        self._lock = threading.Lock()

    @property
    def is_loaded(self) -> bool:
        """Whether `model` returns at once."""
        return self._loaded is not None

    def model(self) -> _Model:
        """The model; other threads wait while one loads it."""
        if self._loaded is None:
            with self._lock:
                if self._loaded is None:
                    self._loaded = _load()
        return self._loaded


_once: Final = _Once()


def _load() -> _Model:
    package = find_spec("wordllama")
    if package is None or package.origin is None:
        raise ConfigurationError(
            "The embedder wordllama is not installed",
            hint="Install wordllama, or set AFTERTURN_EMBEDDER=none.",
        )
    with _root_logger_as_it_is():
        from wordllama import WordLlama
    try:
        # It looks for its bundled tokenizer below `cache_dir` only, and would then go online.
        loaded = WordLlama.load(
            CONFIG, cache_dir=Path(package.origin).parent, dim=DIM, disable_download=True
        )
    except FileNotFoundError:
        raise ConfigurationError(
            "The installed wordllama carries no model",
            detail=f"{CONFIG} with {DIM} dimensions was looked for in its package",
            hint="Reinstall wordllama from a wheel, or set AFTERTURN_EMBEDDER=none.",
        ) from None
    return _Model(loaded.tokenizer, loaded.embedding)


@contextmanager
def _root_logger_as_it_is() -> Iterator[None]:
    """Importing wordllama calls `basicConfig`, which is the application's to call."""
    root = logging.getLogger()
    guard = logging.NullHandler()  # basicConfig leaves a logger with handlers alone
    root.addHandler(guard)
    try:
        yield
    finally:
        root.removeHandler(guard)
