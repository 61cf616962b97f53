"""The `conversations.json` of a ChatGPT data export.

    [{"conversation_id": "…", "create_time": 1700000000.0, "current_node": "…",
      "mapping": {"<node>": {"message": {"author": {"role": "user"}, "create_time": …,
                                         "content": {"content_type": "text", "parts": ["…"]}},
                             "parent": "<node>", "children": ["<node>", …]}, …}}, …]

The nodes are a tree: each edit of a question and each repeated answer is a branch. What is taken is
the branch that the user last saw, from `current_node` up to the root; where that is missing, the
newest child is followed down. Turns are named by the node of their first message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from afterturn.importing.conversation import Conversation, Findings, Malformed, turn_id_of
from afterturn.importing.exchanges import Pairing, Spoken, role_of, text_of, time_of

_TEXT_CONTENTS: Final = frozenset({"text", "multimodal_text"})
_LEFT_OUT_CONTENTS: Final = {
    "code": "tool calls",
    "execution_output": "tool messages",
    "system_error": "tool messages",
    "tether_quote": "tool messages",
    "tether_browsing_display": "tool messages",
    "thoughts": "reasoning",
    "reasoning_recap": "reasoning",
    "user_editable_context": "system messages",
    "model_editable_context": "system messages",
}


def is_chatgpt(value: object) -> bool:
    """Whether this is a conversation of such an export."""
    return isinstance(value, dict) and isinstance(value.get("mapping"), dict)


def read_chatgpt(
    value: Mapping[str, Any], conversation_id: str, place: str, findings: Findings
) -> Conversation:
    """The conversation along its current branch. Raises `Malformed` where there is no tree."""
    nodes = value.get("mapping")
    if not isinstance(nodes, dict):
        raise Malformed(place, "it has no `mapping` of nodes")
    branch = _branch(nodes, value.get("current_node"))
    findings.left_out["messages of other branches"] += _said(nodes, set(nodes) - set(branch))
    pairing = Pairing(findings)
    ended = []
    for node_id in branch:
        spoken = _spoken(node_id, nodes[node_id], findings)
        if spoken is not None:
            ended.append(pairing.add(spoken))
    turns = [each for each in (*ended, pairing.rest()) if each]
    return Conversation(
        conversation_id,
        None,
        tuple(
            pairing.message(each, turn_id_of(conversation_id, each[0].message_id), None)
            for each in turns
        ),
    )


def _branch(nodes: Mapping[str, Any], current: object) -> list[str]:
    """The ids of the nodes that the user last saw, root first."""
    leaf = current if isinstance(current, str) and current in nodes else _newest_leaf(nodes)
    branch: list[str] = []
    seen: set[str] = set()
    while leaf is not None and leaf in nodes and leaf not in seen:
        seen.add(leaf)
        branch.append(leaf)
        parent = _field(nodes[leaf], "parent")
        leaf = parent if isinstance(parent, str) else None
    return branch[::-1]


def _newest_leaf(nodes: Mapping[str, Any]) -> str | None:
    """The end of the path of last children from the first root."""
    roots = (each for each, node in nodes.items() if _field(node, "parent") not in nodes)
    at = next(roots, None)
    seen: set[str] = set()
    while at is not None and at not in seen:
        seen.add(at)
        children = _field(nodes[at], "children")
        known = [c for c in children if c in nodes] if isinstance(children, list) else []
        if not known:
            return at
        at = known[-1]
    return at


def _spoken(node_id: str, node: object, findings: Findings) -> Spoken | None:
    """The message of a node, if it is one that a memory has use for."""
    message = _field(node, "message")
    if not isinstance(message, dict):
        return None  # the root and some others are empty by design
    if _is_hidden(message):
        findings.left_out["hidden messages"] += 1
        return None
    role = role_of(_field(message.get("author"), "role"), findings)
    if role is None:
        return None
    content = message.get("content")
    kind = _field(content, "content_type")
    if role == "assistant" and message.get("recipient", "all") not in ("all", None):
        findings.left_out["tool calls"] += 1
        return None
    if kind not in _TEXT_CONTENTS:
        known = _LEFT_OUT_CONTENTS.get(kind) if isinstance(kind, str) else None
        findings.left_out[known or "contents of another kind"] += 1
        return None
    text = text_of(_field(content, "parts"), findings)
    if not text.strip():
        findings.left_out["messages without text"] += 1
        return None
    return Spoken(role, text, node_id, time_of(message.get("create_time")))


def _is_hidden(message: Mapping[str, Any]) -> bool:
    if message.get("weight") == 0:
        return True
    return bool(_field(message.get("metadata"), "is_visually_hidden_from_conversation"))


def _said(nodes: Mapping[str, Any], others: set[str]) -> int:
    return sum(isinstance(_field(nodes[each], "message"), dict) for each in others)


def _field(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
