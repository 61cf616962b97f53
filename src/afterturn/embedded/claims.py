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

    @contextmanager
    def adding(self, names: Iterable[ServerName], deadline: float) -> Iterator[None]:
        """Claim the servers for one use; when the block fails, all is as it was before."""
        added: list[ServerName] = []
        try:
            self._add(names, deadline, added)
            yield
        except OSError as error:
            self.drop(added)
            raise MemoryUnavailable(
                "The home of the embedded servers failed while they were started",
                detail=f"{self._home.path}: {error.strerror}",
            ) from None
        except BaseException:
            self.drop(added)
            raise
        self.uses += 1

    def _add(self, names: Iterable[ServerName], deadline: float, added: list[ServerName]) -> None:
        for name in names:
            held = self._held.get(name)
            if held is not None and held.is_current():
                continue
            claim = self._home.claim(name)
            if not claim.acquire(deadline, shared=True):
                raise MemoryUnavailable(
                    "The embedded servers cannot be claimed",
                    detail=f"{claim.path} stays locked",
                    hint="Their supervisor may be suspended; let it continue, or stop it.",
                )
            self.drop([name])  # one on a file that was removed since
            self._held[name] = claim
            added.append(name)

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
