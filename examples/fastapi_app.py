"""An asynchronous web app with memory: FastAPI and `Memory`.

python examples/fastapi_app.py                                       # on http://127.0.0.1:8000
uvicorn --app-dir examples fastapi_app:app --workers 4               # the same for many at once

    curl -X POST localhost:8000/users/alice/messages -H 'content-type: application/json' \
        -d '{"text": "I am a vegetarian.", "session": "c-1"}'
    curl -X DELETE localhost:8000/users/alice

Turns are processed by the fleet: start `afterturn up` beside it.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from afterturn import Memory, MemoryScope
from afterturn.errors import MemoryContractError, MemoryUnavailable


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One memory a process, open for as long as it serves."""
    async with Memory() as memory:
        app.state.memory = memory
        yield


app = FastAPI(lifespan=lifespan)


class Message(BaseModel):
    """What a user says."""

    text: str
    session: str | None = None


def memory_of(request: Request) -> Memory:
    """The memory of this process."""
    memory: Memory = request.app.state.memory
    return memory


Remembering = Annotated[Memory, Depends(memory_of)]


@app.post("/users/{user}/messages")
async def message(user: str, said: Message, memory: Remembering) -> dict[str, Any]:
    """Answer a message, and hand the turn over."""
    scope = MemoryScope.of("fastapi", user)
    async with memory.turn(scope, session=said.session, on_unavailable="degrade") as turn:
        found = await turn.retrieve(said.text, limit=5)
        answer = model(found.render(), said.text)
        ticket = await turn.finish(query=said.text, answer=answer)
    return {
        "answer": answer,
        "remembered": [each.record.text for each in found.memories],
        "degraded": list(found.degraded),
        "handed_over": ticket.status,
    }


@app.delete("/users/{user}")
async def forget(user: str, memory: Remembering) -> dict[str, Any]:
    """Erase a user for good; the answer is the receipt."""
    receipt = await memory.forget(MemoryScope.of("fastapi", user), requested_by=user)
    return {"erased": receipt.counts, "log_entry": receipt.log_head}


@app.exception_handler(MemoryContractError)
async def refused(_request: Request, error: MemoryContractError) -> JSONResponse:
    """What cannot be honoured as it was put: the message names what to change."""
    return JSONResponse({"error": str(error)}, 400)


@app.exception_handler(MemoryUnavailable)
async def unavailable(_request: Request, error: MemoryUnavailable) -> JSONResponse:
    """Try again later."""
    return JSONResponse({"error": str(error)}, 503)


def model(memories: str, text: str) -> str:
    """Stands in for your model: it says how much it was reminded of."""
    return f"I remember {memories.count('- [')} things about that." if "?" in text else "I see."


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
