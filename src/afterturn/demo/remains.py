"""Looking for what an erase left behind, in everything that memory holds."""

from __future__ import annotations

from typing import Final

from afterturn.importing.conversation import Conversation
from afterturn.memory import Memory
from afterturn.records import MemoryRecord
from afterturn.scope import MemoryScope

_CHARACTERS_MIN: Final = 20
"""Shorter messages ("Good night!") may be said in any conversation."""


async def remains(memory: Memory, root: MemoryScope, erased: Conversation) -> tuple[int, int]:
    """How many turns and records under `root` were looked at, and how many hold erased text.

    A row counts as erased when it lies in the erased scope, was learned from it, or holds the
    text of one of its longer messages.
    """
    scope = root.child(erased.conversation_id)
    texts = [m.text.strip() for m in erased.messages if len(m.text.strip()) >= _CHARACTERS_MIN]
    looked = found = 0
    async for item in memory.export(root):
        looked += 1
        if isinstance(item, MemoryRecord):
            held = item.text
            origins = {item.scope_path, *(source.turn_path for source in item.sources)}
        else:
            held = f"{item.query or ''}\n{item.answer or ''}"
            origins = {item.scope_path}
        found += scope.path in origins or any(text in held for text in texts)
    return looked, found
