"""The embedder that the settings name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from afterturn.embedding.compose import compose_embedder
from afterturn.errors import ConfigurationError
from afterturn.ports import EmbeddingProvider
from afterturn.settings import Settings

MODULE = """
import numpy as np

class Mine:
    model_id = "mine:1"
    dim = 2

    def embed(self, texts):
        return np.full((len(texts), 2), 5.0)

class Nameless:
    dim = 2

    def embed(self, texts):
        raise AssertionError
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module in the current directory."""
    name = f"project_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield name
    sys.modules.pop(name, None)


def composed(embedder: str) -> EmbeddingProvider | None:
    return compose_embedder(Settings(embedder=embedder))


def test_the_default_works_offline() -> None:
    """Without any setting there are vectors."""
    embedder = compose_embedder(Settings())
    assert embedder is not None
    assert (embedder.model_id, embedder.dim) == ("wordllama:l2_supercat:256", 256)
    assert embedder.embed(["Lisbon"]).any()


def test_none_means_none() -> None:
    """A first-class mode: everything goes on lexically."""
    assert composed("none") is None


def test_an_embedder_of_ones_own_is_checked(project: str) -> None:
    """Its answers come as float32 of unit length, whatever it gives."""
    embedder = composed(f"{project}:Mine")
    assert embedder is not None
    assert embedder.model_id == "mine:1"
    np.testing.assert_allclose(embedder.embed(["a"]), [[2**-0.5, 2**-0.5]], rtol=1e-6)


def test_one_that_does_not_fit_is_refused(project: str) -> None:
    """At the start, not at the first text."""
    with pytest.raises(ConfigurationError, match="Nameless has no model_id"):
        composed(f"{project}:Nameless")


@pytest.mark.parametrize(
    "name", ["wordlama", "None", "rules", "my_agent.vectors", "none:1", "wordllama:big"]
)
def test_an_unknown_name_lists_what_there_is(name: str) -> None:
    """A misspelt name is an error that shows it and the choices."""
    with pytest.raises(ConfigurationError) as caught:
        composed(name)
    assert name in caught.value.detail
    assert "wordllama, minilm, openai:MODEL" in caught.value.hint
