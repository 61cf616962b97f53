"""Reading ChatGPT data exports."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterturn.importing.conversation import Reading
from afterturn.importing.formats import read_file

BEGAN = 1_700_000_000.0


class Export:
    """A conversation whose nodes are added one under the other."""

    def __init__(self, conversation_id: str = "c-1") -> None:
        self.nodes: dict[str, Any] = {
            "root": {"id": "root", "message": None, "parent": None, "children": []}
        }
        self.document: dict[str, Any] = {
            "conversation_id": conversation_id,
            "title": "A talk",
            "create_time": BEGAN,
            "mapping": self.nodes,
        }
        self.last = "root"

    def say(self, role: str, *parts: Any, under: str | None = None, **fields: Any) -> str:
        """One more node; returns its id."""
        node_id = f"n-{len(self.nodes)}"
        parent = under or self.last
        message = {
            "id": node_id,
            "author": {"role": role},
            "create_time": BEGAN + len(self.nodes),
            "content": {"content_type": "text", "parts": list(parts)},
            **fields,
        }
        self.nodes[node_id] = {"id": node_id, "message": message, "parent": parent, "children": []}
        self.nodes[parent]["children"].append(node_id)
        self.last = self.document["current_node"] = node_id
        return node_id


def _read(tmp_path: Path, *documents: Any) -> Reading:
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps(list(documents)))
    return read_file(file)


def _turns(reading: Reading) -> list[tuple[str | None, str | None]]:
    (conversation,) = reading.conversations
    return [(turn.query, turn.answer) for turn in conversation.messages]


def test_questions_and_answers_become_turns(tmp_path: Path) -> None:
    """In order, named by the question's node, at its time; nobody else is named."""
    export = Export()
    export.say("user", "What do I eat?")
    export.say("assistant", "Plants.")
    export.say("user", "And drink?")
    export.say("assistant", "Tea.", "And water.")
    reading = _read(tmp_path, export.document)
    assert _turns(reading) == [("What do I eat?", "Plants."), ("And drink?", "Tea.\nAnd water.")]
    (conversation,) = reading.conversations
    assert (conversation.conversation_id, conversation.names) == ("c-1", None)
    assert [turn.turn_id for turn in conversation.messages] == ["c-1:n-1", "c-1:n-3"]
    assert conversation.messages[0].occurred_at == datetime.fromtimestamp(BEGAN + 1, UTC)
    assert (reading.defects, reading.undated) == ([], 0)


def test_only_the_current_branch_is_taken(tmp_path: Path) -> None:
    """An edited question and a repeated answer leave branches, which are counted."""
    export = Export()
    first = export.say("user", "What do I eat?")
    export.say("assistant", "Meat.")
    export.say("assistant", "Plants.", under=first)
    edited = export.say("user", "And drink?")
    export.say("assistant", "Beer.")
    export.say("user", "And drink in the morning?", under=export.nodes[edited]["parent"])
    export.say("assistant", "Tea.")
    reading = _read(tmp_path, export.document)
    assert _turns(reading) == [
        ("What do I eat?", "Plants."),
        ("And drink in the morning?", "Tea."),
    ]
    assert reading.left_out["messages of other branches"] == 3


@pytest.mark.parametrize("current", [None, "gone", 7])
def test_without_a_current_node_the_newest_children_are_followed(
    tmp_path: Path, current: Any
) -> None:
    """As the tree was left."""
    export = Export()
    first = export.say("user", "What do I eat?")
    export.say("assistant", "Meat.")
    export.say("assistant", "Plants.", under=first)
    export.document["current_node"] = current
    assert _turns(_read(tmp_path, export.document)) == [("What do I eat?", "Plants.")]


def test_what_is_no_talk_is_counted_by_reason(tmp_path: Path) -> None:
    """System and tool messages, code, reasoning, hidden ones, pictures, empty ones."""
    export = Export()
    export.say("system", "You are helpful.")
    export.say("user", "hidden", metadata={"is_visually_hidden_from_conversation": True})
    export.say("user", "weightless", weight=0)
    picture = {"content_type": "image_asset_pointer", "asset_pointer": "file://x"}
    export.say(
        "user",
        picture,
        "What is this?",
        content={"content_type": "multimodal_text", "parts": [picture, "What is this?"]},
    )
    export.say("assistant", content={"content_type": "code", "text": "print(1)"})
    export.say("assistant", "search()", recipient="browser")
    export.say("tool", "result")
    export.say("assistant", content={"content_type": "thoughts", "thoughts": []})
    export.say("assistant", content={"content_type": "new kind"})
    export.say("assistant", "")
    export.say("assistant", "A boat.")
    export.say("critic", "no")
    export.nodes["empty"] = {"id": "empty", "message": None, "parent": export.last, "children": []}
    export.document["current_node"] = "empty"
    reading = _read(tmp_path, export.document)
    assert _turns(reading) == [("What is this?", "A boat.")]
    assert {reason: count for reason, count in reading.left_out.items() if count} == {
        "system messages": 1,
        "hidden messages": 2,
        "image parts": 1,
        "tool calls": 2,
        "tool messages": 1,
        "reasoning": 1,
        "contents of another kind": 1,
        "messages without text": 1,
        "messages of another role": 1,
    }
    assert reading.defects == []


def test_times_that_are_missing_or_wrong_keep_the_order(tmp_path: Path) -> None:
    """A turn without a time is dated just after the one before; time never goes back."""
    export = Export()
    export.say("user", "one")
    export.say("user", "two", create_time=None)
    export.say("user", "three", create_time="soon")
    export.say("user", "four", create_time=BEGAN - 1_000)
    reading = _read(tmp_path, export.document)
    (conversation,) = reading.conversations
    times = [turn.occurred_at for turn in conversation.messages]
    assert times[0] == datetime.fromtimestamp(BEGAN + 1, UTC)
    assert all(time is not None for time in times)
    assert times == sorted(set(times))  # type: ignore[type-var]
    assert reading.undated == 2


def test_several_conversations_keep_apart(tmp_path: Path) -> None:
    """Each with its own id; one whose id came before is a defect, one without is numbered."""
    documents: list[dict[str, Any]] = []
    for conversation_id in ("c-1", "c-2", "c-1", ""):
        export = Export(conversation_id)
        export.say("user", f"I am in {len(documents)}")
        documents.append(export.document)
    del documents[1]["conversation_id"]
    documents[1]["id"] = "c-2"
    reading = _read(tmp_path, *documents)
    assert [each.conversation_id for each in reading.conversations] == [
        "c-1",
        "c-2",
        "conversations-4",
    ]
    assert [str(each) for each in reading.defects] == [
        "conversation 3: its id is that of conversation 1"
    ]


def test_a_broken_conversation_costs_only_itself(tmp_path: Path) -> None:
    """Whether its JSON is broken or its tree is missing: place, reason, and the others."""
    good, last = Export("good"), Export("last")
    good.say("user", "hello")
    last.say("user", "bye")
    file = tmp_path / "conversations.json"
    texts = [
        json.dumps(good.document),
        '{"conversation_id": "bad", "mapping": {"a" 1}}',
        '{"conversation_id": "treeless"}',
        '"no object"',
        json.dumps(last.document),
    ]
    file.write_text("[" + ",\n".join(texts) + "]")
    reading = read_file(file)
    assert [each.conversation_id for each in reading.conversations] == ["good", "last"]
    assert [str(each) for each in reading.defects] == [
        "conversation 2, line 2, column 44: not JSON: Expecting ':' delimiter",
        "conversation 3: it has no `mapping` of nodes",
        "conversation 4: not an object",
    ]


def test_a_file_that_is_cut_off_keeps_what_is_whole(tmp_path: Path) -> None:
    """As after a download that broke off."""
    documents = []
    for number in range(5):
        export = Export(f"c-{number}")
        export.say("user", "hello")
        documents.append(export.document)
    whole = json.dumps(documents)
    file = tmp_path / "conversations.json"
    file.write_text(whole[: len(whole) - 60])
    reading = read_file(file)
    assert [each.conversation_id for each in reading.conversations] == [f"c-{n}" for n in range(4)]
    (defect,) = reading.defects
    assert defect.place.startswith("conversation 5, line 1, column ")
    assert "ends in the middle" in defect.reason


@given(
    links=st.lists(
        st.tuples(st.integers(0, 8), st.one_of(st.none(), st.integers(0, 8), st.text(max_size=2))),
        max_size=9,
    ),
    current=st.integers(0, 9),
    odd=st.sampled_from([None, [], {}, "x", {"author": None}, {"author": {"role": "user"}}]),
)
def test_no_tree_makes_the_reader_fail(
    tmp_path_factory: pytest.TempPathFactory,
    links: list[tuple[int, Any]],
    current: int,
    odd: Any,
) -> None:
    """Circles, orphans, nodes that are no objects: a conversation all the same."""
    nodes: dict[str, Any] = {}
    for at, (child, parent) in enumerate(links):
        message = {
            "author": {"role": "user"},
            "content": {"content_type": "text", "parts": [f"said {at}"]},
        }
        nodes[str(at)] = {
            "message": message if at % 3 else odd,
            "parent": str(parent) if isinstance(parent, int) else parent,
            "children": [str(child)],
        }
    nodes["odd"] = odd
    file = tmp_path_factory.getbasetemp() / "tree.json"
    file.write_text(json.dumps([{"mapping": nodes, "current_node": str(current)}]))
    reading = read_file(file)
    assert len(reading.conversations) == 1
