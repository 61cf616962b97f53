"""The embedder that the settings name."""

from __future__ import annotations

from pathlib import Path
from typing import Final, cast

from afterturn.embedding.checked import CheckedEmbedder
from afterturn.embedding.endpoint import EndpointEmbedder
from afterturn.embedding.fastembed_model import FastEmbedEmbedder
from afterturn.embedding.minilm import MiniLmEmbedder
from afterturn.embedding.wordllama import WordLlamaEmbedder
from afterturn.errors import ConfigurationError
from afterturn.plugins import load_factory
from afterturn.ports import EmbeddingProvider
from afterturn.settings import Settings

SETTING: Final = "AFTERTURN_EMBEDDER"
CHOICES: Final = "wordllama, minilm, openai:MODEL, fastembed:MODEL, none, or module:factory"


def compose_embedder(settings: Settings) -> EmbeddingProvider | None:
    """The embedder of `AFTERTURN_EMBEDDER`, checked; `None` for `none`. Loads no model."""
    name = settings.embedder.strip()
    kind, _, argument = name.partition(":")
    match kind:
        case "none" if not argument:
            return None
        case "wordllama" if not argument:
            return CheckedEmbedder(WordLlamaEmbedder())
        case "minilm":
            return CheckedEmbedder(MiniLmEmbedder(Path(argument) if argument else None))
        case "openai":
            return CheckedEmbedder(EndpointEmbedder(argument, settings))
        case "fastembed":
            return CheckedEmbedder(FastEmbedEmbedder(argument))
        case _ if ":" not in name or kind in ("none", "wordllama"):
            raise ConfigurationError(
                f"{SETTING} names no embedder",
                detail=f"got {name[:80]!a}",
                hint=f"Use {CHOICES}.",
            )
        case _:
            return CheckedEmbedder(cast(EmbeddingProvider, load_factory(name, setting=SETTING)))
