"""The examples of an extractor and a policy of one's own, as the how-to shows them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterturn import Memory, MemoryLayer, MemoryScope
from afterturn.extraction.compose import compose_extractor
from afterturn.settings import Settings
from afterturn.testing.model_server import ModelServer, Reply

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CHAT = MemoryScope.of("acme", "alice", "chat-7")


@pytest.fixture(autouse=True)
def _there(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Started in the folder of the examples."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in ("own_extractor", "own_policy"):
        sys.modules.pop(name, None)


async def test_the_extractor_keeps_the_latest_birthday(settings: Settings) -> None:
    """Named in the settings and run by a drain; the later statement is the current fact."""
    chosen = settings.model_copy(update={"extractor": "own_extractor:Birthdays"})
    async with Memory(chosen) as memory:
        for said in ("Hello!", "my birthday is on 3 May", "sorry, my birthday is on 4 May"):
            async with memory.turn(CHAT) as turn:
                await turn.finish(said, "Noted.")
        await memory.drain(CHAT, in_process=True)
        facts = await memory.list(CHAT, layers=[MemoryLayer.SEMANTIC])
    assert [fact.text for fact in facts] == ["sorry, my birthday is on 4 May"]


async def test_the_policy_promotes_what_is_known_of_the_user(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model's facts go to the user's scope, except those of other layers."""
    facts = [
        {"text": "Alice lives in Oslo", "turns": [1], "layer": "semantic"},
        {"text": "Alice laughed", "turns": [1], "layer": "episodic"},
    ]
    with ModelServer(lambda asked: Reply.facts(facts)) as server:
        monkeypatch.setenv("AFTERTURN_MODEL", "any")
        monkeypatch.setenv("AFTERTURN_MODEL_BASE_URL", server.url)
        chosen = settings.model_copy(update={"extractor": "own_policy:make"})
        assert compose_extractor(chosen) is not None
        async with Memory(chosen) as memory:
            async with memory.turn(CHAT) as turn:
                await turn.finish("I live in Oslo!", "Nice.")
            await memory.drain(CHAT, in_process=True)
            user = await memory.list(CHAT.ancestor(2), layers=[MemoryLayer.SEMANTIC])
            chat = [r for r in await memory.list(CHAT) if r.origin == "extracted"]
    assert [record.text for record in user] == ["Alice lives in Oslo"]
    assert [record.text for record in chat] == ["Alice laughed"]
