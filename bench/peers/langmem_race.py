# mypy: ignore-errors
"""LangMem's store manager over LangGraph's store: every item deleted 150 ms into its model call.

Run by `bench/erase_race.py` in an environment that has langmem, langgraph and langchain. Prints one
line of JSON.
"""

import argparse
import importlib.metadata
import json
import re
import threading
import time
import uuid

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.store.memory import InMemoryStore
from langmem import create_memory_store_manager

parser = argparse.ArgumentParser()
parser.add_argument("--trials", type=int, default=20)
options = parser.parse_args()

started = threading.Event()
pace = {"seconds": 0.5}


class SlowModel(BaseChatModel):
    """Keeps every `MARK-…` word it is shown."""

    @property
    def _llm_type(self):
        return "stub"

    def bind_tools(self, *_, **__):
        return self

    def _generate(self, messages, *_, **__):
        started.set()
        text = "\n".join(str(message.content) for message in messages)
        time.sleep(pace["seconds"])
        calls = [
            {"name": "Memory", "args": {"content": f"Code word {mark}"}, "id": str(uuid.uuid4())}
            for mark in dict.fromkeys(re.findall(r"MARK-\w+", text))
        ]
        message = AIMessage(content="", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


def embed(texts):
    """Bags of words by length: enough to search with."""
    return [[float(len(text) % 7)] * 8 for text in texts]


store = InMemoryStore(index={"dims": 8, "embed": embed})
manager = create_memory_store_manager(SlowModel(), namespace=("memories", "{user}"), store=store)


def held(user):
    """Everything in the user's namespace."""
    return [str(item.value) for item in store.search(("memories", user), limit=1000)]


back = errors = control = 0
for number in range(options.trials):
    user, mark = f"user{number}", f"MARK-race{number}x"
    raised = []

    def work(user=user, mark=mark, raised=raised):
        said = {"messages": [{"role": "user", "content": f"Remember my code word {mark}"}]}
        try:
            manager.invoke(said, config={"configurable": {"user": user}})
        except Exception as error:  # noqa: BLE001 - counted
            raised.append(repr(error))

    started.clear()
    working = threading.Thread(target=work)
    working.start()
    started.wait(10)
    time.sleep(0.15)
    for item in store.search(("memories", user), limit=1000):
        store.delete(("memories", user), item.key)
    working.join()
    errors += bool(raised)
    back += any(mark in text for text in held(user))
    pace["seconds"] = 0.0
    work(user=f"control{number}")
    control += any(mark in text for text in held(f"control{number}"))
    pace["seconds"] = 0.5

print(
    json.dumps(
        {
            "version": importlib.metadata.version("langmem"),
            "trials": options.trials,
            "back": back,
            "errors": errors,
            "there without an erase": control,
        }
    )
)
