"""Locks on files that the kernel frees when their holder is gone, also by kill -9.

A lock belongs to the process that took it. A forked child would share it, so every `FileLock` of
this process is dropped in the child right after the fork; the parent's stays.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from pathlib import Path

_POLL_SECONDS = 0.01


class FileLock:
    """An advisory lock on `path`: shared by many or exclusive for one; not reentrant."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd is not None

    def try_acquire(self, *, shared: bool = False) -> bool:
        """Take the lock if that is possible at once. Raises `OSError` when the file cannot be."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        _HELD.add(self)
        return True

    def acquire(self, deadline: float, *, shared: bool = False) -> bool:
        """Wait for the lock until `deadline` (of `time.monotonic`); False when it passed."""
        while not self.try_acquire(shared=shared):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def release(self) -> None:
        """Give the lock back; nothing happens when it is not held."""
        fd, self._fd = self._fd, None
        _HELD.discard(self)
        if fd is not None:
            os.close(fd)

    def is_current(self) -> bool:
        """Whether the file that is locked still is the one at `path`."""
        if self._fd is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._fd), self.path.stat())
        except OSError:
            return False


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock at `path` exclusively; never creates the file."""
    if not path.exists():
        return False
    probe = FileLock(path)
    if not probe.try_acquire(shared=True):
        return True
    probe.release()
    return False


_HELD: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _drop_in_child() -> None:
    for lock in list(_HELD):
        lock.release()  # closes the child's copy only


os.register_at_fork(after_in_child=_drop_in_child)
