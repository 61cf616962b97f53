"""The example agent, run as its reader runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from afterturn.settings import Settings
from afterturn.testing.model_server import ModelServer, Reply

from .programs import EXAMPLES, environment

AGENT = EXAMPLES / "agent.py"


class Chat:
    """A running agent, one line in and one answer out."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(AGENT)],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def say(self, message: str, *, lines: int = 1) -> str:
        """What the agent answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{message}\n")
        self.process.stdin.flush()
        return "".join(self.process.stdout.readline() for _ in range(lines)).strip()

    def end(self) -> str:
        """End the input; what was said on stderr."""
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        return errors


@pytest.fixture
def variables(settings: Settings) -> dict[str, str]:
    return environment(settings)


def test_it_remembers_across_conversations_and_forgets_for_good(variables: dict[str, str]) -> None:
    """What was said in one chat is known in the next; after "/forget me" it is not."""
    chat = Chat(variables)
    assert chat.say("What do I eat?") == "I do not know."
    assert chat.say("I am a vegetarian and my dog is called Bruno.") == "I see."
    facts = chat.say("/facts", lines=2)
    assert "vegetarian" in facts
    assert "Bruno" in facts
    assert chat.end() == ""

    chat = Chat(variables)
    assert "Bruno" in chat.say("What is my dog called?")
    stranger = Chat({**variables, "AGENT_USER": "bob"})
    assert stranger.say("What is my dog called?") == "I do not know."
    stranger.end()
    forgotten = chat.say("/forget me")
    assert forgotten.startswith("You are forgotten: ")
    assert "log entry" in forgotten
    assert chat.say("What is my dog called?") == "I do not know."
    assert chat.say("/facts") == "I know nothing of you."
    assert chat.say("I like tea.") == "I see."
    chat.end()


def test_it_goes_on_without_its_memory(variables: dict[str, str]) -> None:
    """Out of reach it says so, in one line a turn, and answers all the same."""
    nowhere = {**variables, "AFTERTURN_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    chat = Chat(nowhere)
    assert chat.say("I am a vegetarian.") == "I see."
    assert chat.say("What do I eat?") == "I do not know."
    assert "cannot be done now" in chat.say("/forget me")
    errors = chat.end().splitlines()
    assert errors == ["(without memory for now: The database cannot be reached)"] * 2


def test_its_model_may_be_any_openai_compatible_one(variables: dict[str, str]) -> None:
    """Named by a setting; it gets the memories in its instructions."""
    answers = {1: "Hello, Alice.", 2: "Plants."}
    with ModelServer(lambda asked: Reply(answers[asked.number])) as server:
        chat = Chat({**variables, "AGENT_MODEL": "m", "AGENT_BASE_URL": server.url})
        assert chat.say("I am a vegetarian.") == "Hello, Alice."
        chat.say("/facts")
        assert chat.say("What do I eat?") == "Plants."
        chat.end()
        asked = [request.body["messages"] for request in server.asked]
    assert "<memories>" not in asked[0][0]["content"]
    assert "vegetarian" in asked[1][0]["content"]
    assert asked[1][1] == {"role": "user", "content": "What do I eat?"}


def test_the_page_shows_the_file() -> None:
    """Every section that the page names is in the file."""
    page = (EXAMPLES.parent / "docs" / "tutorial" / "agent.md").read_text()
    text = AGENT.read_text()
    names = {line.split(":")[-1].strip('"') for line in page.splitlines() if "agent.py:" in line}
    assert names == {"scope", "turn", "outage", "process", "facts", "forget", "model"}
    for name in names:
        assert f"[start:{name}]" in text
        assert f"[end:{name}]" in text
    assert Path(AGENT).stat().st_size < 10_000
