"""A look at the broker: does it answer, and how many workers listen to it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afterturn.settings import Settings


@dataclass(frozen=True)
class BrokerView:
    """What was seen. `workers` is None when it is not known, `version` empty likewise."""

    reachable: bool
    version: str = ""
    workers: int | None = None


def look_at_broker(url: str, settings: Settings) -> BrokerView:
    """Ask the broker; never raises, and waits twice its timeout at most.

    Workers are counted by their subscriptions: each is subscribed to the channel of Celery's
    remote control.
    """
    import redis

    from afterturn.embedded.urls import redis_client_url

    wait = settings.broker_timeout_seconds
    try:
        with redis.Redis.from_url(
            redis_client_url(url), socket_timeout=wait, socket_connect_timeout=wait
        ) as client:
            return _asked(client)
    except (redis.RedisError, OSError, ValueError):
        return BrokerView(reachable=False)


async def workers_seen(url: str, settings: Settings) -> bool:
    """Whether a worker is connected; False when the broker does not answer."""
    view = await asyncio.to_thread(look_at_broker, url, settings)
    return bool(view.workers)


def _asked(client: Any) -> BrokerView:
    info: dict[str, Any] = client.info("server")
    version = info.get("valkey_version") or info.get("redis_version") or ""
    workers: int | None = None
    with contextlib.suppress(Exception):
        workers = _subscribed(client)
    return BrokerView(True, str(version), workers)


def _subscribed(client: Any) -> int:
    channels = client.pubsub_channels("afterturn:*celery.pidbox")
    return sum(count for _, count in client.pubsub_numsub(*channels)) if channels else 0
