"""Looking for a word in files, and in a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

_BLOCK = 1 << 20


def files_with(folder: Path, word: str) -> list[str]:
    """The files under a folder that hold the word, as paths within it. They may go meanwhile."""
    needle = word.encode()
    found = []
    for path in sorted(folder.rglob("*")):
        try:
            if path.is_file() and not path.is_symlink() and any(_holds(path, needle)):
                found.append(str(path.relative_to(folder)))
        except FileNotFoundError:
            continue
    return found


def _holds(path: Path, needle: bytes) -> Iterator[bool]:
    rest = b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            yield needle in rest + block
            rest = block[-len(needle) :]


def keys_with(client: redis.Redis, word: str) -> list[str]:
    """The keys of a broker whose name or content (as dumped) holds the word."""
    found = []
    keys: Any = client.keys("*")
    for key in keys:
        dumped: Any = client.dump(key)
        if word.encode() in key or word.encode() in (dumped or b""):
            found.append(repr(key))
    return found
