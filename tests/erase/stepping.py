"""A scheduler that steps operations on real connections, statement by statement.

Every operation has a connection of its own and runs the product's code. It stops at *gates*: inside
the SQL functions before their advisory locks, after them, and before their first write; and
outside, before each commit. A gate in the database is an advisory lock that the scheduler holds;
a gate outside is an event. The scheduler lets one operation go on to its next gate, waits until
nothing moves any more, and chooses again, so a list of names is a schedule that can be repeated.

Gates need no change in the functions: the locking built-ins are shadowed through the search path,
writes are seen by statement triggers, and `read_state` is wrapped.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg

from afterturn.database import Connection, Database, connect, translating
from afterturn.settings import Settings

GATES: Final = """
create schema step;
create function step.gate() returns void language plpgsql as $$
declare
    session text := current_setting('step.session', true);
    side int := current_setting('step.side', true);
begin
    if session <> '' then
        -- Two locks in turn: the next one is held before this one is let go.
        perform set_config('step.side', (1 - side)::text, false);
        perform pg_catalog.pg_advisory_lock(session::int, side);
        perform pg_catalog.pg_advisory_unlock(session::int, side);
    end if;
end $$;
-- True the first time in a transaction.
create function step.first(what text) returns boolean language plpgsql as $$
begin
    if current_setting('step.' || what, true) = '1' then
        return false;
    end if;
    perform set_config('step.' || what, '1', true);
    return true;
end $$;
create function step.pg_advisory_xact_lock_shared(key bigint) returns void
language plpgsql as $$
begin
    if key >= 0 and step.first('locking') then
        perform step.gate();
    end if;
    perform pg_catalog.pg_advisory_xact_lock_shared(key);
    if key >= 0 and (key >> 60)::text = current_setting('step.depth', true) then
        perform step.gate();
    end if;
end $$;
create function step.pg_try_advisory_xact_lock(key bigint) returns boolean
language plpgsql as $$
begin
    if step.first('trying') then
        perform step.gate();
    end if;
    return pg_catalog.pg_try_advisory_xact_lock(key);
end $$;
create function step.before_write() returns trigger language plpgsql as $$
begin
    if step.first('writing') then
        perform step.gate();
    end if;
    return null;
end $$;
create trigger step before insert or update or delete on afterturn.turns
    for each statement execute function step.before_write();
create trigger step before insert or update or delete on afterturn.memories
    for each statement execute function step.before_write();
alter function afterturn.read_state(text) set schema step;
create function afterturn.read_state(
    path text, out erasing boolean, out erase bigint[], out content bigint[], out removed bigint[])
language plpgsql as $$
begin
    perform step.gate();
    select s.* into erasing, erase, content, removed from step.read_state(path) s;
    perform step.gate();
end $$;
"""
_BLOCKERS: Final = "select pid, pg_blocking_pids(pid) from unnest($1::int[]) pid"
_CLOSE: Final = "select pg_advisory_lock($1, $2)"
_OPEN: Final = "select pg_advisory_unlock($1, $2)"


class SteppedDatabase(Database):
    """One connection; each statement is a transaction that stops before its commit."""

    def __init__(self, url: str, settings: Settings, session: int) -> None:
        super().__init__(url, settings, pool_size=1)
        self._at = url, settings
        self.session = session
        self.waiting: asyncio.Event | None = None
        self.waits_for_others = False
        self._one: asyncpg.Connection[Any] | None = None
        self._free = asyncio.Lock()

    @property
    def pid(self) -> int:
        """The server process of the connection."""
        assert self._one is not None
        return int(self._one.get_server_pid())

    async def open(self) -> None:
        self._one = await connect(*self._at)
        await self._one.execute("set search_path = step, pg_catalog, public; set step.session = ''")

    async def close(self) -> None:
        if self._one is not None:
            await self._one.close()

    async def prepare(self, *, depth: int, side: int | None = None) -> None:
        """Gates on; scopes of this depth are what the operation locks last."""
        assert self._one is not None
        await self._one.execute(
            f"set step.session = '{self.session}'; set step.depth = '{depth - 1}'"
            + ("" if side is None else f"; set step.side = '{side}'")
        )

    async def quiet(self) -> None:
        """No gates in the database from here on, only those before commits."""
        assert self._one is not None
        await self._one.execute("set step.session = ''")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        async with self._free:
            assert self._one is not None
            with translating():
                yield self._one

    async def rows(self, sql: str, *args: object) -> list[asyncpg.Record]:
        async with self.connection() as connection, connection.transaction():
            rows = await connection.fetch(sql, *args)
            await self.pause()
        return rows

    async def row_or_none(self, sql: str, *args: object) -> asyncpg.Record | None:
        rows = await self.rows(sql, *args)
        return rows[0] if rows else None

    async def value(self, sql: str, *args: object) -> Any:
        return (await self.rows(sql, *args))[0][0]

    async def pause(self, *, until_others_moved: bool = False) -> None:
        """A gate of the client; the second kind is passed only after somebody else's step."""
        self.waiting, self.waits_for_others = asyncio.Event(), until_others_moved
        await self.waiting.wait()


Note = Callable[[str], None]
"""Puts a name beside the number of the step at which it is called."""


@dataclass
class Op:
    """One operation of a schedule."""

    name: str
    database: SteppedDatabase
    run: Callable[[SteppedDatabase, Note], Awaitable[object]]
    depth: int
    task: asyncio.Task[object] | None = None
    side: int = 0
    state: str = "new"  # new, gate, paused, busy, blocked, running, done

    @property
    def is_done(self) -> bool:
        """Whether it has returned or raised."""
        return self.task is not None and self.task.done()


Chooser = Callable[[int, list[str]], str]
"""Given the number of the step and who can move: who does."""


@dataclass
class History:
    """What happened: names of the operations in the order of their steps, and their results."""

    steps: list[str] = field(default_factory=list)
    choices: list[list[str]] = field(default_factory=list)
    results: dict[str, object] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)

    def note(self, name: str) -> None:
        """This happened during the step that is under way."""
        self.notes[name] = len(self.steps)


class Scheduler:
    """Runs operations in the order of a schedule."""

    def __init__(self, control: asyncpg.Connection[Any]) -> None:
        self._control = control
        self._pid = control.get_server_pid()

    async def run(self, ops: Sequence[Op], choose: Chooser) -> History:
        """Step until all are done."""
        history = History()
        for op in ops:
            op.side = 0
            await self._control.execute(_CLOSE, op.database.session, 0)
            await op.database.prepare(depth=op.depth, side=0)
        try:
            while not all(op.is_done for op in ops):
                able = [op for op in ops if op.state in ("new", "gate", "paused")]
                # Nobody else can move: whoever found a scope busy tries again.
                able = able or [op for op in ops if op.state == "busy"]
                if not able:
                    raise AssertionError(f"nobody can move after {history.steps}")
                names = [op.name for op in able]
                chosen = choose(len(history.steps), names)
                history.choices.append(names)
                history.steps.append(chosen)
                if chosen not in names:
                    states = {op.name: op.state for op in ops}
                    raise AssertionError(f"{chosen} cannot move after {history.steps}: {states}")
                await self._step(next(op for op in able if op.name == chosen), ops, history)
            for op in ops:
                assert op.task is not None
                error = op.task.exception()
                history.results[op.name] = error if error is not None else op.task.result()
            return history
        finally:
            for op in ops:
                if op.task is not None and not op.task.done():
                    op.task.cancel()
            await self._control.execute("select pg_advisory_unlock_all()")

    async def _step(self, op: Op, ops: Sequence[Op], history: History) -> None:
        state, op.state = op.state, "running"
        if state == "new":
            history.note(f"{op.name} starts")
            op.task = asyncio.ensure_future(op.run(op.database, history.note))
        elif state == "gate":
            await self._control.execute(_CLOSE, op.database.session, 1 - op.side)
            await self._control.execute(_OPEN, op.database.session, op.side)
            op.side = 1 - op.side
        else:
            assert op.database.waiting is not None
            waiting, op.database.waiting = op.database.waiting, None
            waiting.set()
        for other in ops:
            if other is not op and other.state == "busy":
                other.state = "paused"
        await self._settle(ops)

    async def _settle(self, ops: Sequence[Op]) -> None:
        """Until every operation stands at a gate, waits for a lock of another, or has ended."""
        async with asyncio.timeout(20):
            while True:
                await asyncio.sleep(0)
                moving = []
                for op in ops:
                    if op.is_done:
                        op.state = "done"
                    elif op.database.waiting is not None:
                        if op.state == "running" or op.state == "blocked":
                            op.state = "busy" if op.database.waits_for_others else "paused"
                    elif op.state in ("running", "blocked"):
                        moving.append(op)
                if not moving:
                    return
                rows = await self._control.fetch(_BLOCKERS, [op.database.pid for op in moving])
                blockers = {row[0]: row[1] for row in rows}
                for op in moving:
                    found = blockers[op.database.pid]
                    if op.is_done or op.database.waiting is not None:
                        op.state = "running"  # it went on meanwhile: look again
                    elif self._pid in found:
                        op.state = "gate"
                    else:
                        op.state = "blocked" if found else "running"
                if all(op.state not in ("running",) for op in moving) and not any(
                    op.is_done or op.database.waiting is not None for op in moving
                ):
                    return


def following(history: History) -> list[str] | None:
    """The prefix of the next schedule in depth-first order, None after the last."""
    for at in range(len(history.steps) - 1, -1, -1):
        names = history.choices[at]
        place = names.index(history.steps[at])
        if place + 1 < len(names):
            return [*history.steps[:at], names[place + 1]]
    return None


def along(prefix: Sequence[str]) -> Chooser:
    """Follow a prefix, then always the first that can move."""

    def choose(at: int, names: list[str]) -> str:
        return prefix[at] if at < len(prefix) else names[0]

    return choose


def at_random(seed: str) -> Chooser:
    """The schedule of a seed."""
    rng = random.Random(seed)
    return lambda _, names: rng.choice(names)
