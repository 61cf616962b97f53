"""A home that is removed or moved under its servers, and another one made at its path."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterturn import embedded
from afterturn.embedded.home import Home

from .running import all_gone, execute, is_gone, remove, send, wait_until


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A path to move a home to, stopped and removed afterwards."""
    parent = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    yield parent / "home"
    embedded.stop(parent / "home")
    shutil.rmtree(parent)


def test_a_removed_home_ends_its_supervisor(home: Path) -> None:
    """Deleting the home under running servers ends them, also when nobody comes back."""
    first = embedded.ensure(home, durable=False)
    remove(home)
    wait_until(lambda: all_gone(first), "the servers of the removed home ended")
    assert not home.exists()


def test_a_home_that_is_made_anew_at_once(home: Path) -> None:
    """The next `ensure` begins anew while the old servers end, and keeps what it began."""
    first = embedded.ensure(home, durable=False)
    remove(home)
    second = embedded.ensure(home, durable=False)
    assert execute(second, "select 1") == 1
    assert all_gone(first)
    assert embedded.status(home) == second


@pytest.mark.parametrize("fate", ["removed", "moved"])
def test_a_suspended_supervisor_cannot_harm_the_next_home(
    home: Path, elsewhere: Path, fate: str
) -> None:
    """It and its servers are gone before new servers run, so its end deletes nothing of theirs."""
    first = embedded.ensure(home, durable=False)
    send(first.supervisor_pid, signal.SIGSTOP)
    if fate == "removed":
        remove(home)
    else:
        home.rename(elsewhere)
    second = embedded.ensure(home, durable=False)
    assert all_gone(first)
    execute(
        second, "create table kept (n int)", "insert into kept values (7)", "checkpoint", "select 1"
    )
    assert embedded.stop(home)
    third = embedded.ensure(home, durable=False)
    assert execute(third, "select n from kept") == 7


def test_a_moved_home_takes_its_rows_along(home: Path, elsewhere: Path) -> None:
    """At its new path a home has what was committed; the old servers are not handed out there."""
    first = embedded.ensure(home, durable=False)
    execute(first, "create table kept (n int)", "insert into kept values (7)", "select 1")
    send(first.supervisor_pid, signal.SIGSTOP)
    home.rename(elsewhere)
    home.symlink_to(elsewhere)  # so that the sockets of the old servers are at the old path still
    assert embedded.status(elsewhere) is None
    home.unlink()
    send(first.supervisor_pid, signal.SIGCONT)
    second = embedded.ensure(elsewhere, durable=False)
    assert execute(second, "select n from kept") == 7
    assert second.database_url != first.database_url


def test_stop_ends_the_servers_of_a_removed_home(home: Path) -> None:
    """Also when their supervisor is suspended; a second `stop` finds nothing."""
    first = embedded.ensure(home, durable=False)
    send(first.supervisor_pid, signal.SIGSTOP)
    remove(home)
    assert embedded.stop(home)
    assert all_gone(first)
    assert not embedded.stop(home)


def test_stop_ends_what_ran_for_an_earlier_home(home: Path) -> None:
    """A home of which only the directories exist again may have servers of an earlier one."""
    first = embedded.ensure(home, postgres=False, durable=False)
    send(first.supervisor_pid, signal.SIGSTOP)
    remove(home)
    Home(home).create()
    assert embedded.stop(home)
    assert is_gone(first.valkey_pid)


def test_a_neighbour_with_a_longer_name_is_left_alone(home: Path) -> None:
    """Only servers of exactly this path are ended."""
    neighbour = home.with_name(f"{home.name}-b")
    try:
        first = embedded.ensure(neighbour, postgres=False, durable=False)
        assert not embedded.stop(home)
        second = embedded.ensure(home, postgres=False, durable=False)
        assert embedded.status(neighbour) == first
        assert second.valkey_pid != first.valkey_pid
    finally:
        embedded.stop(neighbour)
        shutil.rmtree(neighbour)
