"""The embedder that the settings name."""

from __future__ import annotations

from typing import Final, cast

from afterturn.embedding.checked import CheckedEmbedder
from afterturn.embedding.wordllama import WordLlamaEmbedder
from afterturn.errors import ConfigurationError
from afterturn.plugins import load_factory
from afterturn.ports import EmbeddingProvider
from afterturn.settings import Settings

SETTING: Final = "AFTERTURN_EMBEDDER"

_NOT_SHIPPED: Final = frozenset({"openai", "fastembed", "minilm"})


def compose_embedder(settings: Settings) -> EmbeddingProvider | None:
    """The embedder of `AFTERTURN_EMBEDDER`, checked; `None` for `none`. Loads no model."""
    name = settings.embedder.strip()
    if name == "none":
        return None
    if name == "wordllama":
        return CheckedEmbedder(WordLlamaEmbedder())
    if name.partition(":")[0] in _NOT_SHIPPED:
        raise ConfigurationError(
            f"{SETTING}={name} is not in this release",
            hint="Use wordllama, none, or module:factory with an embedder of your own.",
        )
    if ":" not in name:
        raise ConfigurationError(
            f"{SETTING} names no embedder",
            detail=f"got {name[:80]!a}",
            hint="Use wordllama, none, or module:factory.",
        )
    return CheckedEmbedder(cast(EmbeddingProvider, load_factory(name, setting=SETTING)))
