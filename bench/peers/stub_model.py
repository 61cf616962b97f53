# mypy: ignore-errors
"""An OpenAI-compatible model on loopback whose chat calls take half a second.

Standard library only: it runs in the peers' environments. Embeddings are bags of hashed words; a
chat call answers with every `MARK-…` word of the newest messages as a fact, the way mem0 asks.
"""

import hashlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MARK = re.compile(r"MARK-[A-Za-z0-9]+")


class Stub:
    """The server; `started` is set when a chat call has begun."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.started = threading.Event()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length) or b"{}")
                embeds = self.path.endswith("/embeddings")
                answer = stub.embeddings(body) if embeds else stub.chat(body)
                data = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def chat(self, body):
        prompt = "\n".join(_text(m.get("content")) for m in body.get("messages", []))
        self.started.set()
        time.sleep(self.seconds)
        # As a good model does: only what the newest messages say, not the history shown with it.
        if "## New Messages" in prompt:
            prompt = prompt.rsplit("## New Messages", 1)[1].split("## Observation Date")[0]
        marks = list(dict.fromkeys(MARK.findall(prompt)))
        facts = [f"The user keeps the code word {mark} in the garden shed" for mark in marks]
        answer = {
            "memory": [
                {"id": str(i), "text": f, "attributed_to": "user"} for i, f in enumerate(facts)
            ],
            "facts": facts,
        }
        message = {"role": "assistant", "content": json.dumps(answer)}
        return {
            "id": "stub", "object": "chat.completion", "created": int(time.time()),
            "model": body.get("model", "stub"),
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }  # fmt: skip

    def embeddings(self, body):
        given = body.get("input")
        texts = [given] if isinstance(given, str) else list(given)
        size = int(body.get("dimensions") or 1536)
        data = [
            {"object": "embedding", "index": i, "embedding": _vector(str(text), size)}
            for i, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return {"object": "list", "data": data, "model": body.get("model", "stub"), "usage": usage}


def _text(content):
    if isinstance(content, str):
        return content
    return "\n".join(_text(part.get("text")) for part in content or [] if isinstance(part, dict))


def _vector(text, size):
    vector = [0.0] * size
    for word in re.findall(r"[\w-]+", text.lower()) or ["empty"]:
        digest = hashlib.sha256(word.encode()).digest()
        for at in range(0, 8, 2):
            vector[int.from_bytes(digest[at : at + 2], "big") % size] += 1.0
    length = sum(value * value for value in vector) ** 0.5
    return [value / length for value in vector]
