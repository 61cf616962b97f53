"""One run: start, torture, let it settle, audit, tell."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from traceback import format_exc
from typing import Any, Final

from afterturn import Memory, MemoryScope, Settings, embedded
from afterturn.errors import AfterturnError
from tests.torturing import findings, judging, sabotage, words
from tests.torturing.acting import Actor
from tests.torturing.callers import Callers
from tests.torturing.faults import Injector, schedule
from tests.torturing.fleet import FLOWER_LOGIN, Fleet, environment, processes_of
from tests.torturing.history import Tally, read_histories
from tests.torturing.judging import Verdict, Violation
from tests.torturing.looking import look_everywhere
from tests.torturing.story import Story, stored, tell

_READY_SECONDS: Final = 90.0
_DRAIN_SECONDS: Final = 150.0
_SAMPLE: Final = 150
_SHOWN_OF_A_KIND: Final = 10
TEMPORARY: Final = "at-torture-"

# The last line: what was done, and what was found of the kinds that a promise names.
_FIRST: Final = ("turns", "acknowledged", "kills", "broker_losses")
_COUNTED: Final = {
    "lost": ("lost", "fact lost", "missed", "not retrievable", "partial"),
    "doubled": ("doubled", "fact doubled or misplaced", "tables hold it otherwise"),
    "out_of_order": ("order",),
    "resurrected": (
        "resurrected", "fact resurrected", "erased text in a table", "erased text read",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    seed: int
    duration: float
    faults: str
    home: Path
    notes: Path
    script: Path
    sabotage: str | None


@dataclass
class Report:
    """How it went."""

    violations: list[Violation] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)

    def add(self, code: str, details: list[str] | Iterator[str]) -> None:
        """Violations that belong to no op."""
        self.violations += [Violation(code, "", detail) for detail in details]


def run(options: Options) -> Report:
    """All of it. The home and the notes stay."""
    options.notes.mkdir(parents=True)
    env = environment(options.home)
    for name in [name for name in os.environ if name.startswith("AFTERTURN_")]:
        del os.environ[name]
    os.environ.update(env)
    fleet = Fleet(options.home, options.notes, env)
    callers = Callers(options.script, options.notes, env, options.seed)
    report = Report()
    began = time.monotonic()
    try:
        fleet.start()
        urls = fleet.wait_ready(_READY_SECONDS)
        _say(f"the fleet is up after {time.monotonic() - began:.1f} s, home {options.home}")
        injector = Injector(
            fleet,
            callers,
            urls["database_url"],
            embedded.redis_client_url(urls["broker_url"]),
            schedule(options.seed, options.duration, options.faults),
            log=_fault_log(options.notes),
        )
        report.add("flower", _torture(options, fleet, callers, injector))
        try:
            asyncio.run(_audit(options, fleet, injector, report))
        except Exception as error:  # noqa: BLE001 - an audit that cannot be made is no success
            report.add("audit failed", [f"{type(error).__name__}: {error}", format_exc()])
        report.numbers |= {
            "kills": injector.counts.get("kill", 0),
            "pauses": injector.counts.get("pause", 0),
            "cuts": injector.counts.get("cut", 0),
            "server_restarts": injector.counts.get("server", 0),
            "broker_losses": injector.broker_losses,
            "rings_lost": injector.rings_lost,
            "rings_doubled": injector.rings_doubled,
        }
    finally:
        callers.stop(1.0)
        problem = fleet.stop()
        report.add("stop", [problem] if problem else [])
        report.add("left behind", _left_behind(options.home))
    report.add("files", findings.told(_file_leaks(options)))
    report.add("ended by itself", [*fleet.ended, *callers.ended])
    report.add("said on stderr", [p.name for p in options.notes.glob("*-?.err") if _said(p)])
    return report


def _torture(options: Options, fleet: Fleet, callers: Callers, injector: Injector) -> list[str]:
    """The time of the faults; what Flower showed meanwhile."""
    callers.start()
    tally = Tally(options.notes)
    leaks: list[tuple[str, str]] = []
    began = time.monotonic()
    told_at = began
    while (elapsed := time.monotonic() - began) < options.duration:
        injector.tick(elapsed)
        fleet.keep_running()
        callers.start()
        if time.monotonic() - told_at > 10:
            told_at += 10
            _say(f"{elapsed:5.0f} s {_progress(tally.update())} faults {injector.counts}")
            leaks += _flower(fleet) or []
            injector.analyze()
        time.sleep(0.05)
    injector.end()
    callers.stop(12.0)
    return findings.told(leaks)


async def _audit(options: Options, fleet: Fleet, injector: Injector, report: Report) -> None:
    fleet.keep_running()
    fleet.wait_ready(_READY_SECONDS)
    async with Memory(Settings.load()) as memory:
        settled = time.monotonic()
        report.add("not drained", await _drain(memory))
        report.numbers["drain_seconds"] = round(time.monotonic() - settled, 1)
        story = tell(read_histories(options.notes))
        verdicts = judging.judge(story)
        if options.sabotage:
            done = await sabotage.plant(
                options.sabotage, verdicts, options.home, injector.database_url, injector.broker_url
            )
            _say(f"sabotage: {done}")
        report.add("left over", await findings.left_over(injector.database_url))
        await _look_around(options, memory)
        held = await findings.gather(memory, injector.database_url, words.roots())
        await _audit_held(memory, verdicts, held, report)
        await _audit_by_command(fleet, held, report)
        story.looks = tell(read_histories(options.notes)).looks
    report.violations += judging.check_tokens(story, verdicts)
    report.violations += judging.check_looks(story, verdicts)
    report.violations += judging.check_alarms(story)
    report.violations += judging.check_order(story.receipts)
    report.add("redis", findings.told(findings.redis_words(injector.broker_url)))
    report.add("flower", findings.told(_flower(fleet) or []))
    report.numbers |= _numbers(story, verdicts, held)


async def _drain(memory: Memory) -> list[str]:
    """Wait until nothing is outstanding, publish what still waits, wait again."""
    problems = []
    deadline = time.monotonic() + _DRAIN_SECONDS
    for root in words.roots():
        scope = MemoryScope.of(*root)
        while True:
            try:
                await memory.drain(scope, timeout=max(0.1, deadline - time.monotonic()))
                await memory.flush(scope)
                await memory.drain(scope, timeout=max(5.0, deadline - time.monotonic()))
                break
            except AfterturnError as error:
                if time.monotonic() > deadline:
                    problems.append(f"{scope.path}: {error}")
                    break
                await asyncio.sleep(0.5)
    return problems


async def _look_around(options: Options, memory: Memory) -> None:
    """Everything visible at every scope, noted as any reader does."""
    actor = Actor(options.notes, "auditor", 0, 0, options.seed)
    for scope in _scopes():
        await look_everywhere(actor, memory, scope)


def _scopes() -> list[words.Segments]:
    chats = words.conversations()
    return sorted({*chats, *(chat[:2] for chat in chats), *words.vault(), *words.roots()})


async def _audit_held(
    memory: Memory, verdicts: dict[str, Verdict], held: findings.Held, report: Report
) -> None:
    report.violations += judging.check_held(verdicts, held)
    report.add("reads differ", await findings.compare_reads(memory, held, _scopes()))
    present = [v.said for v in verdicts.values() if v.fate == "present"]
    for said in present[:: max(1, len(present) // _SAMPLE)]:
        if not await findings.is_retrieved(memory, said, held):
            about = f"{said.kind} {said.id} of {stored(said.scope)}"
            report.violations.append(Violation("not retrievable", said.op, about))


async def _audit_by_command(fleet: Fleet, held: findings.Held, report: Report) -> None:
    """The command's export is the facade's."""
    for root in words.roots():
        lines = await asyncio.to_thread(findings.export_by_command, root, fleet.env)
        own = [i for i in held.items if i["scope_path"].split("/")[1] == root[0]]
        if _countable(lines) != _countable(own):
            report.add("reads differ", [f"`afterturn export {root[0]}` differs from export()"])


def _countable(items: list[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(item, sort_keys=True) for item in items)


def _flower(fleet: Fleet) -> list[tuple[str, str]] | None:
    """What Flower shows; None when it does not answer."""
    url = fleet.flower_url()
    if url is None:
        return None
    try:
        return list(findings.flower_words(url, FLOWER_LOGIN))
    except OSError:
        return None


def _file_leaks(options: Options) -> Iterator[tuple[str, str]]:
    """Nothing that was ever said is in any file but PostgreSQL's own."""
    yield from findings.file_words(options.home, [options.home / "pg"])
    for pattern in ("*.err", "up-*.json"):
        for path in options.notes.glob(pattern):
            for word in words.markers_in_bytes(path.read_bytes()):
                yield f"output {path.name}", word


def _said(path: Path) -> bool:
    """Whether a caller wrote to stderr: a task nobody awaited, a crash."""
    return not path.name.startswith("up-") and path.stat().st_size > 0


def _left_behind(home: Path) -> list[str]:
    """Processes that still run when all should have ended."""
    deadline = time.monotonic() + 25
    while (left := processes_of(home)) and time.monotonic() < deadline:
        time.sleep(0.2)
    told = []
    for process in left:
        with contextlib.suppress(Exception):
            told.append(f"process {process.pid} {' '.join(process.cmdline())[:120]}")
            process.kill()
    return told


def _numbers(story: Story, verdicts: dict[str, Verdict], held: findings.Held) -> dict[str, Any]:
    said = list(story.said.values())
    turns = [s for s in said if s.kind == "turn"]
    fates = Counter(v.fate for v in verdicts.values())
    parked = [s for s in turns if verdicts[s.op].fate != "gone" and held.is_parked(s)]
    return {
        "turns": len(turns),
        "acknowledged": sum(s.acked for s in turns),
        "refused": sum(s.refused == "refused" for s in turns),
        "unknown": sum(s.outcome == "unknown" for s in turns),
        "records": len(said) - len(turns),
        "must_be_present": fates["present"],
        "must_be_gone": fates["gone"],
        "either": fates["either"],
        "forgets": sum(e.done_at is not None for e in story.erases.values()),
        "flushes": story.counts.get("flushed", 0),
        "reads": len(story.looks),
        "reads_refused": story.counts.get("not_seen", 0),
        "facts": sum(i["kind"] == "record" and i["origin"] == "extracted" for i in held.items),
        "parked": len(parked),
        "parked_plain": sum(s.mood == "plain" for s in parked),
    }


def _progress(counts: dict[str, int]) -> str:
    names = ("acked", "refused", "unknown", "receipt", "flushed", "saw", "not_seen", "crash")
    return " ".join(f"{name} {counts.get(name, 0)}" for name in names)


def _fault_log(notes: Path) -> Any:
    began = time.monotonic()

    def log(line: str) -> None:
        with (notes / "faults.log").open("a") as file:
            file.write(f"{time.monotonic_ns()} {time.monotonic() - began:6.1f} {line}\n")

    return log


def show(options: Options, report: Report) -> str:
    """Print the violations; the last line."""
    kinds: Counter[str] = Counter()
    for violation in report.violations:
        kinds[violation.code] += 1
        if kinds[violation.code] <= _SHOWN_OF_A_KIND:
            print(violation)
    if kinds:
        print(f"violations by kind: {dict(kinds)}")
    print(" ".join(f"{name}={value}" for name, value in report.numbers.items()))
    first = {name: report.numbers.get(name, "?") for name in _FIRST}
    found = {name: sum(kinds[code] for code in codes) for name, codes in _COUNTED.items()}
    told = " ".join(f"{name}={value}" for name, value in {**first, **found}.items())
    verdict = "VIOLATED" if report.violations else "ok"
    return (
        f"torture seed={options.seed} duration={options.duration:g}s faults={options.faults} "
        f"{told} violations={len(report.violations)} VERDICT {verdict}"
    )


def clean_up(options: Options) -> None:
    """Remove the home and the notes."""
    for path in (options.home, options.notes):
        shutil.rmtree(path, ignore_errors=True)
    if options.home.parent.name.startswith(TEMPORARY):
        options.home.parent.rmdir()


def _say(text: str) -> None:
    print(text, flush=True)
    sys.stdout.flush()
