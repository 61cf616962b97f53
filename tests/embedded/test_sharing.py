"""One set of servers a home, for as long as somebody needs it."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from afterturn import embedded
from afterturn.embedded import EmbeddedServers
from afterturn.embedded.home import Home
from afterturn.errors import ConfigurationError

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


def test_six_processes_at_once_get_the_same_servers(home: Path) -> None:
    """Processes that ask at the same moment are told the same three pids."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(start_client(home)) for _ in range(6)]
        answers = {answer(client) for client in clients}
        assert len(answers) == 1
        assert len(answers.pop().split()) == 3
        for client in clients:
            let_go(client)


def test_threads_of_one_process_share_servers(home: Path) -> None:
    """Threads that ask at the same moment get the same servers, and one release is not enough."""
    found: list[EmbeddedServers] = []

    def ask() -> None:
        found.append(embedded.ensure(home, postgres=False, linger_seconds=0.1, durable=False))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    for _ in range(3):
        embedded.release(home)
    assert is_claimed(home)
    embedded.release(home)
    assert not is_claimed(home)
    wait_until(lambda: is_gone(found[0].supervisor_pid), "supervisor left")


def test_data_is_there_after_stop_and_start(home: Path) -> None:
    """Rows and keys survive a stop, with the durable settings."""
    first = embedded.ensure(home)
    execute(first, "create table kept (n int)", "insert into kept values (7)", "select 1")
    with broker(first) as client:
        client.rpush("queue", "one", "two")
    assert embedded.stop(home)
    assert is_gone(first.postgres_pid)
    assert is_gone(first.valkey_pid)
    assert embedded.status(home) is None
    assert not embedded.stop(home)

    second = embedded.ensure(home)
    assert second.database_url == first.database_url
    assert second.broker_url == first.broker_url
    assert second.supervisor_pid != first.supervisor_pid
    assert execute(second, "select n from kept") == 7
    with broker(second) as client:
        assert client.lrange("queue", 0, -1) == ["one", "two"]


def test_servers_end_when_the_last_client_is_killed(home: Path) -> None:
    """kill -9 of the only client leaves no server behind."""
    with start_client(home) as client:
        pids = [int(pid) for pid in answer(client).split()]
        assert not any(map(is_gone, pids))
        client.kill()
        client.communicate()
    for pid in pids:
        wait_until(lambda pid=pid: is_gone(pid), "server ended after its last client")  # type: ignore[misc]


def test_only_what_is_asked_for_runs_and_the_other_can_join(home: Path) -> None:
    """One server can be had alone; a later caller gets the other under the same supervisor."""
    first = embedded.ensure(home, postgres=False, durable=False)
    assert first.database_url is None
    assert first.postgres_pid is None
    assert not (home / "pg").exists()
    second = embedded.ensure(home, durable=False)
    assert second.supervisor_pid == first.supervisor_pid
    assert second.valkey_pid == first.valkey_pid
    assert execute(second, "select 1") == 1


def test_asking_for_nothing_is_refused(home: Path) -> None:
    """A call that needs no server is a mistake and says so."""
    with pytest.raises(ConfigurationError, match="No server was asked for"):
        embedded.ensure(home, postgres=False, valkey=False)


def test_servers_without_durability_are_refused_to_durable_callers(home: Path) -> None:
    """Who needs durable data is not handed servers that run without fsync."""
    embedded.ensure(home, postgres=False, durable=False)
    with pytest.raises(ConfigurationError, match="durable=False"):
        embedded.ensure(home, postgres=False)


FORKING = """
import os, signal, sys
from afterturn import embedded
home = sys.argv[1]
found = embedded.ensure(home, postgres=False, linger_seconds=0.1, durable=False)
receiving, sending = os.pipe()
child = os.fork()
if child == 0:
    embedded.release(home)   # it holds nothing, so this gives nothing back
    os.write(sending, b"x")
    signal.pause()
os.read(receiving, 1)
if sys.argv[2] == "child ends":
    os.kill(child, 9)
    os.waitpid(child, 0)
else:
    embedded.release(home)
print(found.supervisor_pid, child, flush=True)
sys.stdin.readline()
"""


def test_a_forked_child_does_not_release_its_parents_servers(home: Path) -> None:
    """After a child called release and was killed, the parent's claim stands."""
    with start_script(FORKING, home, "child ends") as parent:
        supervisor = int(answer(parent).split()[0])
        assert is_claimed(home)
        parent.kill()
        parent.communicate()
    wait_until(lambda: is_gone(supervisor), "supervisor left after its last client")


def test_a_forked_child_does_not_keep_the_servers(home: Path) -> None:
    """When the parent released, a living child that never asked keeps nothing running."""
    with start_script(FORKING, home, "parent releases") as parent:
        supervisor, child = map(int, answer(parent).split())
        wait_until(lambda: is_gone(supervisor), "supervisor left though the child lives")
        assert not is_gone(child)
        send(child, signal.SIGKILL)
        let_go(parent)


def test_servers_that_are_just_leaving_are_never_handed_out(home: Path) -> None:
    """A client that comes while the supervisor lingers out gets servers that work."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    delays = random.Random(seed)
    supervisors = set()
    for _ in range(8):
        found = embedded.ensure(home, linger_seconds=0.0, durable=False)
        assert execute(found, "select 1") == 1
        with broker(found) as client:
            assert client.ping()
        supervisors.add(found.supervisor_pid)
        embedded.release(home)
        until = time.monotonic() + delays.uniform(0.0, 0.25)
        wait_until(lambda until=until: time.monotonic() > until, "the seeded moment")  # type: ignore[misc]
    assert len(supervisors) > 1
    wait_until(lambda: embedded.status(home) is None, "supervisor left")


def is_claimed(home: Path) -> bool:
    """Whether some process holds a claim on the broker."""
    claim = Home(home).claim("valkey")
    free = claim.try_acquire()
    claim.release()
    return not free
