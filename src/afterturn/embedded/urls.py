"""The three ways in which a unix socket is written."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit


def postgres_url(directory: Path) -> str:
    """For asyncpg: the server whose socket lies in `directory`."""
    return f"postgresql://postgres@/postgres?host={directory}&port=5432"


def celery_url(socket: Path, database: int = 0) -> str:
    """For Celery and Flower."""
    return f"redis+socket://{socket}?virtual_host={database}"


def redis_client_url(broker_url: str) -> str:
    """The URL that redis-py wants for a broker URL of Celery's.

    `redis+socket:///PATH?virtual_host=N` becomes `unix:///PATH?db=N`; others (`redis://`,
    `rediss://`, `unix://`) are returned as they are.
    """
    parts = urlsplit(broker_url)
    if parts.scheme not in {"redis+socket", "socket"}:
        return broker_url
    query = [
        ("db" if key == "virtual_host" else key, value)
        for key, value in parse_qsl(parts.query, keep_blank_values=True)
    ]
    suffix = f"?{urlencode(query)}" if query else ""
    return f"unix://{parts.netloc}{parts.path}{suffix}"
