"""A database with data is brought to this release while the last one is at work on it.

The last release is taken from the repository's history and run as it was: its worker, and an
application of its time. It needs no installation, since its dependencies are those of this one.
"""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from afterturn import migrations
from tests.fleet.running import Valkey
from tests.operate.deployment import ROOT, deployed, wait_until
from tests.schema.databases import new_database

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.timeout(400)]

LAST = "392c3b9d7861"
"""The release whose processes must go on beside this one. Raised when one is published, or when
functions change in a way that it cannot bear, which a published one would have to."""

# The installed script is that of this release.
OLD_COMMAND = f"{sys.executable} -m afterturn.cli"
# Hands turns over until it is told to stop, and writes down which were acknowledged.
APPLICATION = """
import asyncio, pathlib, sys
from afterturn import Memory, MemoryScope

async def main(name, stop, acknowledged):
    scope = MemoryScope.of("acme", name)
    async with Memory() as memory:
        with open(acknowledged, "a", buffering=1) as acks:
            at = 0
            while not stop.exists():
                turn_id = f"{name}-{at}"
                async with memory.turn(scope, turn_id=turn_id) as turn:
                    await turn.finish(query=f"I like pears, number {at}", answer="Noted")
                acks.write(turn_id + chr(10))
                at += 1
                if at % 10 == 0:
                    await memory.flush(scope)
                await asyncio.sleep(0.02)

name, stop, acknowledged = sys.argv[1:]
asyncio.run(main(name, pathlib.Path(stop), acknowledged))
"""


@pytest.fixture(scope="module")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last release, unpacked."""
    done = subprocess.run(
        ["git", "-C", ROOT, "archive", LAST, "src", "tasks", "workers", "schema"],
        capture_output=True,
    )
    if done.returncode:
        pytest.skip(f"needs the repository's history with {LAST}")
    folder = tmp_path_factory.mktemp("last")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder)  # noqa: S202 - our own; Python 3.11.2 knows no filter
    return folder


@pytest.fixture
def empty_url(server_url: str) -> Iterator[str]:
    """The URL of an empty database."""
    with asyncio.Runner() as runner:
        made = new_database(server_url)
        url = runner.run(made.__aenter__())
        yield url
        runner.run(made.__aexit__(None, None, None))


def test_old_and_new_workers_share_a_database_that_is_upgraded_under_them(
    directory: Path, empty_url: str, broker: Valkey, last_release: Path
) -> None:
    """Nothing that either acknowledged is lost or done twice, nobody is stopped; a process of the
    last release that starts afterwards is refused with what to do."""
    stop = directory / "stop"
    old_path = os.pathsep.join((str(last_release / "src"), str(directory)))
    with deployed(
        directory, empty_url, broker.url, AFTERTURN_EMBEDDER="none", AFTERTURN_LEASE_SECONDS="5"
    ) as made:
        new_path = made.env["PYTHONPATH"]
        application = f"{sys.executable} {directory / 'application.py'}"
        (directory / "application.py").write_text(APPLICATION)

        def start(name: str, path: str) -> None:
            line = f"{application} {name} {stop} {directory / name}.acks"
            made.run_forever(line, name, PYTHONPATH=path)

        def acknowledged(name: str) -> list[str]:
            file = directory / f"{name}.acks"
            return file.read_text().split() if file.exists() else []

        assert made.type(f"{OLD_COMMAND} migrate", PYTHONPATH=old_path).code == 0
        before = _value(empty_url, "select max(version) from afterturn.migrations")
        assert before < migrations.migrations()[-1].version
        made.run_forever(f"{OLD_COMMAND} worker --name old", "old", PYTHONPATH=old_path)
        start("old-application", old_path)
        wait_until(lambda: len(acknowledged("old-application")) > 20, "the last release is at work")

        planned = made.type("afterturn migrate --plan --json").json["planned"]
        migrated = made.type("afterturn migrate --json")
        assert migrated.json["applied"] == planned
        assert made.type("afterturn migrate --plan --json").json == {"planned": []}

        recorded = made.log("old").count("'recorded")
        reached = len(acknowledged("old-application"))
        wait_until(
            lambda: (
                len(acknowledged("old-application")) > reached + 20
                and made.log("old").count("'recorded") > recorded + 5
            ),
            "the last release goes on",
        )
        refused = made.type(f"{OLD_COMMAND} status", PYTHONPATH=old_path)
        assert refused.code == 1
        assert "newer than this release" in refused.output

        made.run_forever("afterturn worker --name new", "new", PYTHONPATH=new_path)
        made.start("beat")
        start("new-application", new_path)
        wait_until(
            lambda: (
                len(acknowledged("new-application")) > 30
                and made.log("new").count("record done") > 5
            ),
            "both are at work",
        )
        stop.touch()
        for name in ("old-application", "new-application"):
            assert made.parts[name].wait(60) == 0, made.log(name)
        wait_until(
            lambda: not made.type("afterturn status --json").json["outstanding"],
            "everything is done",
        )
        for name in ("old-application", "new-application"):
            turns = acknowledged(name)
            done = _column(
                empty_url,
                "select t.turn_id from afterturn.turns t where t.path = $1 and t.outcome = 'done'"
                " and (select count(*) from afterturn.memories m where m.turn_path = t.path"
                "   and m.turn_id = t.turn_id and m.origin = 'turn') = 4",
                f"v1/acme/{name}/",
            )
            assert set(turns) <= set(done)
            assert len(done) == len(set(done))
        assert _column(empty_url, "select fault from afterturn.ledger_faults()") == []
        assert "Traceback" not in made.log("old") + made.log("new")


def _value(url: str, sql: str) -> int:
    (value,) = _column(url, sql)
    return int(str(value))


def _column(url: str, sql: str, *args: object) -> list[object]:
    async def fetch() -> list[object]:
        connection = await asyncpg.connect(url)
        try:
            return [row[0] for row in await connection.fetch(sql, *args)]
        finally:
            await connection.close()

    return asyncio.run(fetch())
