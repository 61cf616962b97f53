"""The block of memories that goes into a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from afterturn.queries import RetrievedMemory


def render_memories(memories: Sequence[RetrievedMemory]) -> str:
    """One delimited block; empty for no memories."""
    return ""
