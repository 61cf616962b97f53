"""The web examples under concurrent requests: nobody gets another's memory, nothing leaks."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from afterturn.memory import Memory
from afterturn.scope import MemoryScope
from afterturn.settings import Settings

from .programs import EXAMPLES, connections, environment, loaded

USERS, TURNS = 8, 50


def _said(user: int, turn: int) -> dict[str, Any]:
    return {"text": f"marker-{user} says {turn}?", "session": f"s-{user}"}


async def _drained(settings: Settings, root: str) -> None:
    """Do what the fleet would do."""
    async with Memory(settings) as memory:
        await memory.drain(MemoryScope.of(root), in_process=True)


def _require_own(told: dict[str, Any], user: int) -> None:
    """What was remembered is the user's own, and all of it was found without trouble."""
    assert told["degraded"] == []
    assert told["handed_over"] == "staged"
    for text in told["remembered"]:
        assert f"marker-{user} " in text or text.startswith(("I see", "I remember"))


async def _transcripts(settings: Settings, root: str) -> Counter[str]:
    """How many turns each user has, and that all of them are theirs."""
    async with Memory(settings) as memory:
        counted: Counter[str] = Counter()
        for user in range(USERS):
            said = await memory.transcript(MemoryScope.of(root, f"user-{user}"), limit=1000)
            assert all(turn.query and f"marker-{user} " in turn.query for turn in said)
            assert len({turn.query for turn in said}) == len(said)
            counted[f"user-{user}"] = len(said)
        return counted


@pytest.fixture
def flask_app(settings: Settings) -> Iterator[Any]:
    with loaded("flask_app", environment(settings)) as module:
        yield module


def test_flask_with_many_threads(
    flask_app: Any, settings: Settings, database_connections: Callable[[], int]
) -> None:
    """Eight users, fifty turns each, at once on one memory: each its own; then no connection."""

    def post(number: int) -> None:
        user, turn = number % USERS, number // USERS
        answer = flask_app.app.test_client().post(
            f"/users/user-{user}/messages", json=_said(user, turn)
        )
        assert answer.status_code == 200, answer.text
        _require_own(answer.json, user)

    with flask_app.memory:
        with ThreadPoolExecutor(24) as threads:
            list(threads.map(post, range(USERS * 10)))
            asyncio.run(_drained(settings, "flask"))
            list(threads.map(post, range(USERS * 10, USERS * TURNS)))
        assert database_connections() <= settings.pool_size
        asyncio.run(_drained(settings, "flask"))
        client = flask_app.app.test_client()
        remembered = client.post("/users/user-3/messages", json=_said(3, 99)).json["remembered"]
        assert remembered
        assert all("marker-3 " in text or text.startswith("I ") for text in remembered)
        gone = client.delete("/users/user-3").json
        assert gone["erased"]["turns"] == TURNS + 1
        assert gone["log_entry"]
        refused = client.post("/users/x/messages", json={"text": "x", "session": "no spaces"})
        assert refused.status_code == 400
        assert "session" in refused.json["error"]
    counted = asyncio.run(_transcripts(settings, "flask"))
    assert counted == {f"user-{user}": (0 if user == 3 else TURNS) for user in range(USERS)}
    assert database_connections() == 0


@pytest.mark.skipif(sys.platform == "win32", reason="gunicorn forks")
@pytest.mark.parametrize("preload", [True, False])
def test_flask_under_gunicorn(
    settings: Settings, preload: bool, database_connections: Callable[[], int]
) -> None:
    """Two forked processes with threads, the application loaded before the fork or after it."""
    command = [
        *(sys.executable, "-m", "gunicorn", "--chdir", str(EXAMPLES)),
        *(["--preload"] if preload else []),
        *("-w", "2", "--threads", "4", "-b", "127.0.0.1:0", "flask_app:app"),
    ]
    with subprocess.Popen(
        command, env=environment(settings), stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        try:
            url = next(
                line.split("Listening at: ")[1].split(" ")[0]
                for line in server.stderr
                if "Listening at: " in line
            )
            with httpx.Client(base_url=url, timeout=30) as client:

                def post(number: int) -> int:
                    user, turn = number % USERS, number // USERS
                    answer = client.post(f"/users/user-{user}/messages", json=_said(user, turn))
                    assert answer.status_code == 200, answer.text
                    _require_own(answer.json(), user)
                    return int(answer.json()["process"])

                with ThreadPoolExecutor(8) as threads:
                    processes = Counter(threads.map(post, range(USERS * 10)))
            assert server.pid not in processes
            assert 1 <= len(processes) <= 2
            assert database_connections() <= 2 * settings.pool_size
        finally:
            server.send_signal(signal.SIGTERM)
            log = server.stderr.read()
    assert server.returncode == 0
    assert "Traceback" not in log
    asyncio.run(_drained(settings, "flask"))
    counted = asyncio.run(_transcripts(settings, "flask"))
    assert set(counted.values()) == {10}


@pytest.fixture
def database_connections(settings: Settings) -> Callable[[], int]:
    """How many connections to the test's database are open."""
    return lambda: asyncio.run(connections(settings))


async def test_fastapi_with_many_requests_at_once(settings: Settings) -> None:
    """Eight users, fifty turns each, in one loop: each its own; then no connection."""
    with loaded("fastapi_app", environment(settings)) as module:
        async with module.app.router.lifespan_context(module.app):
            transport = httpx.ASGITransport(module.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:

                async def post(number: int) -> None:
                    user, turn = number % USERS, number // USERS
                    answer = await client.post(
                        f"/users/user-{user}/messages", json=_said(user, turn)
                    )
                    assert answer.status_code == 200, answer.text
                    _require_own(answer.json(), user)

                await asyncio.gather(*(post(number) for number in range(USERS * 10)))
                await _drained(settings, "fastapi")
                await asyncio.gather(*(post(number) for number in range(USERS * 10, USERS * TURNS)))
                await _drained(settings, "fastapi")
                gone = (await client.delete("/users/user-3")).json()
                assert gone["erased"]["turns"] == TURNS
                wrong = await client.post("/users/x/messages", json={"text": "x", "session": "a b"})
                assert wrong.status_code == 400
                assert await connections(settings) <= settings.pool_size
    counted = await _transcripts(settings, "fastapi")
    assert counted == {f"user-{user}": (0 if user == 3 else TURNS) for user in range(USERS)}
    assert await connections(settings) == 0


@pytest.mark.parametrize("name", ["flask_app", "fastapi_app"])
def test_the_documented_command_starts_it(
    settings: Settings, name: str, database_connections: Callable[[], int]
) -> None:
    """`python examples/….py`, one message, Ctrl-C: it answers and ends without a word too many."""
    docstring = (EXAMPLES / f"{name}.py").read_text().split('"""')[1]
    assert f"\npython examples/{name}.py " in docstring
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        env={**environment(settings), "PORT": str(port)},
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            assert any(f"http://127.0.0.1:{port}" in line for line in server.stdout)
            url = f"http://127.0.0.1:{port}/users/alice"
            answer = httpx.post(f"{url}/messages", json=_said(0, 0), timeout=30)
            assert answer.json()["handed_over"] == "staged"
            assert sum(httpx.delete(url, timeout=30).json()["erased"].values()) >= 1
        finally:
            server.send_signal(signal.SIGINT)
            log = server.stdout.read()
    assert "Traceback" not in log
    assert database_connections() == 0
