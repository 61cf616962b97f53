"""What is killed comes back, what was killed leaves nothing in the way, and no one is misled."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

import asyncpg
import pytest

from afterturn import embedded
from afterturn.embedded import EmbeddedServers
from afterturn.embedded.home import Home
from afterturn.embedded.state import read_state

from .running import (
    answer,
    broker,
    execute,
    is_gone,
    let_go,
    send,
    start_client,
    start_script,
    wait_until,
)

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals are Linux's")


def test_a_killed_postmaster_comes_back_with_its_rows(home: Path) -> None:
    """After kill -9 of PostgreSQL, `ensure` gives it again, with what was committed."""
    found = embedded.ensure(home, durable=False)
    execute(found, "create table kept (n int)", "insert into kept values (7)", "select 1")
    for _ in range(2):
        killed = found.postgres_pid
        send(killed, signal.SIGKILL)
        wait_until(lambda killed=killed: is_gone(killed), "postmaster killed")  # type: ignore[misc]
        found = embedded.ensure(home, durable=False)
        assert found.postgres_pid != killed
        assert execute(found, "select n from kept") == 7


async def test_a_busy_backend_does_not_hold_up_a_killed_postmaster(home: Path) -> None:
    """A session that computes does not notice that its postmaster died; it is ended for it."""
    found = embedded.ensure(home, valkey=False, durable=False)
    connection = await asyncpg.connect(found.database_url)
    backend = await connection.fetchval("select pg_backend_pid()")
    endless = "select count(*) from generate_series(1, 100000) a, generate_series(1, 1000000) b"
    running = asyncio.create_task(connection.fetchval(endless))
    await asyncio.to_thread(wait_until, lambda: status_of(backend) == "SELECT", "it computes")
    send(found.postgres_pid, signal.SIGKILL)
    await asyncio.to_thread(wait_until, lambda: is_gone(found.postgres_pid), "postmaster killed")
    again = await asyncio.to_thread(embedded.ensure, home, valkey=False, durable=False)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await running
    connection.terminate()
    assert is_gone(backend)
    assert again.postgres_pid != found.postgres_pid


def test_a_broker_that_is_killed_again_and_again_keeps_its_messages(home: Path) -> None:
    """Each kill -9 of Valkey is followed by a restart with the same queue."""
    found = embedded.ensure(home, postgres=False, durable=False)
    with broker(found) as client:
        client.rpush("queue", "one", "two")
    for _ in range(4):
        killed = found.valkey_pid
        send(killed, signal.SIGKILL)
        wait_until(lambda killed=killed: is_gone(killed), "valkey killed")  # type: ignore[misc]
        found = embedded.ensure(home, postgres=False, durable=False)
        with broker(found) as client:
            assert client.lrange("queue", 0, -1) == ["one", "two"]


@linux_only
def test_killing_the_supervisor_ends_its_servers(home: Path) -> None:
    """kill -9 of the supervisor takes both servers along; the next `ensure` works."""
    first = embedded.ensure(home, durable=False)
    execute(first, "create table kept (n int)", "insert into kept values (7)", "select 1")
    send(first.supervisor_pid, signal.SIGKILL)
    wait_until(lambda: is_gone(first.supervisor_pid), "supervisor killed")
    second = embedded.ensure(home, durable=False)
    assert is_gone(first.postgres_pid)
    assert is_gone(first.valkey_pid)
    assert execute(second, "select n from kept") == 7
    send(second.supervisor_pid, signal.SIGKILL)
    wait_until(lambda: is_gone(second.postgres_pid), "postgres ended with its supervisor")
    wait_until(lambda: is_gone(second.valkey_pid), "valkey ended with its supervisor")


def test_everything_killed_at_once(home: Path) -> None:
    """kill -9 of supervisor and both servers at once loses no committed row."""
    first = embedded.ensure(home, durable=False)
    execute(first, "create table kept (n int)", "insert into kept values (7)", "select 1")
    kill_all(first)
    second = embedded.ensure(home, durable=False)
    assert execute(second, "select n from kept") == 7
    with broker(second) as client:
        assert client.ping()


UNREAPING = """
import ctypes, os, signal, sys, psutil
from afterturn import embedded
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)    # adopt orphans, as a pid 1 does, and never reap them
first = embedded.ensure(sys.argv[1], durable=False)
pids = (first.supervisor_pid, first.postgres_pid, first.valkey_pid)
for pid in pids:
    os.kill(pid, signal.SIGKILL)
second = embedded.ensure(sys.argv[1], durable=False)
assert embedded.status(sys.argv[1]) == second
print(*(psutil.Process(pid).status() for pid in pids), flush=True)
sys.stdin.readline()
"""


SURVIVING = """
import os, sys, time
from afterturn import processes
processes._LIBC = None      # as on a system without parent-death signals
from afterturn.embedded.home import Home
from afterturn.embedded.postgres import PostgresServer
from afterturn.embedded.valkey import ValkeyServer
home = Home(sys.argv[1]).create()
for server in (ValkeyServer(home, durable=False), PostgresServer(home, durable=False)):
    child = server.prepare()
    child.start()
    while not server.answers():
        child.poll()
        time.sleep(0.02)
    print(child.pid, flush=True)
os._exit(0)
"""


def test_servers_that_survived_their_supervisor_are_ended(home: Path) -> None:
    """Where the kernel does not end orphans, `stop` or the next supervisor ends them cleanly."""
    assert embedded.stop(home) is False
    orphans = survivors(home)
    assert embedded.stop(home)
    assert all(map(is_gone, orphans))
    assert "database system is shut down" in (home / "supervisor.log").read_text()

    orphans = survivors(home)
    found = embedded.ensure(home, durable=False)
    assert all(map(is_gone, orphans))
    assert execute(found, "select 1") == 1


def survivors(home: Path) -> list[int]:
    """Both servers, running without a supervisor."""
    with start_script(SURVIVING, home) as owner:
        pids = [int(answer(owner)), int(answer(owner))]
    assert not any(map(is_gone, pids))
    return pids


@linux_only
def test_zombies_are_not_taken_for_servers(home: Path) -> None:
    """Where nothing reaps orphans, a dead server's pid stays for ever; it does not count."""
    with start_script(UNREAPING, home) as client:
        assert answer(client) == "zombie zombie zombie"
        let_go(client)


def test_a_supervisor_that_is_suspended_for_a_while(home: Path) -> None:
    """While it is suspended the servers serve, and it does not leave its clients afterwards."""
    found = embedded.ensure(home, linger_seconds=0.1, durable=False)
    send(found.supervisor_pid, signal.SIGSTOP)
    try:
        with start_client(home) as client:
            assert answer(client).split()[0] == str(found.supervisor_pid)
            let_go(client)
        killed = found.valkey_pid
        send(killed, signal.SIGKILL)
        wait_until(lambda: is_gone(killed), "valkey killed")
    finally:
        send(found.supervisor_pid, signal.SIGCONT)
    again = embedded.ensure(home, durable=False)
    assert again.supervisor_pid == found.supervisor_pid
    assert again.valkey_pid != killed
    assert again.postgres_pid == found.postgres_pid


def test_a_suspended_supervisor_can_be_stopped(home: Path) -> None:
    """`stop` wakes a supervisor that is suspended and waits for its clean end."""
    found = embedded.ensure(home, postgres=False, durable=False)
    send(found.supervisor_pid, signal.SIGSTOP)
    assert embedded.stop(home)
    assert is_gone(found.valkey_pid)


def test_a_stale_state_file_is_never_believed(home: Path) -> None:
    """A file that promises servers which even answer is ignored when no supervisor lives."""
    found = embedded.ensure(home, postgres=False, durable=False)
    promised = (home / "services.json").read_text()
    embedded.stop(home)
    (home / "services.json").write_text(promised)
    assert found.broker_url is not None
    path = found.broker_url.removeprefix("redis+socket://").partition("?")[0]
    with socket.socket(socket.AF_UNIX) as impostor:
        Path(path).unlink(missing_ok=True)
        impostor.bind(path)
        impostor.listen()
        assert embedded.status(home) is None
        again = embedded.ensure(home, postgres=False, durable=False)
    assert again.supervisor_pid != found.supervisor_pid
    with broker(again) as client:
        assert client.ping()


@pytest.mark.parametrize("content", ["", "{}", '{"servers": []}', "[1]", "\x00"])
def test_an_unreadable_state_file_is_no_state(home: Path, content: str) -> None:
    """Half a file, or one of another release, reads as none."""
    (home / "services.json").write_text(content)
    assert read_state(Home(home)) is None


def test_a_server_whose_socket_was_deleted_starts_again(home: Path) -> None:
    """A cleaner of temporary files that removes a socket costs a restart, not the service."""
    found = embedded.ensure(home, postgres=False, durable=False)
    (home / "run" / "valkey.sock").unlink()
    again = embedded.ensure(home, postgres=False, durable=False)
    assert again.valkey_pid != found.valkey_pid
    assert again.supervisor_pid == found.supervisor_pid


def test_an_unreadable_append_only_file_is_set_aside(home: Path) -> None:
    """A broker that cannot read its old messages starts without them and keeps the file."""
    embedded.ensure(home, postgres=False, durable=False)
    embedded.stop(home)
    manifest = home / "valkey" / "appendonlydir" / "appendonly.aof.manifest"
    manifest.write_text("rubbish\n")
    found = embedded.ensure(home, postgres=False, durable=False)
    with broker(found) as client:
        assert client.ping()
    (aside,) = (home / "valkey").glob("unreadable-*")
    assert (aside / manifest.name).read_text() == "rubbish\n"


def test_an_interrupted_initdb_is_begun_anew(home: Path) -> None:
    """What a killed initdb left is not taken for a data directory."""
    (home / "pg" / "init").mkdir(parents=True)
    (home / "pg" / "init" / "PG_VERSION").write_text("18\n")
    found = embedded.ensure(home, valkey=False, durable=False)
    assert found.broker_url is None
    assert execute(found, "select lower('ÄÖÜ')") == "äöü"
    assert not (home / "pg" / "init").exists()


@linux_only
async def test_statements_stay_out_of_the_log(home: Path) -> None:
    """Neither the error of a statement nor a crash in its midst writes its text to the log."""
    found = embedded.ensure(home, valkey=False, durable=False)
    marker = "zebra" + "crossing"
    connection = await asyncpg.connect(found.database_url)
    await connection.execute("create table kept (word text unique)")
    await connection.execute("insert into kept values ($1)", marker)
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.execute(f"insert into kept values ('{marker}')")
    with pytest.raises(asyncpg.InvalidTextRepresentationError):
        await connection.execute(f"select '{marker}'::int")
    backend = await connection.fetchval("select pg_backend_pid()")
    running = asyncio.create_task(connection.execute(f"select pg_sleep(60), '{marker}'"))
    await asyncio.to_thread(wait_until, lambda: status_of(backend) == "SELECT", "it runs")
    send(backend, signal.SIGKILL)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await running
    connection.terminate()
    log = home / "supervisor.log"
    wait_until(lambda: "terminated by signal 9" in log.read_text(), "the crash was logged")
    assert marker not in log.read_text()
    wait_until(lambda: log.read_text().count("ready to accept connections") == 2, "recovered")


def status_of(backend: int) -> str:
    """What a PostgreSQL process says it does."""
    return Path(f"/proc/{backend}/cmdline").read_text().rstrip("\0 ").rsplit(" ", 1)[-1]


def kill_all(servers: EmbeddedServers) -> None:
    for pid in (servers.supervisor_pid, servers.postgres_pid, servers.valkey_pid):
        assert pid is not None
        os.kill(pid, signal.SIGKILL)


def test_state_survives_a_round_trip(home: Path) -> None:
    """What the supervisor wrote is what a client reads."""
    found = embedded.ensure(home, postgres=False, durable=False)
    state = read_state(Home(home))
    assert state is not None
    assert state.supervisor_pid == found.supervisor_pid
    assert json.loads((home / "services.json").read_text())["servers"].keys() == {"valkey"}
