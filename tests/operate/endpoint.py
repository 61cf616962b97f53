"""An HTTP endpoint that writes down what it is asked and answers as a model or embedder would."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Endpoint:
    """What was asked: the bodies and keys in order, and how many at a time at most."""

    url: str
    delay_seconds: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    at_once_max: int = 0


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    """One on loopback, for the length of the block."""
    lock, running = threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                running[0] += 1
                seen.at_once_max = max(seen.at_once_max, running[0])
                seen.bodies.append(body)
                seen.keys.append(self.headers.get("authorization", ""))
            time.sleep(seen.delay_seconds)
            answer = json.dumps(_answer(body)).encode()
            with lock:
                running[0] -= 1
            try:
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
            except OSError:
                pass  # it was not waited for

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    seen = Endpoint(f"http://127.0.0.1:{server.server_address[1]}/v1")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(body: dict[str, Any]) -> dict[str, Any]:
    if "input" in body:
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = [
            {"object": "embedding", "index": at, "embedding": [1.0, 0.0, 0.0]}
            for at in range(len(texts))
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return {"object": "list", "data": data, "model": body["model"], "usage": usage}
    message = {"role": "assistant", "content": '{"facts": []}'}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
