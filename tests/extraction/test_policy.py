"""Where facts go, by the adopter's word."""

from __future__ import annotations

import pytest

from afterturn.errors import ConfigurationError
from afterturn.extraction.policy import FactPolicy
from afterturn.records import MemoryLayer
from afterturn.scope import MemoryScope
from afterturn.settings import Settings

CHAT = MemoryScope.of("acme", "alice", "c-1")


@pytest.mark.parametrize(
    ("level", "path"),
    [(None, CHAT.path), (1, "v1/acme"), (2, "v1/acme/alice"), (3, CHAT.path), (8, CHAT.path)],
)
def test_the_level_is_an_ancestor_or_the_turns_own_scope(level: int | None, path: str) -> None:
    """Never below the turn, and never beside it."""
    policy = FactPolicy.from_settings(Settings(fact_level=level))
    assert policy.scope(CHAT, MemoryLayer.SEMANTIC).path == path


def test_layers_that_are_not_allowed_become_the_first() -> None:
    """In the order of the setting."""
    policy = FactPolicy.from_settings(Settings(fact_layers="episodic, semantic"))
    proposed = ["semantic", " EPISODIC ", "procedural", "working", "", None, 3]
    assert [policy.layer(each).value for each in proposed] == ["semantic", *["episodic"] * 6]


@pytest.mark.parametrize("given", ["semantics", "", "semantic,", "semantic;episodic", "core"])
def test_a_layer_that_does_not_exist_is_named(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those that do."""
    monkeypatch.setenv("AFTERTURN_FACT_LAYERS", given)
    if not given:
        assert Settings.load().fact_layers == Settings().fact_layers
        return
    with pytest.raises(ConfigurationError, match="names no layer") as caught:
        Settings.load()
    assert "semantic" in caught.value.hint


@pytest.mark.parametrize("given", ["0", "9", "-1", "two"])
def test_a_level_out_of_range_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of its setting."""
    monkeypatch.setenv("AFTERTURN_FACT_LEVEL", given)
    with pytest.raises(ConfigurationError, match="AFTERTURN_FACT_LEVEL"):
        Settings.load()
