"""What this process has asked for, home by home."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from afterturn.embedded.home import Home, ServerName
from afterturn.embedded.locks import FileLock
from afterturn.errors import MemoryUnavailable


class Claims:
    """The claims of this process on one home; `uses` counts its unreturned `ensure` calls."""

    def __init__(self, home: Home) -> None:
        self.uses = 0
        self.mutex = threading.Lock()
        self._home = home
        self._held: dict[ServerName, FileLock] = {}

    def add(self, names: Iterable[ServerName], deadline: float) -> list[ServerName]:
        """Claim the servers; the ones that were not claimed before are returned."""
        added: list[ServerName] = []
        for name in names:
            held = self._held.get(name)
            if held is not None and held.is_current():
                continue
            claim = self._home.claim(name)
            if not claim.acquire(deadline, shared=True):
                self.drop(added)
                raise MemoryUnavailable(
                    "The embedded servers cannot be claimed",
                    detail=f"{claim.path} stays locked",
                    hint="Their supervisor may be suspended; let it continue, or stop it.",
                )
            self.drop([name])  # one on a file that was removed since
            self._held[name] = claim
            added.append(name)
        return added

    def drop(self, names: Iterable[ServerName]) -> None:
        """Give some back."""
        for name in names:
            claim = self._held.pop(name, None)
            if claim is not None:
                claim.release()

    def drop_all(self) -> None:
        """Give all back."""
        self.drop(list(self._held))


class _Registry:
    """Every home that this process has used; empty again in a forked child."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._mutex = threading.Lock()
        self._claims: dict[Path, Claims] = {}

    @contextmanager
    def of(self, home: Home) -> Iterator[Claims]:
        """The claims on `home`, for one thread at a time."""
        with self._mutex:
            claims = self._claims.setdefault(home.path, Claims(home))
        with claims.mutex:
            yield claims


CLAIMS = _Registry()
os.register_at_fork(after_in_child=CLAIMS.reset)
