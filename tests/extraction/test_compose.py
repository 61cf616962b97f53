"""The extractor that the settings name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterturn.errors import ConfigurationError
from afterturn.extraction.compose import compose_extractor
from afterturn.extraction.rules import RuleExtractor
from afterturn.extraction.service import MemoryExtractionService
from afterturn.settings import Settings

MODULE = """
class Mine:
    async def extract(self, request):
        raise AssertionError

class Sync:
    def extract(self, request):
        raise AssertionError

def make():
    return Mine()
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


def composed(extractor: str) -> object:
    return compose_extractor(Settings(extractor=extractor))


def test_the_default_is_the_rules() -> None:
    """A newcomer sees facts without a model."""
    assert isinstance(compose_extractor(Settings()), RuleExtractor)


def test_none_means_none() -> None:
    """Raw records only."""
    assert composed("none") is None


def test_an_extractor_of_ones_own(project: str) -> None:
    """A function or a class of the adopter's module makes it."""
    assert type(composed(f"{project}:make")).__name__ == "Mine"
    assert type(composed(f" {project}:Mine ")).__name__ == "Mine"


def test_it_is_validated(project: str) -> None:
    """A part that does not fit is refused at the start, not at the first turn."""
    with pytest.raises(ConfigurationError, match="Sync has a synchronous"):
        composed(f"{project}:Sync")


def test_the_model_of_the_settings() -> None:
    """Composing calls nothing and connects to nothing."""
    settings = Settings(extractor="openai", model="small", model_base_url="http://127.0.0.1:1/v1")
    assert isinstance(compose_extractor(settings), MemoryExtractionService)


def test_a_model_without_a_name_or_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting that is missing stands in the error."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="no name") as caught:
        composed("openai")
    assert "AFTERTURN_MODEL" in caught.value.hint
    with pytest.raises(ConfigurationError, match="endpoint is not known") as caught:
        compose_extractor(Settings(extractor="openai", model="small"))
    assert "AFTERTURN_MODEL_BASE_URL" in caught.value.hint


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that installs it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="not installed") as caught:
        compose_extractor(Settings(extractor="openai", model="small"))
    assert "afterturn[openai]" in caught.value.hint


@pytest.mark.parametrize("name", ["rule", "Rules", "wordllama", "None", "my_agent.memory"])
def test_an_unknown_name_lists_what_there_is(name: str) -> None:
    """A misspelt name is an error that shows it and the choices."""
    with pytest.raises(ConfigurationError) as caught:
        composed(name)
    assert name in caught.value.detail
    assert "rules, openai, none, or module:factory" in caught.value.hint
