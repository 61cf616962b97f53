"""The faults: which, when, on whom. The seed fixes all of it before the run begins."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import asyncpg
import psutil  # type: ignore[import-untyped]  # it ships no types
import redis

from tests.torturing.callers import Callers
from tests.torturing.fleet import LEASE_SECONDS, Fleet
from tests.torturing.thieves import Thief

# How often each comes in a deck of faults; about a minute's worth.
WORKER_FAULTS: Final = {
    "kill child": 9,
    "pause child": 6,
    "kill worker": 4,
    "pause worker": 2,
    "kill beat": 1,
    "pause beat": 1,
    "kill flower": 1,
    "kill up": 1,
    "pause up": 1,
    "kill caller": 5,
    "pause caller": 4,
}
SERVER_FAULTS: Final = {
    "kill postgres": 2,
    "kill backend": 1,
    "cut connections": 2,
    "stop postgres": 1,
    "pause postgres": 1,
    "kill valkey": 3,
    "empty valkey": 3,
    "pause valkey": 2,
    "replace valkey": 2,
    "demote valkey": 1,
    "lose rings": 2,
    "double rings": 2,
    "kill supervisor": 1,
}
DECKS: Final = {
    "none": {},
    "workers": WORKER_FAULTS,
    "servers": SERVER_FAULTS,
    "all": WORKER_FAULTS | SERVER_FAULTS,
}
_SECONDS_EACH: Final = 1.25
_QUIET_SECONDS: Final = 3.0  # at the beginning; half of it at the end


@dataclass(frozen=True)
class Fault:
    """At `at` seconds: what, the place of its victim among the possible ones, how long."""

    at: float
    what: str
    pick: float
    seconds: float


def schedule(seed: int, duration: float, deck: str) -> list[Fault]:
    """The faults of a run, evenly spread; the same arguments give the same ones."""
    rng = random.Random(f"faults-{seed}")
    cards: list[str] = []
    faults: list[Fault] = []
    at = _QUIET_SECONDS
    while DECKS[deck] and at < duration - _QUIET_SECONDS / 2:
        if not cards:
            cards = [what for what, count in DECKS[deck].items() for _ in range(count)]
            rng.shuffle(cards)
        what = cards.pop()
        longest = LEASE_SECONDS * 1.6 if "postgres" not in what else 3.0
        faults.append(Fault(round(at, 2), what, rng.random(), rng.uniform(0.4, longest)))
        at += _SECONDS_EACH * rng.uniform(0.3, 1.7)
    return faults


@dataclass
class Injector:
    """Does what the schedule says, and undoes what has to be undone."""

    fleet: Fleet
    callers: Callers
    database_url: str
    broker_url: str
    waiting: list[Fault]
    counts: dict[str, int] = field(default_factory=dict)
    log: Callable[[str], None] = lambda _: None
    broker_losses: int = 0  # times at which the broker lost what it held
    rings_lost: int = 0
    rings_doubled: int = 0
    _due: list[tuple[float, Callable[[], object]]] = field(default_factory=list)  # to be undone

    def tick(self, elapsed: float) -> None:
        """Inject what is due."""
        self._wake(time.monotonic())
        while self.waiting and self.waiting[0].at <= elapsed:
            fault = self.waiting.pop(0)
            kind, _, whom = fault.what.partition(" ")
            done = False
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                done = self._inject(kind, whom, fault)
            self.log(f"{fault.what} pick={fault.pick:.3f} for={fault.seconds:.1f} done={done}")
            if done:
                self.counts[kind] = self.counts.get(kind, 0) + 1
                if whom == "valkey" and kind in ("kill", "empty", "replace"):
                    self.broker_losses += 1
                if whom in ("postgres", "backend", "valkey", "supervisor") and kind in (
                    "kill", "stop", "replace",
                ):  # fmt: skip
                    self.counts["server"] = self.counts.get("server", 0) + 1

    def analyze(self) -> None:
        """What autovacuum does sooner or later: keep samples of the tables' rows."""
        _asked_postgres(self.database_url, "analyze")

    def end(self) -> None:
        """Let everything that stands still go on."""
        self._wake(float("inf"))

    def _inject(self, kind: str, whom: str, fault: Fault) -> bool:
        if kind == "cut":
            return _asked_postgres(self.database_url, _CUT)
        if whom == "rings":
            thief = Thief(self.broker_url, fault.seconds, doubles=kind == "double")
            self._later(fault.seconds, lambda: self._note_theft(thief, kind))
            return True
        if kind == "demote":
            self._later(fault.seconds, lambda: _told_broker(self.broker_url, *_PROMOTED))
            return _told_broker(self.broker_url, *_DEMOTED)
        if kind == "empty":
            return _told_broker(self.broker_url, "FLUSHALL")
        if kind == "replace":  # another one at the same address, which holds nothing
            return _told_broker(self.broker_url, "FLUSHALL") and _told_broker(
                self.broker_url, "SHUTDOWN", "NOSAVE"
            )
        if whom == "up" and kind == "kill":
            return self.fleet.kill()
        victim = self._victim(whom, fault.pick)
        if victim is None:
            return False
        match kind:
            case "kill":
                victim.kill()
            case "stop":
                victim.send_signal(signal.SIGINT)
            case "pause":
                victim.send_signal(signal.SIGSTOP)
                self._later(fault.seconds, lambda: _resume(victim))
        return True

    def _victim(self, whom: str, pick: float) -> psutil.Process | None:
        if whom == "caller":
            pids = self.callers.pids()
        elif whom == "up":
            pids = [self.fleet.pid] if self.fleet.pid else []
        elif whom in ("postgres", "valkey", "supervisor"):
            pids = [pid for name, pid in self.fleet.servers().items() if name == whom]
        elif whom == "backend":
            postgres = self.fleet.servers().get("postgres")
            pids = [c.pid for c in psutil.Process(postgres).children()] if postgres else []
        else:
            pids = [process.pid for process in self.fleet.parts().get(whom, [])]
        return psutil.Process(sorted(pids)[int(pick * len(pids))]) if pids else None

    def _wake(self, now: float) -> None:
        for due, undo in list(self._due):
            if due <= now:
                self._due.remove((due, undo))
                undo()

    def _later(self, seconds: float, undo: Callable[[], object]) -> None:
        self._due.append((time.monotonic() + seconds, undo))

    def _note_theft(self, thief: Thief, kind: str) -> None:
        taken = thief.finish()
        if kind == "double":
            self.rings_doubled += taken
        else:
            self.rings_lost += taken


_CUT = """
select pg_terminate_backend(pid) from pg_stat_activity
where pid <> pg_backend_pid() and backend_type = 'client backend'
"""


def _asked_postgres(url: str, sql: str) -> bool:
    import asyncio

    async def ask() -> None:
        connection = await asyncpg.connect(url, timeout=3)
        await connection.execute(sql)
        await connection.close(timeout=2)

    try:
        asyncio.run(ask())
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
    return True


# A failover as clients see it: the server answers and takes nothing.
_DEMOTED: Final = ("REPLICAOF", "127.0.0.1", "1")
_PROMOTED: Final = ("REPLICAOF", "NO", "ONE")


def _told_broker(url: str, *command: str) -> bool:
    """Whether it was told; a shutdown is answered by the connection's end."""
    try:
        with redis.Redis.from_url(url, socket_timeout=3, socket_connect_timeout=3) as client:
            client.execute_command(*command)
    except redis.ConnectionError:
        return command[0] == "SHUTDOWN"
    except (redis.RedisError, OSError):
        return False
    return True


def _resume(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        if process.is_running():
            process.send_signal(signal.SIGCONT)


def kill_quietly(pid: int) -> None:
    """kill -9, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
