"""An OpenAI-compatible endpoint on 127.0.0.1 whose answers are a function of yours.

For tests of extraction without a model: it speaks the protocol of chat completions, and whatever
else you make it answer: errors, limits, rubbish, nothing at all. Standard library only.

    with ModelServer(lambda asked: Reply.facts([...])) as server:
        settings = Settings(extractor="openai", model="any", model_base_url=server.url)
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Asked:
    """One request: its body, its number (1 is the first) and when it came."""

    body: Mapping[str, Any]
    number: int
    at: float

    @property
    def form(self) -> str:
        """How the answer is wanted: `schema`, `tool` or `plain`."""
        if self.body.get("tools"):
            return "tool"
        return "schema" if self.body.get("response_format") else "plain"

    @property
    def text(self) -> str:
        """All messages, one after the other."""
        return "\n".join(str(message.get("content")) for message in self.body["messages"])

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The turns that were shown by afterturn's own service."""
        shown = str(self.body["messages"][1]["content"]).splitlines()
        return [json.loads(line) for line in shown if line.startswith('{"turn":')]


@dataclass(frozen=True)
class Reply:
    """What to answer. `hangs`: nothing, until the server is closed."""

    content: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    hangs: bool = False
    raw: bytes | None = None
    finish_reason: str = "stop"
    message: Mapping[str, Any] = field(default_factory=dict)
    prompt_tokens: int | None = None
    completion_tokens: int = 10

    @classmethod
    def facts(cls, facts: Sequence[Mapping[str, Any]], **options: Any) -> Self:
        """A good answer with these facts."""
        return cls(json.dumps({"facts": list(facts)}), **options)


Script = Callable[[Asked], Reply]


class ModelServer:
    """The endpoint; `script` may be changed while it runs. Use it as a context manager."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        """What a client takes as its base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, body: Mapping[str, Any]) -> tuple[int, Mapping[str, str], bytes] | None:
        with self._lock:
            asked = Asked(body, len(self.asked) + 1, time.monotonic())
            self.asked.append(asked)
        reply = self.script(asked)
        if self._closing.wait(None if reply.hangs else reply.seconds) or reply.hangs:
            return None
        if reply.raw is not None:
            return reply.status, reply.headers, reply.raw
        answer = _completion(asked, reply) if reply.status == 200 else _error(reply)
        return reply.status, reply.headers, json.dumps(answer).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512


def _completion(asked: Asked, reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if asked.form == "tool":
        name = asked.body["tools"][0]["function"]["name"]
        call = {"name": name, "arguments": reply.content}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": call}],
        }
    sent = reply.prompt_tokens if reply.prompt_tokens is not None else len(asked.text) // 4
    return {
        "id": f"chatcmpl-{asked.number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": asked.body.get("model"),
        "choices": [
            {
                "index": 0,
                "finish_reason": reply.finish_reason,
                "message": {**message, **reply.message},
            }
        ],
        "usage": {
            "prompt_tokens": sent,
            "completion_tokens": reply.completion_tokens,
            "total_tokens": sent + reply.completion_tokens,
        },
    }


def _error(reply: Reply) -> dict[str, Any]:
    return {"error": {"message": reply.content, "type": "error", "code": reply.status}}


def _handler(server: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            answer = server._answer(json.loads(self.rfile.read(length) or b"{}"))
            if answer is None:
                self.close_connection = True
                return
            status, headers, body = answer
            self.send_response(status)
            for name, value in {"content-type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: what is asked is nobody's to log."""

    return Handler
