"""Whether a server answers on its socket. A pid proves nothing: a zombie has one too."""

from __future__ import annotations

import socket
from pathlib import Path

_TIMEOUT_SECONDS = 2.0
_STARTUP = b"\x00\x03\x00\x00user\x00postgres\x00database\x00postgres\x00\x00"  # protocol 3.0
_TERMINATE = b"X\x00\x00\x00\x04"
_TOO_MANY_CONNECTIONS = b"C53300\x00"  # an SQLSTATE field: full, so very much alive


def postgres_answers(path: Path | str) -> bool:
    """Whether PostgreSQL lets a session begin: it is past recovery and not shutting down."""
    hello = (len(_STARTUP) + 4).to_bytes(4, "big") + _STARTUP + _TERMINATE
    answer = _exchange(path, hello)
    return answer.startswith(b"R") or (answer.startswith(b"E") and _TOO_MANY_CONNECTIONS in answer)


def valkey_answers(path: Path | str) -> bool:
    """Whether Valkey or Redis has loaded its data and serves commands."""
    return _exchange(path, b"PING\r\n", until=b"\r\n").startswith(b"+PONG")


def _exchange(path: Path | str, message: bytes, until: bytes | None = None) -> bytes:
    """What the peer says to `message` until it hangs up, or until it has said `until`."""
    answer = b""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT_SECONDS)
            connection.connect(str(path))
            connection.sendall(message)
            while part := connection.recv(4096):
                answer += part
                if until is not None and until in answer:
                    break
    except OSError:
        pass  # what came before the error may be an answer already
    return answer
