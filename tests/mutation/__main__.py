"""Run every mutant against the few tests that should notice it.

    python -m tests.mutation [NAME …]

Works on a copy of the checkout, with one embedded server for all. Prints a table of mutant, the
test that went red and the invariant it guards. Exits 1 when a mutant survives, cannot be made, or
cannot run, and when a test is red without any mutant.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from afterturn import embedded
from tests.mutation.mutants import MUTANTS, Change, Mutant

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src", "schema", "tests", "tasks", "workers", "pyproject.toml")
_FUNCTION = r"create or replace function afterturn\.{}\(.*?\n(?:end )?\$\$;"


class CannotMutate(Exception):
    """The text to change is not there, or stands there more than once."""


@dataclass
class Bench:
    """A copy of the checkout that is changed and put right again."""

    folder: Path
    environment: dict[str, str]

    def apply(self, changes: Iterable[Change]) -> None:
        """Change the copy."""
        for change in changes:
            file = self.folder / change.file
            file.write_text(mutated(file.read_text("utf-8"), change), "utf-8")

    def restore(self, changes: Iterable[Change]) -> None:
        """As it was."""
        for name in {change.file for change in changes}:
            shutil.copy(ROOT / name, self.folder / name)

    def test(self, tests: Sequence[str]) -> tuple[str, list[str]]:
        """`green`, `red` or `broken`, and the names of what failed."""
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *tests],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        failed = re.findall(r"^FAILED \S+?::(\w+)", done.stdout, re.M)
        if done.returncode == 0:
            return "green", []
        if done.returncode == 1 and failed and not re.search(r"^ERROR tests/", done.stdout, re.M):
            return "red", list(dict.fromkeys(failed))
        return "broken", [done.stdout[-2_000:] + done.stderr[-1_000:]]


def mutated(text: str, change: Change) -> str:
    """The text with the change made; raises `CannotMutate`."""
    start, end = 0, len(text)
    if change.function:
        found = re.search(_FUNCTION.format(change.function), text, re.S)
        if found is None:
            raise CannotMutate(f"{change.file} has no function {change.function}")
        start, end = found.span()
    times = text.count(change.old, start, end)
    if times != 1:
        raise CannotMutate(f"{change.file} {change.function}: {times} times {change.old!r}")
    return text[:start] + text[start:end].replace(change.old, change.new) + text[end:]


def judge(bench: Bench, mutant: Mutant) -> tuple[bool, str]:
    """Whether the mutant was noticed as it should be, and what to print."""
    try:
        bench.apply(mutant.changes)
        outcome, failed = bench.test(mutant.tests)
        if outcome != "red":
            return False, f"SURVIVED ({outcome}) {' '.join(failed)}"
        told = ", ".join(failed)
        if mutant.alone:
            for change in mutant.changes:
                bench.restore(mutant.changes)
                bench.apply([change])
                outcome, failed = bench.test(mutant.tests)
                if outcome != "green":
                    return False, f"NOT REDUNDANT ({outcome}: {failed}) {change.new!r}"
            told += f"; each of the {len(mutant.changes)} alone stays green"
        return True, told
    except CannotMutate as error:
        return False, f"CANNOT BE MADE: {error}"
    finally:
        bench.restore(mutant.changes)


def run(bench: Bench, mutants: Sequence[Mutant]) -> int:
    """All of them; the exit code."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    outcome, failed = bench.test(tests)
    if outcome != "green":
        print(f"without any mutant the tests are {outcome}: {failed}")
        return 1
    print(f"{len(tests)} tests are green without a mutant\n")
    survivors = 0
    for mutant in mutants:
        started = time.monotonic()
        noticed, told = judge(bench, mutant)
        survivors += not noticed
        print(f"{'red ' if noticed else 'BAD '} {mutant.name}", flush=True)
        print(f"       invariant: {mutant.invariant}")
        print(f"       {told}  ({time.monotonic() - started:.0f} s)", flush=True)
    print(f"\n{len(mutants)} mutants, {survivors} not noticed")
    return 1 if survivors else 0


def main(names: Sequence[str]) -> int:
    """The command."""
    chosen = [m for m in MUTANTS if not names or any(name in m.name for name in names)]
    folder = Path(tempfile.mkdtemp(prefix="at-mutants-", dir="/tmp"))
    home = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    try:
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, folder / name, ignore=ignored)
            else:
                shutil.copy(source, folder / name)
        servers = embedded.ensure(home, durable=False)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("AFTERTURN_")}
        environment |= {
            "PYTHONPATH": f"{folder / 'src'}:{folder}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "AFTERTURN_DATABASE_URL": str(servers.database_url),
            "AFTERTURN_BROKER_URL": str(servers.broker_url),
        }
        return run(Bench(folder, environment), chosen)
    finally:
        embedded.stop(home)
        shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
