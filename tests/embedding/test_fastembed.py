"""`fastembed:MODEL`. Its weights are downloaded on first use, so no vector is made here."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from afterturn.embedding.compose import compose_embedder
from afterturn.errors import ConfigurationError
from afterturn.settings import Settings

installed = find_spec("fastembed") is not None


@pytest.mark.skipif(not installed, reason="fastembed is not installed (extra fastembed)")
def test_a_model_is_known_by_name_without_a_download() -> None:
    """Its name and its length come from fastembed's own list."""
    embedder = compose_embedder(Settings(embedder="fastembed:baai/BGE-small-en-v1.5"))
    assert embedder is not None
    assert (embedder.model_id, embedder.dim) == ("fastembed:BAAI/bge-small-en-v1.5", 384)


@pytest.mark.skipif(not installed, reason="fastembed is not installed (extra fastembed)")
def test_an_unknown_model_is_refused_at_the_start() -> None:
    """Not at the first text."""
    with pytest.raises(ConfigurationError, match="does not know this model"):
        compose_embedder(Settings(embedder="fastembed:nobody/nothing"))


@pytest.mark.skipif(installed, reason="fastembed is installed")
def test_without_the_package_it_says_what_to_install() -> None:
    """The extra is named."""
    with pytest.raises(ConfigurationError) as caught:
        compose_embedder(Settings(embedder="fastembed:BAAI/bge-small-en-v1.5"))
    assert "afterturn[fastembed]" in caught.value.hint
