"""Model calls per turn, and what a hung call costs others, with a scripted model server.

    python bench/extraction.py [--turns 1000] [--scopes 50] [--peers] [--json]

Needs `afterturn[embedded,openai]`. Starts the whole fleet on embedded servers of its own and a
model that answers after 150 ms. Measured: calls per turn of a burst (every scope's turns at once),
calls per turn on an idle system (one turn after the other, each awaited), whether every fact names
its own turn and no other, and how long the turns of other scopes take while one call hangs beside
how long they take without. Exits 1 when one of them misses.

`--peers` shows mem0 and LangMem beside it, on the same machine and the same server: calls and
prompt tokens per turn, and the caller's seconds. It needs the Python of an environment in which
both are installed: `--peers-python`, else this one.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import re
import statistics
import struct
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from afterturn import Memory, MemoryScope, Settings, embedded
from afterturn.testing.model_server import Asked, ModelServer, Reply

# As a script: its neighbours are found from the checkout, the package where it is installed.
sys.path[0:1] = [str(Path(__file__).resolve().parents[1])]

from bench.stack import fleet, own_home  # noqa: E402

BURST_LIMIT = 0.25
HUNG_LIMIT_SECONDS = 5.0
MODEL_SECONDS = 0.15
IDLE_TURNS = 12
IN_FLIGHT = 16
PEER_TURNS = 40
DIMENSIONS = 64
ROOT = MemoryScope.of("bench")
QUERY = "My lucky number of the day is {mark}. I read it on the train to work this morning."
ANSWER = "Noted: {mark}. Anything else that I should remember about today?"
_FACTS = """
select m.text, array_agg(s.turn_id) as turns from afterturn.memories m
join afterturn.memory_sources s on s.path = m.path and s.record_id = m.record_id
where m.origin <> 'turn' group by m.path, m.record_id, m.text
"""


@dataclass
class Model:
    """What the scripted model was asked: calls and tokens of prompts."""

    calls: int = 0
    prompt_tokens: int = 0
    hung: list[str] = field(default_factory=list)

    def count(self, asked: Asked) -> None:
        """Everything that is sent costs: messages, schemas, tools; four characters a token."""
        self.calls += 1
        self.prompt_tokens += len(json.dumps(asked.body, ensure_ascii=False)) // 4

    def answer(self, asked: Asked) -> Reply:
        """A fact a turn; nothing at all where a turn says HANG."""
        self.count(asked)
        if "HANG" in asked.text:
            self.hung.append(asked.text)
            return Reply(hangs=True)
        facts = [
            {
                "text": f"The lucky number is {_mark(turn['user'])}",
                "turns": [turn["turn"]],
                "subject": None,
                "attribute": None,
                "layer": "episodic",
                "importance": 0.4,
            }
            for turn in asked.turns
        ]
        return Reply.facts(facts, seconds=MODEL_SECONDS)


def _mark(said: str) -> str:
    return said.partition(" is ")[2].partition(".")[0]


def extracting_fleet(home: Path, model_url: str) -> AbstractContextManager[object]:
    """The whole fleet, extracting with this model."""
    return fleet(
        home,
        embedder="none",
        extractor="openai",
        model="scripted",
        model_base_url=model_url,
        model_timeout_seconds=20,
    )


async def hand_over(memory: Memory, scope: MemoryScope, mark: str) -> float:
    """One turn; returns the caller's seconds."""
    start = time.perf_counter()
    async with memory.turn(scope, turn_id=mark) as turn:
        await turn.finish(QUERY.format(mark=mark), ANSWER.format(mark=mark))
    return time.perf_counter() - start


async def burst(memory: Memory, model: Model, turns: int, scopes: int) -> dict[str, float]:
    """All scopes' turns at once."""
    gate = asyncio.Semaphore(IN_FLIGHT)
    before = Model(model.calls, model.prompt_tokens)

    async def one(number: int) -> float:
        async with gate:
            scope = ROOT.child(f"user-{number % scopes}")
            return await hand_over(memory, scope, f"burst-{number}")

    start = time.perf_counter()
    callers = await asyncio.gather(*(one(number) for number in range(turns)))
    await memory.drain(ROOT, timeout=100)
    return {
        "burst_calls_per_turn": (model.calls - before.calls) / turns,
        "burst_prompt_tokens_per_turn": (model.prompt_tokens - before.prompt_tokens) / turns,
        "burst_turns_per_s": turns / (time.perf_counter() - start),
        "burst_caller_p50_ms": statistics.median(callers) * 1e3,
    }


async def idle(memory: Memory, model: Model) -> dict[str, float]:
    """One turn after the other, each waited for."""
    before = Model(model.calls, model.prompt_tokens)
    callers, waits = [], []
    scope = ROOT.child("idle")
    for number in range(IDLE_TURNS):
        start = time.perf_counter()
        callers.append(await hand_over(memory, scope, f"idle-{number}"))
        await memory.drain(scope, timeout=30)
        waits.append(time.perf_counter() - start)
    return {
        "idle_calls_per_turn": (model.calls - before.calls) / IDLE_TURNS,
        "idle_prompt_tokens_per_turn": (model.prompt_tokens - before.prompt_tokens) / IDLE_TURNS,
        "idle_caller_p50_ms": statistics.median(callers) * 1e3,
        "idle_extracted_p50_ms": statistics.median(waits) * 1e3,
    }


async def beside_a_hung_call(memory: Memory, model: Model, scopes: int) -> dict[str, float]:
    """Seconds until the turns of other scopes are extracted, without and with a hung call."""

    async def others(name: str) -> float:
        start = time.perf_counter()
        marks = [f"{name}-{number}" for number in range(scopes)]
        await asyncio.gather(*(hand_over(memory, ROOT.child(mark), mark) for mark in marks))
        await asyncio.gather(*(memory.drain(ROOT.child(mark), timeout=60) for mark in marks))
        return time.perf_counter() - start

    alone = await others("alone")
    await hand_over(memory, ROOT.child("hung"), "HANG")
    while not model.hung:
        await asyncio.sleep(0.01)
    beside = await others("beside")
    return {"others_alone_s": alone, "others_beside_hung_s": beside}


async def misattributed(url: str, turns: int) -> int:
    """Facts that do not rest on exactly their own turn, and turns without their fact."""
    database = await asyncpg.connect(url)
    rows = await database.fetch(_FACTS)
    await database.close()
    good = {row["turns"][0] for row in rows if len(row["turns"]) == 1
            and row["text"].endswith(f" {row['turns'][0]}")}  # fmt: skip
    return (len(rows) - len(good)) + (turns - len([turn for turn in good if "burst-" in turn]))


async def measure(home: Path, model: Model, turns: int, scopes: int) -> dict[str, float]:
    settings = Settings(home=home, extractor="none", embedder="none")
    async with Memory(settings) as memory:
        url = (await asyncio.to_thread(embedded.ensure, home)).database_url
        assert url is not None
        figures = await idle(memory, model)
        figures |= await burst(memory, model, turns, scopes)
        figures |= await beside_a_hung_call(memory, model, 10)
        figures["facts_not_of_their_own_turn"] = float(await misattributed(url, turns))
        await asyncio.to_thread(embedded.release, home)
    return figures


def misses(figures: dict[str, float]) -> list[str]:
    """What is beyond its limit."""
    good = {
        "burst_calls_per_turn": figures["burst_calls_per_turn"] <= BURST_LIMIT,
        "idle_calls_per_turn": figures["idle_calls_per_turn"] == 1.0,
        "facts_not_of_their_own_turn": figures["facts_not_of_their_own_turn"] == 0,
        "others_beside_hung_s": figures["others_beside_hung_s"]
        <= figures["others_alone_s"] + HUNG_LIMIT_SECONDS,
    }
    return [name for name, is_good in good.items() if not is_good]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1_000)
    parser.add_argument("--scopes", type=int, default=50)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--peers-python", default=sys.executable)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model = Model()
    with (
        own_home() as home,
        ModelServer(model.answer) as server,
        extracting_fleet(home, server.url),
    ):
        figures = asyncio.run(measure(home, model, options.turns, options.scopes))
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:28} {value:9.3f}")
    if options.peers:
        show_peers(options.peers_python, figures)
    missed = misses(figures)
    print(
        f"{figures['burst_calls_per_turn']:.3f} calls per turn in a burst (limit {BURST_LIMIT}), "
        f"{figures['idle_calls_per_turn']:.2f} on an idle system, "
        f"others beside a hung call {figures['others_beside_hung_s']:.1f} s "
        f"(alone {figures['others_alone_s']:.1f} s)",
        f"MISS: {', '.join(missed)}" if missed else "ok",
    )
    return 1 if missed else 0


class PeerModel(Model):
    """Answers embeddings, and each peer's question in its own form: a fact a turn."""

    def answer(self, asked: Asked) -> Reply:
        if "input" in asked.body:
            return _embeddings(asked)
        self.count(asked)
        shown = asked.text.rpartition("## New Messages")[2]  # mem0 shows what it holds before
        marks = list(dict.fromkeys(re.findall(r"burst-\d+", shown)))[-1:]
        texts = [f"The lucky number is {mark}" for mark in marks]
        if not asked.body.get("tools"):
            facts = [{"id": str(n), "text": text} for n, text in enumerate(texts)]
            return Reply(json.dumps({"memory": facts}), seconds=MODEL_SECONDS)
        calls = [
            {
                "id": f"c{asked.number}",
                "type": "function",
                "function": {"name": "Memory", "arguments": json.dumps({"content": text})},
            }
            for text in texts
        ]
        return Reply(message={"content": "", "tool_calls": calls}, seconds=MODEL_SECONDS)


def _embeddings(asked: Asked) -> Reply:
    texts = asked.body["input"]
    texts = [texts] if isinstance(texts, str) else texts
    vectors = [[float(hash((str(text), at)) % 97) for at in range(DIMENSIONS)] for text in texts]
    packed = [base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *each)).decode() for each in vectors]
    chosen = packed if asked.body.get("encoding_format") == "base64" else vectors
    data = [{"object": "embedding", "index": n, "embedding": e} for n, e in enumerate(chosen)]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    body = {"object": "list", "data": data, "model": "m", "usage": usage}
    return Reply(raw=json.dumps(body).encode())


def show_peers(python: str, figures: dict[str, float]) -> None:
    """The same turns through mem0 and LangMem, one after the other."""
    script = str(Path(__file__).resolve().parent / "extraction_peers.py")
    rows = {
        f"afterturn, {how}": (
            figures[f"{how}_calls_per_turn"],
            figures[f"{how}_prompt_tokens_per_turn"],
            figures[f"{how}_caller_p50_ms"] / 1e3,
        )
        for how in ("burst", "idle")
    }
    for name in ("mem0", "langmem"):
        model = PeerModel()
        with ModelServer(model.answer) as server:
            command = [python, script, name, server.url, str(PEER_TURNS), QUERY, ANSWER]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"{name} did not run: {done.stderr[-800:]}")
        seconds = json.loads(done.stdout.splitlines()[-1])
        rows[name] = (model.calls / PEER_TURNS, model.prompt_tokens / PEER_TURNS, seconds)
    print(f"{'':20} {'calls/turn':>10} {'prompt tokens/turn':>18} {'seconds of the caller':>21}")
    for name, (calls, tokens, seconds) in rows.items():
        print(f"{name:20} {calls:10.2f} {tokens:18.0f} {seconds:21.4f}")


if __name__ == "__main__":
    sys.exit(main())
