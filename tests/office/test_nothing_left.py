"""An erased word, looked for wherever the running product could have put it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import urllib.request
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
import redis
from pydantic import SecretStr

from afterturn.compact import compact
from afterturn.errors import StaleTurn
from afterturn.lifecycle import Derived
from afterturn.memory import Memory
from afterturn.records import MemoryLayer, MemoryRecord, Source
from afterturn.scope import MemoryScope
from afterturn.settings import Settings
from afterturn.writes import WriteRequest
from tests.fleet.conftest import broker, directory
from tests.fleet.running import Valkey, any_port, wait_until
from tests.office.fleet import running_fleet
from tests.office.searching import files_with, keys_with

__all__ = ["broker", "directory"]

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.skipif(
        "AFTERTURN_DATABASE_URL" in os.environ,
        reason="the files of a given server are out of reach",
    ),
]

ACME = MemoryScope.of("acme")
_LOGIN = "me:password"


@pytest.mark.parametrize("derived", ["erase", "keep"])
def test_an_erased_word_is_nowhere(
    settings: Settings, broker: Valkey, directory: Path, derived: Derived
) -> None:
    """Database files, the log of writes, the broker, Flower's pages and its API, every log. The
    word was said, and it is in the names of the scope, of its turns and of their session."""
    marker = f"quetzal{uuid.uuid4().hex}"
    settings = settings.model_copy(
        update={
            "broker_url": broker.url,
            "extractor": "rules",
            "sweep_seconds": 0.5,
            "worker_concurrency": 1,
            "flower_port": any_port(),
            "flower_basic_auth": SecretStr(_LOGIN),
            "takeover_seconds": 60.0,  # the worker does it all
        }
    )
    url = str(settings.database_url)
    data = Path(asyncio.run(_value(url, "select current_setting('data_directory')")))
    with running_fleet(settings, directory) as fleet:
        fleet.flower()
        fleet.worker()
        fleet.beat()
        asyncio.run(_live_and_forget(settings, marker, derived))
        pages = _flower(settings.flower_port)
        assert len(pages) > 8
        assert any("forgot 1" in page for page in pages.values())
        assert [path for path, page in pages.items() if marker in page] == []
        assert _in_broker(broker, marker) == []
        assert files_with(data, marker) != []
        asyncio.run(compact(url, settings, recycle_wal=True))
        assert files_with(data, marker) == []
    # The fleet has ended: logs are whole, and nothing of it lies in a file.
    assert files_with(directory, marker) == []
    assert files_with(settings.home, marker) == []


async def _live_and_forget(settings: Settings, marker: str, derived: Derived) -> None:
    scope, session = ACME.child(f"alice-{marker}").child("chat"), f"s-{marker}"
    async with Memory(settings) as memory:
        for number in range(3):
            turn_id = f"t{number}-{marker}"
            async with memory.turn(scope, session=session, turn_id=turn_id) as turn:
                await turn.retrieve(f"what about {marker}?")
                ticket = await turn.finish(
                    f"My name is {marker} and I live in {marker}.", marker, metadata={"m": marker}
                )
            await ticket.wait(timeout=45)
        found = await memory.transcript(scope)
        assert marker in (found[0].query or "")
        learned = MemoryRecord(
            record_id="learned",
            text="somebody likes tea",
            scope_path=ACME.path,
            layer=MemoryLayer.SEMANTIC,
            origin="app",
            metadata={"session": session},
            sources=(Source(turn_id=turn_id, turn_path=scope.path),),
        )
        await memory.write(WriteRequest(scope=ACME, records=(learned,)))
        await memory.flush(ACME)
        await memory.schedule_forget(scope, at=datetime.now(UTC) + timedelta(days=1))
        late = await memory.begin_turn(scope, session=session)
        await memory.forget(ACME.child(f"alice-{marker}"), derived=derived)
        with pytest.raises(StaleTurn):
            await late.finish(marker, marker)
        receipt = await memory.write(
            WriteRequest(
                scope=ACME, records=(learned,), token=(await memory.begin_turn(ACME)).token
            )
        )
        assert receipt.outcomes[0].status == "refused"
        kept = [record.record_id for record in await memory.list(ACME)]
        assert kept == (["learned"] if derived == "keep" else [])


async def _value(url: str, statement: str) -> str:
    conn = await asyncpg.connect(url)
    try:
        return str(await conn.fetchval(statement))
    finally:
        await conn.close()


def _in_broker(broker: Valkey, marker: str) -> list[str]:
    with redis.Redis(unix_socket_path=str(broker.directory / "valkey.sock")) as client:
        return keys_with(client, marker)


def _flower(port: int) -> dict[str, str]:
    """Flower's pages and API by path, each task's page included."""

    def page(path: str) -> str:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
        login = base64.b64encode(_LOGIN.encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
        with urllib.request.urlopen(request, timeout=45) as answer:  # noqa: S310 - http, on loopback
            return str(answer.read().decode("utf-8", "replace"))

    def tasks() -> dict[str, dict[str, object]]:
        found: dict[str, dict[str, object]] = json.loads(page("/api/tasks"))
        return found

    def forgot() -> bool:
        return any("forgot" in str(task.get("result")) for task in tasks().values())

    wait_until(forgot, "Flower has heard of the erase")
    paths = ["/", "/workers", "/tasks", "/broker", "/api/tasks", "/api/workers", "/metrics"]
    paths += [f"/task/{task_id}" for task_id in tasks()]
    return {path: page(path) for path in paths}
