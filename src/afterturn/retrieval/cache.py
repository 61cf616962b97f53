"""The entries a process holds: least recently used first out, bounded in bytes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeAlias

from afterturn.retrieval.entries import Entry

Owner: TypeAlias = Hashable
"""Whose entries they are: one database read with one embedder."""

IDLE_SECONDS_MAX: Final = 600.0
"""An entry that was not used for so long goes at the next use of any: erased text does not stay."""


class RetrievalCache:
    """Entries by owner and path. Threads and event loops may share one.

    An entry is served only when its label equals the numbers in the database at that moment, so
    a lost or an old entry costs time and nothing else. What was erased elsewhere is not served
    again, and leaves this process's memory when its path is read, or after `IDLE_SECONDS_MAX`
    without.
    """

    def __init__(self, bytes_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_max = bytes_max
        self._clock = clock
        self._bytes = 0
        self._entries: OrderedDict[tuple[Owner, str], tuple[Entry, int, float]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def bytes_max(self) -> int:
        """The bound."""
        return self._bytes_max

    @property
    def nbytes(self) -> int:
        """Estimated bytes held, never more than the bound."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> list[Entry]:
        """What is held now, for whoever wants to know how large it is."""
        with self._lock:
            return [entry for entry, _, _ in self._entries.values()]

    def peek(self, owner: Owner, paths: Sequence[str]) -> list[Entry] | None:
        """The entries of these paths if all are there; it does not count as use."""
        with self._lock:
            found = [self._entries.get((owner, path)) for path in paths]
        held = [each[0] for each in found if each is not None]
        return held if len(held) == len(paths) else None

    def get(self, owner: Owner, paths: Sequence[str]) -> list[Entry | None]:
        """The entries of these paths, `None` where there is none; they count as used."""
        now = self._clock()
        with self._lock:
            found: list[Entry | None] = []
            for path in paths:
                held = self._entries.pop((owner, path), None)
                if held is not None:
                    self._entries[owner, path] = (held[0], held[1], now)
                found.append(held[0] if held else None)
            while self._entries:
                oldest, (_, _, used) = next(iter(self._entries.items()))
                if now - used <= IDLE_SECONDS_MAX:
                    break
                self._discard(oldest)
            return found

    def put(self, owner: Owner, entry: Entry) -> bool:
        """Keep an entry in place of the path's former one; the least recently used give way.

        False when it alone is larger than the bound: it is not kept.
        """
        size = entry.nbytes
        with self._lock:
            self._discard((owner, entry.path))
            if size > self._bytes_max:
                return False
            self._entries[owner, entry.path] = (entry, size, self._clock())
            self._bytes += size
            while self._bytes > self._bytes_max:
                self._discard(next(iter(self._entries)))
            return True

    def discard(self, owner: Owner, path: str) -> None:
        """Let go of a path's entry, if there is one."""
        with self._lock:
            self._discard((owner, path))

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    def _discard(self, key: tuple[Owner, str]) -> None:
        held = self._entries.pop(key, None)
        if held is not None:
            self._bytes -= held[1]
