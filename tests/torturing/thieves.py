"""Thieves at the broker: they take rings as a worker would, and lose them or double them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import redis

from afterturn.jobs.broker import KEY_PREFIX
from afterturn.jobs.names import ALL_QUEUES

_HANDS: Final = 4  # Redis serves who waits longest, so several take their share
_KEYS: Final = [f"{KEY_PREFIX}{name}" for name in ALL_QUEUES]


class Thief:
    """Takes rings for some seconds. Doubled ones come back twice, late and in another order."""

    def __init__(self, broker_url: str, seconds: float, *, doubles: bool) -> None:
        self._broker_url = broker_url
        self._until = time.monotonic() + seconds
        self._doubles = doubles
        self._taken: list[Any] = []  # (queue, message)
        self._hands = [threading.Thread(target=self._take, daemon=True) for _ in range(_HANDS)]
        for hand in self._hands:
            hand.start()

    def finish(self) -> int:
        """Wait for the end and give back what is due; how many were taken."""
        for hand in self._hands:
            hand.join()
        if self._doubles:
            with self._client() as client:
                for key, message in reversed(self._taken * 2):
                    client.lpush(key, message)
        return len(self._taken)

    def _take(self) -> None:
        while time.monotonic() < self._until:
            with self._client() as client:
                while time.monotonic() < self._until:
                    if (found := client.brpop(_KEYS, timeout=0.2)) is not None:
                        self._taken.append(found)
            time.sleep(0.1)

    @contextlib.contextmanager
    def _client(self) -> Iterator[redis.Redis]:
        """A connection; the broker may be gone at any moment, and then there is nothing to do."""
        with (
            contextlib.suppress(redis.RedisError, OSError),
            redis.Redis.from_url(
                self._broker_url, socket_timeout=3, socket_connect_timeout=1
            ) as client,
        ):
            yield client
