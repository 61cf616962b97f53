"""What the two ends of the queue must agree on, and how each end treats the broker.

Only Redis and Valkey are meant. Nothing here imports Celery: a calling process reads this module,
and its first import of Celery happens on the publisher's thread.

The two ends wait differently. A producer gives up within a fraction of a second, because a lost
ring costs one sweep; a worker holds on, because it has nothing else to do.
"""

from __future__ import annotations

import ssl
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

from afterturn.jobs.names import ALL_QUEUES, RECORD_QUEUE
from afterturn.settings import Settings

KEY_PREFIX: Final = "afterturn:"
"""In front of every key, so that a database shared with others stays legible."""

APP_LOADER: Final = "celery.loaders.app:AppLoader"
"""Named outright: otherwise CELERY_LOADER of the host application would be obeyed."""

_EXCHANGE: Final = "afterturn"


def celery_url(url: str) -> str:
    """The broker's URL as Celery spells it: `unix://PATH?db=N` is `redis+socket://` there."""
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return url
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    if "db" in query:
        query["virtual_host"] = query.pop("db")
    account = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return f"redis+socket://{account}{parts.path}" + (f"?{urlencode(query)}" if query else "")


def shared_settings(broker_url: str) -> dict[str, Any]:
    """Celery settings of both ends: JSON only, our own queues, no results anywhere."""
    settings: dict[str, Any] = {
        "broker_url": celery_url(broker_url),
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "result_accept_content": ["json"],
        "task_ignore_result": True,
        "result_backend": None,
        "result_expires": None,
        "task_create_missing_queues": False,
        "task_queues": {
            name: {"exchange": _EXCHANGE, "exchange_type": "direct", "routing_key": name}
            for name in ALL_QUEUES
        },
        "task_default_queue": RECORD_QUEUE,
        "task_default_exchange": _EXCHANGE,
        "task_default_routing_key": RECORD_QUEUE,
        "task_publish_retry": False,
        "timezone": "UTC",
        "enable_utc": True,
    }
    if urlsplit(broker_url).scheme == "rediss":
        # Without this the client only warns and talks in clear; `?ssl_…=` in the URL overrides it.
        settings["broker_use_ssl"] = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    return settings


def producer_settings(broker_url: str, settings: Settings) -> dict[str, Any]:
    """Celery settings of a calling process: bounded in four places, none of them is enough alone.

    Without socket timeouts a frozen broker blocks for ever; without `max_retries` the connection
    is tried for six seconds even though the publish itself is not repeated.
    """
    wait = settings.broker_timeout_seconds
    return shared_settings(broker_url) | {
        "broker_pool_limit": 1,
        "broker_connection_timeout": wait,
        "broker_connection_retry": False,
        "broker_transport_options": {
            "global_keyprefix": KEY_PREFIX,
            "socket_timeout": wait,
            "socket_connect_timeout": wait,
            "retry_on_timeout": False,
            "max_retries": 0,
            "interval_start": 0,
            "interval_step": 0,
            "interval_max": 0,
            "socket_keepalive": True,
            "health_check_interval": 25,
        },
    }


def worker_transport() -> dict[str, Any]:
    """Transport options of workers, beat and Flower.

    `socket_timeout` must exceed the one second of a blocking pop. Without emulated acks nothing
    is ever restored or delivered twice: a lost message is found by the sweep.
    """
    return {
        "global_keyprefix": KEY_PREFIX,
        "ack_emulation": False,
        "visibility_timeout": 600,
        "unacked_restore_interval": 10,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 30,
        "socket_timeout": 10,
        "socket_connect_timeout": 3,
        "socket_keepalive": True,
        "health_check_interval": 15,
    }
