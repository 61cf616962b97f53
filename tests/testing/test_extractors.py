"""The shipped extractors pass the contract of extractors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from afterturn.extraction.rules import RuleExtractor
from afterturn.extraction.service import MemoryExtractionService
from afterturn.ports import MemoryExtractorPort
from afterturn.testing.contracts import ExtractorContract
from afterturn.testing.model_server import Asked, ModelServer, Reply
from afterturn.turns import ExtractionRequest, ExtractionResult


class TestRules(ExtractorContract):
    def extractor(self) -> MemoryExtractorPort:
        return RuleExtractor()


class _Closing:
    """The service, closed after each request: every request of the contract has its own loop."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        service = MemoryExtractionService("scripted", base_url=self._url, timeout_seconds=30.0)
        try:
            return await service.extract(request)
        finally:
            await service.aclose()


class TestService(ExtractorContract):
    """With a model that states one fact of whatever it is shown."""

    @pytest.fixture(autouse=True)
    def _served(self) -> Iterator[None]:
        with ModelServer(_stating) as server, ModelServer(_stating) as gone:
            self._url, self._gone = server.url, gone.url
            gone.script = lambda asked: Reply("down", status=503)
            yield

    def extractor(self) -> MemoryExtractorPort:
        return _Closing(self._url)

    def without_model(self) -> MemoryExtractorPort:
        return _Closing(self._gone)


def _stating(asked: Asked) -> Reply:
    return Reply.facts(
        [{"text": f"fact {asked.number}", "turns": [t["turn"]]} for t in asked.turns]
    )
