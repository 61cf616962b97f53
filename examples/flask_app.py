"""A synchronous web app with memory: Flask and `BlockingMemory`.

python examples/flask_app.py                                        # on http://127.0.0.1:5000
gunicorn --chdir examples --preload -w 4 --threads 8 flask_app:app  # the same for many at once

    curl -X POST localhost:5000/users/alice/messages -H 'content-type: application/json' \
        -d '{"text": "I am a vegetarian.", "session": "c-1"}'
    curl -X DELETE localhost:5000/users/alice

Turns are processed by the fleet: start `afterturn up` beside it.
"""

import os
from typing import Any

from flask import Flask, request

from afterturn import BlockingMemory, MemoryScope
from afterturn.errors import MemoryContractError, MemoryUnavailable

app = Flask(__name__)

# One for all threads. It opens at its first use, so each process that gunicorn forks has its own
# connections, whether the application was loaded before the fork or after.
memory = BlockingMemory()


@app.post("/users/<user>/messages")
def message(user: str) -> dict[str, Any]:
    """Answer a message, and hand the turn over."""
    asked: dict[str, Any] = request.get_json()
    scope = MemoryScope.of("flask", user)
    with memory.turn(scope, session=asked.get("session"), on_unavailable="degrade") as turn:
        found = turn.retrieve(asked["text"], limit=5)
        answer = model(found.render(), asked["text"])
        ticket = turn.finish(query=asked["text"], answer=answer)
    return {
        "answer": answer,
        "remembered": [each.record.text for each in found.memories],
        "degraded": list(found.degraded),
        "handed_over": ticket.status,
        "process": os.getpid(),
    }


@app.delete("/users/<user>")
def forget(user: str) -> dict[str, Any]:
    """Erase a user for good; the answer is the receipt."""
    receipt = memory.forget(MemoryScope.of("flask", user), requested_by=user)
    return {"erased": receipt.counts, "log_entry": receipt.log_head}


@app.errorhandler(MemoryContractError)
def refused(error: MemoryContractError) -> tuple[dict[str, Any], int]:
    """What cannot be honoured as it was put: the message names what to change."""
    return {"error": str(error)}, 400


@app.errorhandler(MemoryUnavailable)
def unavailable(error: MemoryUnavailable) -> tuple[dict[str, Any], int]:
    """Try again later."""
    return {"error": str(error)}, 503


def model(memories: str, text: str) -> str:
    """Stands in for your model: it says how much it was reminded of."""
    return f"I remember {memories.count('- [')} things about that." if "?" in text else "I see."


if __name__ == "__main__":
    with memory:
        app.run(port=int(os.environ.get("PORT", "5000")), threaded=True)
