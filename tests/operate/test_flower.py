"""Flower in a real browser: what an operator sees, and what nobody may see."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from afterturn import Memory, MemoryScope
from afterturn.cli import main
from afterturn.fleet import check_flower
from afterturn.probes import _app, ping_parts
from afterturn.settings import Settings
from tests.fleet.running import Valkey, http_status
from tests.operate.browser import needs_browser, page, photograph
from tests.operate.deployment import Deployment, deployed, wait_until

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.timeout(400)]

SCOPE = MemoryScope.of("acme", "alice-marker")
MARKER = "quinces-marker"
LOGIN = "me:secret-login"
TASKS = {"afterturn.record_turns", "afterturn.extract_turns", "afterturn.flush"}


@pytest.fixture
def deployment(directory: Path, database_url: str, broker: Valkey) -> Iterator[Deployment]:
    """One worker for all queues, and Flower with a login."""
    with deployed(
        directory,
        database_url,
        broker.url,
        AFTERTURN_EMBEDDER="none",
        AFTERTURN_FLOWER_BASIC_AUTH=LOGIN,
    ) as made:
        made.start("flower")
        wait_until(lambda: http_status(f"{_url(made)}/", LOGIN) == 200, "Flower listens")
        made.run_forever("afterturn worker --name all", "all")
        wait_until(lambda: _get(made, "/api/workers?refresh=1"), "Flower sees the worker")
        yield made


@needs_browser
def test_an_operator_sees_kinds_ids_and_codes_and_never_text(
    deployment: Deployment, settings: Settings, broker: Valkey, tmp_path: Path
) -> None:
    """After a run the task list names kinds, its arguments are ids, its results short codes; no
    page and no answer of the API holds a word of a turn or a scope."""
    asyncio.run(
        _work(settings.model_copy(update={"broker_url": broker.url, "takeover_seconds": 60.0}))
    )
    wait_until(
        lambda: (
            {task["name"] for task in _tasks(deployment)} >= TASKS
            and all(task["state"] == "SUCCESS" for task in _tasks(deployment))
        ),
        "the tasks are listed",
    )
    url = _known(_url(deployment))
    listed = page(f"{url}/tasks")
    for words in (*TASKS, "recorded 1", "flushed 1"):
        assert words in listed
    pages = [listed, page(f"{url}/"), page(f"{url}/broker")]
    pages += [page(f"{url}/task/{task['uuid']}") for task in _tasks(deployment)[:3]]
    (worker,) = _get(deployment, "/api/workers")
    assert worker.startswith("all@")
    pages.append(page(f"{url}/worker/{worker}"))
    for path in ("/api/tasks", "/api/task/types", "/api/workers?refresh=1", "/api/queues/length"):
        pages.append(json.dumps(_get(deployment, path)))
    pages += [
        json.dumps(_get(deployment, f"/api/task/info/{t['uuid']}")) for t in _tasks(deployment)
    ]
    pages.append(_text(f"{_url(deployment)}/metrics"))
    for each in pages:
        assert "alice" not in each
        assert MARKER not in each
    for task in _tasks(deployment):
        assert json.loads(task["kwargs"].replace("'", '"')) == {"release": 1}
        assert set(task["args"]) <= set("([0123456789, ])")
    photograph(f"{url}/tasks", tmp_path / "flower.png")
    assert (tmp_path / "flower.png").stat().st_size > 10_000
    # Nobody can make a worker do anything, not even with the broker at hand.
    shutdown = f"{_url(deployment)}/api/worker/shutdown/{worker}"
    assert http_status(shutdown, LOGIN, method="POST") == 403


@needs_browser
def test_a_stranger_sees_a_login_and_nothing_behind_it(deployment: Deployment) -> None:
    """With a login set every page and answer is refused without it, in a browser as by hand; what
    stays open are counts by kind and whether it lives."""
    url = _url(deployment)
    for path in ("/tasks", "/broker", "/worker/x", "/task/x", "/api/tasks", "/api/workers"):
        assert http_status(url + path) == 401, path
        assert http_status(url + path, "me:wrong") == 401, path
    assert "record_turns" not in page(f"{url}/tasks")
    assert http_status(f"{url}/healthcheck") == 200
    assert "Tasks" in page(f"{_known(url)}/tasks")
    assert http_status(f"{url}/api/worker/shutdown/x", LOGIN, method="POST") == 403


@pytest.mark.parametrize(
    "changes",
    [
        {"AFTERTURN_FLOWER_ADDRESS": "0.0.0.0"},  # noqa: S104 - refused
        {"AFTERTURN_FLOWER_ADDRESS": "::"},
        {"AFTERTURN_FLOWER_ADDRESS": "192.0.2.1"},
        {"AFTERTURN_FLOWER_READ_ONLY": "false"},
    ],
)
def test_what_others_could_use_needs_a_login(
    changes: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an address others reach, and to do more than watch even on loopback: or it does not start,
    and says what to set."""
    settings = {"AFTERTURN_BROKER_URL": "redis://127.0.0.1:1/0", "AFTERTURN_HOME": str(tmp_path)}
    for name, value in {**settings, **changes}.items():
        monkeypatch.setenv(name, value)
    outcome = CliRunner().invoke(main, ["flower"])
    assert outcome.exit_code == 1
    assert "AFTERTURN_FLOWER_BASIC_AUTH=user:password" in outcome.stderr
    monkeypatch.setenv("AFTERTURN_FLOWER_BASIC_AUTH", LOGIN)
    check_flower(Settings.load())


def test_a_worker_obeys_no_remote_control(deployment: Deployment, broker: Valkey) -> None:
    """Whoever reaches the broker may ask a worker how it is, not stop it or change it."""
    settings = Settings(broker_url=broker.url)
    app = _app(settings)
    app.control.broadcast("shutdown")
    app.control.broadcast("pool_shrink", arguments={"n": 1})
    app.control.broadcast("cancel_consumer", arguments={"queue": "afterturn.record"})
    wait_until(
        lambda: deployment.log("all").count("pidbox command error: KeyError") >= 3, "all refused"
    )
    assert [name.partition("@")[0] for name in ping_parts(settings)] == ["all"]
    app.close()


async def _work(settings: Settings) -> None:
    async with Memory(settings) as memory:
        async with memory.turn(SCOPE) as turn:
            await turn.finish(f"I like {MARKER}", f"Noted: {MARKER}")
        await memory.drain(SCOPE, timeout=60)
        job = await memory.enqueue_flush(SCOPE)
        await job.wait(60)


def _url(deployment: Deployment) -> str:
    return f"http://127.0.0.1:{deployment.env['AFTERTURN_FLOWER_PORT']}"


def _known(url: str) -> str:
    return url.replace("//", f"//{LOGIN}@")


def _get(deployment: Deployment, path: str) -> Any:
    return json.loads(_text(_url(deployment) + path))


def _tasks(deployment: Deployment) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = _get(deployment, "/api/tasks")
    return list(found.values())


def _text(url: str) -> str:
    request = urllib.request.Request(url)  # noqa: S310 - http, on loopback
    request.add_header("Authorization", f"Basic {base64.b64encode(LOGIN.encode()).decode()}")
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return str(answer.read().decode())
