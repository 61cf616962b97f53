# mypy: ignore-errors
"""mem0 (open source, embedded): `delete_all` 150 ms into the model call of `add`; then look.

Run by `bench/erase_race.py` in an environment that has `mem0ai`. Prints one line of JSON.
"""

import argparse
import importlib.metadata
import json
import os
import tempfile
import threading
import time

from stub_model import Stub

parser = argparse.ArgumentParser()
parser.add_argument("--trials", type=int, default=20)
options = parser.parse_args()

folder = tempfile.mkdtemp(dir=os.environ.get("MEM0_DIR"))
os.environ.setdefault("OPENAI_API_KEY", "x")
os.environ.setdefault("MEM0_TELEMETRY", "False")
os.environ.setdefault("MEM0_DIR", folder)

from mem0 import Memory  # noqa: E402

stub = Stub(0.5)
endpoint = {"openai_base_url": stub.url}
memory = Memory.from_config(
    {
        "llm": {"provider": "openai", "config": {"model": "gpt-4o-mini", **endpoint}},
        "embedder": {
            "provider": "openai",
            "config": {"model": "text-embedding-3-small", **endpoint},
        },
        "vector_store": {
            "provider": "qdrant",
            "config": {
                "path": f"{folder}/vectors",
                "collection_name": "m",
                "embedding_model_dims": 1536,
            },
        },
        "history_db_path": f"{folder}/history.db",
    }
)


def held(user):
    """Everything that mem0 says it holds of the user."""
    try:
        found = memory.get_all(filters={"user_id": user})
    except TypeError:
        found = memory.get_all(user_id=user)
    return [each["memory"] for each in (found["results"] if isinstance(found, dict) else found)]


back = errors = control = 0
for number in range(options.trials):
    user, mark = f"user{number}", f"MARK-race{number}x"
    raised = []

    def add(user=user, mark=mark, raised=raised):
        said = f"Please remember that my code word is {mark}, kept in the shed."
        try:
            memory.add([{"role": "user", "content": said}], user_id=user)
        except Exception as error:  # noqa: BLE001 - counted
            raised.append(repr(error))

    stub.started.clear()
    adding = threading.Thread(target=add)
    adding.start()
    stub.started.wait(10)
    time.sleep(0.15)
    memory.delete_all(user_id=user)
    adding.join()
    errors += bool(raised)
    back += any(mark in text for text in held(user))
    # The same without an erase: proof that it would be there.
    stub.seconds = 0.0
    add(user=f"control{number}")
    control += any(mark in text for text in held(f"control{number}"))
    stub.seconds = 0.5

print(
    json.dumps(
        {
            "version": importlib.metadata.version("mem0ai"),
            "trials": options.trials,
            "back": back,
            "errors": errors,
            "there without an erase": control,
        }
    )
)
