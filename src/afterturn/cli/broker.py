"""A look at the broker: does it answer, and how many rings wait there unread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afterturn.settings import Settings


@dataclass(frozen=True)
class BrokerView:
    """What was seen. `rings` is the length of each queue; one that grows has no worker."""

    reachable: bool
    version: str = ""
    rings: dict[str, int] = field(default_factory=dict)


def look_at_broker(url: str, settings: Settings) -> BrokerView:
    """Ask the broker; never raises, and waits a few times its timeout at most."""
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


def _asked(client: Any) -> BrokerView:
    from afterturn.jobs.broker import KEY_PREFIX
    from afterturn.jobs.names import ALL_QUEUES

    info: dict[str, Any] = client.info("server")
    version = info.get("valkey_version") or info.get("redis_version") or ""
    rings = {name.rpartition(".")[2]: client.llen(KEY_PREFIX + name) for name in ALL_QUEUES}
    return BrokerView(True, str(version), rings)
