"""A child is kept running, one generation at a time, and ended with all it forked."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterturn.processes import Child, Launch, RestartPolicy, lock_for_child, stop_all

from .running import answer, is_gone, send, start_script, wait_until

SLEEPER = "import signal; print('up', flush=True); signal.pause()"
QUICK = RestartPolicy(first_seconds=0.01, cap_seconds=0.02)
ONCE = RestartPolicy(first_seconds=None)
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals are Linux's")


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


@pytest.fixture
def children() -> Iterator[list[Child]]:
    """Children that are stopped in the end, whatever happened."""
    made: list[Child] = []
    yield made
    for child in made:
        child.grace_seconds = 0.0
    stop_all(made)
    assert all(child.pid is None for child in made)


def poll_until(child: Child, text: str, output: io.StringIO) -> None:
    def seen() -> bool:
        child.poll()
        return text in output.getvalue()

    wait_until(seen, f"{text!r} in the output")


def test_delays_double_up_to_the_cap() -> None:
    """The wait before a restart doubles with each death in a row, up to the cap."""
    policy = RestartPolicy(first_seconds=0.1, cap_seconds=5.0)
    assert [policy.delay(n) for n in (1, 2, 3, 6, 7, 1000)] == [0.1, 0.2, 0.4, 3.2, 5.0, 5.0]
    assert ONCE.delay(1) is None


def test_a_child_that_dies_is_started_again(children: list[Child]) -> None:
    """Each death is told, counted, and followed by a start."""
    child = Child("dies", python("raise SystemExit(4)"), restart=QUICK)
    children.append(child)
    child.start()
    events: list[str] = []

    def five_events() -> bool:
        event = child.poll()
        if event is not None:
            events.append(event)
        return len(events) == 5

    wait_until(five_events, "five events")
    assert events == ["exited", "started", "exited", "started", "exited"]
    assert (child.failures, child.restarts, child.returncode) == (3, 3, 4)


def test_a_steady_run_is_forgiven_its_failures(children: list[Child]) -> None:
    """After it ran long enough, deaths before that no longer count."""
    policy = RestartPolicy(first_seconds=0.01, steady_seconds=0.05)
    child = Child("steady", python(SLEEPER), restart=policy)
    children.append(child)
    child.start()
    child.kill()
    wait_until(lambda: child.poll() == "exited", "it died")
    assert child.failures == 1
    wait_until(lambda: child.poll() == "started", "it is back")

    def forgiven() -> bool:
        child.poll()
        return child.failures == 0

    wait_until(forgiven, "its failure was forgiven")


def test_a_command_that_vanished_is_tried_again(children: list[Child], tmp_path: Path) -> None:
    """A first start that is impossible raises; a restart that is impossible is one more death."""
    program = tmp_path / "program"
    child = Child("vanishes", [program], restart=QUICK)
    children.append(child)
    with pytest.raises(FileNotFoundError):
        child.start()
    program.symlink_to("/bin/true")
    child.start()
    program.unlink()

    def died_twice() -> bool:
        child.poll()
        return child.failures >= 2

    wait_until(died_twice, "the restart failed")
    assert child.returncode == 127


def test_output_gets_the_name_in_front(children: list[Child]) -> None:
    """Lines of stdout and stderr are copied with a prefix, the unfinished last one too."""
    output = io.StringIO()
    script = "import sys; print('out', flush=True); sys.stderr.write('err\\nrest')"
    child = Child("worker", python(script), output=output, restart=ONCE)
    children.append(child)
    child.start()
    wait_until(lambda: child.poll() == "exited", "it ended")
    assert output.getvalue() == "worker | out\nworker | err\nworker | rest\n"


def test_output_goes_to_the_end_of_a_file(children: list[Child], tmp_path: Path) -> None:
    """A log file keeps what was in it."""
    log = tmp_path / "log"
    log.write_text("before\n")
    child = Child("worker", python("print('after')"), output=log, restart=ONCE)
    children.append(child)
    child.start()
    wait_until(lambda: child.poll() == "exited", "it ended")
    assert log.read_text() == "before\nafter\n"


FORKING = """
import os, signal
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print('forked', os.getpid(), flush=True)
    while True:
        signal.pause()
print('main', flush=True)
signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_child_forked_ends_with_it(children: list[Child], number: signal.Signals) -> None:
    """When the main process is gone, killed or stopped, the rest of its group is killed."""
    output = io.StringIO()
    child = Child("forks", python(FORKING), output=output, restart=ONCE, prefix="")
    children.append(child)
    child.start()
    poll_until(child, "forked", output)
    poll_until(child, "main", output)
    forked = int(output.getvalue().split("forked ")[1].split()[0])
    if number == signal.SIGKILL:
        send(child.pid, signal.SIGKILL)
        wait_until(lambda: child.poll() == "exited", "it died")
    else:
        child.stop()
    assert child.returncode == -number
    wait_until(lambda: is_gone(forked), "what it forked ended")


def test_a_child_that_ignores_the_stop_signal_is_killed(children: list[Child]) -> None:
    """After the grace period nothing is asked any more."""
    script = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}; {SLEEPER}"
    output = io.StringIO()
    child = Child("deaf", python(script), output=output, grace_seconds=0.05)
    children.append(child)
    child.start()
    poll_until(child, "up", output)
    child.stop()
    assert child.returncode == -signal.SIGKILL


def test_a_harder_signal_comes_before_the_kill(children: list[Child]) -> None:
    """Who is deaf to the first signal can still end by the second, which is sent once."""
    script = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True)"
    output = io.StringIO()
    child = Child(
        "hard of hearing",
        python(f"{script}; signal.pause(); signal.pause()"),
        output=output,
        stop_signal=signal.SIGINT,
        harder_signal=signal.SIGQUIT,
        grace_seconds=5.0,
    )
    children.append(child)
    child.start()
    poll_until(child, "up", output)
    child.request_stop()
    child.press(1.0)
    assert child.poll() is None
    child.press(6.0)
    wait_until(lambda: child.poll() == "exited", "it ended")
    assert child.returncode == -signal.SIGQUIT


def test_stopping_is_legal_at_any_time(children: list[Child]) -> None:
    """Before the start, twice, and between a death and the restart; and it can start again."""
    child = Child("calm", python(SLEEPER))
    children.append(child)
    child.stop()
    child.start()
    child.start()
    child.stop()
    child.stop()
    assert child.pid is None
    child.start()
    child.kill()
    wait_until(lambda: child.poll() == "exited", "it died")
    child.stop()
    assert child.poll() is None
    child.start()
    assert child.pid is not None


LEAVING_ONE = """
import os, signal
receiving, sending = os.pipe()
if os.fork() == 0:
    os.setsid()    # out of the group, as backends of PostgreSQL are
    print('left', os.getpid(), flush=True)
    os.write(sending, b'x')
    signal.pause()
os.read(receiving, 1)
"""


def test_no_two_generations_side_by_side(children: list[Child], tmp_path: Path) -> None:
    """As long as something of the last run holds the lock, the next does not start."""
    lock, output = tmp_path / "lock", io.StringIO()
    child = Child(
        "guarded", python(LEAVING_ONE), output=output, restart=QUICK, lock_path=lock, prefix=""
    )
    children.append(child)
    child.start()
    poll_until(child, "left", output)
    left = int(output.getvalue().split()[1])

    def blocked() -> bool:
        assert child.poll() != "started"
        return child.blocked_seconds > 0.1

    wait_until(blocked, "the start waits")
    assert lock_for_child(lock) is None
    child.request_stop()
    assert child.poll() is None
    send(left, signal.SIGKILL)
    wait_until(lambda: is_gone(left), "the last of the first generation ended")
    again = Child("guarded", python(SLEEPER), lock_path=lock)
    children.append(again)
    assert again.start()


OWNER = """
import sys, time
from afterturn.processes import Child
child = Child("orphan", [sys.executable, "-c", "import signal; signal.pause()"])
child.start()
print(child.pid, flush=True)
sys.stdin.readline()
"""


@linux_only
def test_a_child_ends_with_an_owner_that_is_killed(children: list[Child]) -> None:
    """kill -9 of the owner sends the child its death signal."""
    with start_script(OWNER) as owner:
        pid = int(answer(owner))
        owner.kill()
        owner.communicate()
    wait_until(lambda: is_gone(pid), "the child ended with its owner")


def test_environment_and_directory_are_the_childs_own(
    children: list[Child], tmp_path: Path
) -> None:
    """A child gets the environment and the directory of its launch, nothing else."""
    output = io.StringIO()
    script = "import os; print(os.environ.get('ONLY'), os.environ.get('HOME'), os.getcwd())"
    launch = Launch(env={"ONLY": "this"}, cwd=tmp_path)
    child = Child("own", python(script), launch=launch, output=output, restart=ONCE, prefix="")
    children.append(child)
    child.start()
    wait_until(lambda: child.poll() == "exited", "it ended")
    assert output.getvalue() == f"this None {tmp_path.resolve()}\n"
