"""The extractor that the settings name."""

from __future__ import annotations

from typing import Final, cast

from afterturn.errors import ConfigurationError
from afterturn.extraction.policy import FactPolicy
from afterturn.extraction.rules import RuleExtractor
from afterturn.extraction.service import MemoryExtractionService
from afterturn.extraction.validation import validate_extractor
from afterturn.plugins import load_factory
from afterturn.ports import MemoryExtractorPort
from afterturn.settings import Settings

SETTING: Final = "AFTERTURN_EXTRACTOR"


def compose_extractor(settings: Settings) -> MemoryExtractorPort | None:
    """The extractor of `AFTERTURN_EXTRACTOR`, validated; `None` for `none`."""
    name = settings.extractor.strip()
    if name == "none":
        return None
    if name == "rules":
        return RuleExtractor(FactPolicy.from_settings(settings))
    if name == "openai":
        return MemoryExtractionService.from_settings(settings)
    if ":" not in name:
        raise ConfigurationError(
            f"{SETTING} names no extractor",
            detail=f"got {name[:80]!a}",
            hint="Use rules, openai, none, or module:factory.",
        )
    extractor = load_factory(name, setting=SETTING)
    validate_extractor(extractor)
    return cast(MemoryExtractorPort, extractor)
