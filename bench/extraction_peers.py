"""The same turns through mem0 or LangMem; run by extraction.py in an environment that has them.

    python bench/extraction_peers.py mem0|langmem SERVER_URL TURNS

The server counts calls and tokens; this prints the caller's median seconds per turn.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

DIMENSIONS = 64
Turn = list[dict[str, str]]


def mem0(url: str, folder: str) -> Callable[[Turn, str], object]:
    """`Memory.add` with an embedded vector store."""
    os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": folder, "OPENAI_API_KEY": "k"}
    model = {"model": "gpt-4o-mini", "openai_base_url": url}
    embedder = {"model": "text-embedding-3-small", "openai_base_url": url}
    store = {"path": f"{folder}/v", "collection_name": "m", "embedding_model_dims": DIMENSIONS}
    memory = importlib.import_module("mem0").Memory.from_config(
        {
            "llm": {"provider": "openai", "config": model},
            "embedder": {
                "provider": "openai",
                "config": embedder | {"embedding_dims": DIMENSIONS},
            },
            "vector_store": {"provider": "faiss", "config": store},
            "history_db_path": f"{folder}/history.db",
        }
    )
    return lambda turn, user: memory.add(turn, user_id=user)


def langmem(url: str, _folder: str) -> Callable[[Turn, str], object]:
    """`create_memory_store_manager` on LangGraph's store in memory."""
    chat = importlib.import_module("langchain_openai").ChatOpenAI
    memories = importlib.import_module("langgraph.store.memory").InMemoryStore
    made = importlib.import_module("langmem").create_memory_store_manager(
        chat(model="gpt-4o-mini", base_url=url, api_key="k"),
        namespace=("memories", "{user}"),
        store=memories(index={"dims": DIMENSIONS, "embed": _vectors}),
    )

    def add(turn: Turn, user: str) -> Any:
        return made.invoke({"messages": turn}, config={"configurable": {"user": user}})

    return add


def _vectors(texts: list[str]) -> list[list[float]]:
    return [[float(hash((text, at)) % 97) for at in range(DIMENSIONS)] for text in texts]


def main() -> None:
    name, url, turns, query, answer = sys.argv[1:]
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        add = {"mem0": mem0, "langmem": langmem}[name](url, folder)
        for number in range(int(turns)):
            mark = f"burst-{number}"
            turn = [
                {"role": "user", "content": query.format(mark=mark)},
                {"role": "assistant", "content": answer.format(mark=mark)},
            ]
            start = time.perf_counter()
            add(turn, f"user-{number % 4}")
            taken.append(time.perf_counter() - start)
    print(json.dumps(statistics.median(taken)))


if __name__ == "__main__":
    main()
