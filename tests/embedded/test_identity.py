"""PostgreSQL runs for root and for ordinary users, with no account made and nothing opened up."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from afterturn import embedded
from afterturn.embedded.binaries import find_postgres
from afterturn.embedded.home import Home
from afterturn.embedded.identity import MODE_VARIABLE
from afterturn.errors import MemoryUnavailable

from .running import DEADLINE_SECONDS, execute

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")


@root_only
def test_root_without_namespaces_becomes_an_account(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forced to setuid, root gets a server whose data belongs to an unprivileged account."""
    monkeypatch.setenv(MODE_VARIABLE, "setuid")
    accounts = pwd.getpwall()
    home.chmod(0o700)
    found = embedded.ensure(home, durable=False)
    assert found.identity == "setuid"
    execute(found, "create table kept (n int)", "insert into kept values (7)", "select 1")
    assert (home / "pg" / "data").stat().st_uid != 0
    assert stat.S_IMODE((home / "pg").stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "run").stat().st_mode) == 0o700
    assert pwd.getpwall() == accounts


@root_only
def test_data_moves_between_the_two_ways_of_root(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data made one way is used, not made again, when the kernel later wants the other way."""
    for mode in ("setuid", "userns", "setuid"):
        monkeypatch.setenv(MODE_VARIABLE, mode)
        try:
            found = embedded.ensure(home, valkey=False, durable=False)
        except MemoryUnavailable:
            if mode == "userns":
                pytest.skip("this kernel lets root make no user namespace")
            raise
        assert found.identity == mode
        execute(found, "create table if not exists kept (n int)", "insert into kept values (1)")
        embedded.stop(home)
    monkeypatch.setenv(MODE_VARIABLE, "setuid")
    found = embedded.ensure(home, valkey=False, durable=False)
    assert execute(found, "select count(*) from kept") == 3


@pytest.fixture
def closed_directory() -> Iterator[Path]:
    """A directory that only root can enter."""
    path = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@root_only
def test_a_home_and_an_environment_that_only_root_can_enter(
    closed_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account gets data and a copy of the binaries elsewhere; no directory is opened for it."""
    installed = find_postgres().directory.parent
    package = closed_directory / installed.parent.name / installed.name
    shutil.copytree(installed, package, ignore=shutil.ignore_patterns("include"))
    libraries = installed.parent.with_name(f"{installed.parent.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, closed_directory / libraries.name)
    monkeypatch.setenv("AFTERTURN_POSTGRES_BIN", str(package / "bin"))
    monkeypatch.setenv(MODE_VARIABLE, "setuid")
    home = closed_directory / "home"
    try:
        found = embedded.ensure(home, valkey=False, durable=False)
        assert execute(found, "select 1") == 1
        assert stat.S_IMODE(closed_directory.stat().st_mode) == 0o700
        outside = Path("/var/lib/afterturn") / Home(home).tag
        assert (outside / "data" / "PG_VERSION").exists()
    finally:
        embedded.stop(home)
        shutil.rmtree(Path("/var/lib/afterturn") / Home(home).tag)


ORDINARY = """
import asyncio, os, sys, asyncpg
from afterturn import embedded
found = embedded.ensure(sys.argv[1], durable=False)
async def main():
    connection = await asyncpg.connect(found.database_url)
    print(os.geteuid(), found.identity, await connection.fetchval("select 6 * 7"), flush=True)
    await connection.close()
asyncio.run(main())
embedded.stop(sys.argv[1])
"""


@root_only
def test_an_ordinary_user_runs_the_same(home: Path) -> None:
    """A user without any privilege and without a home directory gets both servers."""
    nobody = pwd.getpwnam("nobody")
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    python = python_for(nobody)
    if python is None:
        pytest.skip("nobody can neither read this environment nor run another Python with it")
    run = run_as(nobody, python, ORDINARY, str(home))
    assert run.stderr == ""
    assert run.stdout.split() == [str(nobody.pw_uid), "user", "42"]


def python_for(account: pwd.struct_passwd) -> str | None:
    """A Python that this account can run with what is installed here."""
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            run = run_as(account, python, "import asyncpg, psutil, afterturn.embedded")
        except PermissionError:
            continue
        if run.returncode == 0:
            return python
    return None


def run_as(
    account: pwd.struct_passwd, python: str, script: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run a script as that account, with this process's modules."""
    paths = [Path(embedded.__file__).parents[2], Path(asyncpg.__file__).parents[1]]
    return subprocess.run(
        [python, "-c", script, *arguments],
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=[],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(map(str, paths))},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
