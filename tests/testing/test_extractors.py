"""The shipped extractor without a model passes the contract of extractors."""

from __future__ import annotations

from afterturn.extraction.rules import RuleExtractor
from afterturn.ports import MemoryExtractorPort
from afterturn.testing.contracts import ExtractorContract


class TestRules(ExtractorContract):
    def extractor(self) -> MemoryExtractorPort:
        return RuleExtractor()
