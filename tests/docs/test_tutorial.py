"""The tutorial, done as its reader does it: `afterturn up`, then each program and its output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterturn import embedded
from tests.docs.pages import DOCS, blocks

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

TUTORIAL = DOCS / "tutorial"
AFTERTURN = Path(sys.executable).with_name("afterturn")
_CELL = """
import ast, asyncio, sys
cell = compile(sys.stdin.read(), "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
asyncio.run(eval(cell))
"""
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """What the reader has: nothing set but a home, and the fleet up in another terminal."""
    home = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    kept = {k: v for k, v in os.environ.items() if not k.startswith("AFTERTURN_")}
    environment = {**kept, "AFTERTURN_HOME": str(home), "PYTHONWARNINGS": "error"}
    command = [str(AFTERTURN), "up", "--no-flower"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        try:
            assert any("afterturn is up" in line for line in up.stdout)
            yield environment
        finally:
            up.terminate()
            up.stdout.read()
            embedded.stop(home)
    shutil.rmtree(home)


def _programs() -> list[tuple[str, str, str]]:
    """Each program of the page: its file, what it is fed, what it prints."""
    text = (TUTORIAL / "index.md").read_text("utf-8")
    found = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE):
        shown = re.search(r'--8<-- "docs/tutorial/(\w+\.py)"', part)
        if shown is not None:
            printed = re.search(r"^```text\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
            fed = re.search(r"^printf '([^']*)'", part, re.MULTILINE)
            assert printed is not None, shown[1]
            found.append((shown[1], fed[1].replace("\\n", "\n") if fed else "", printed[1]))
    return found


def test_the_programs_print_what_the_page_shows(environment: dict[str, str]) -> None:
    """In the page's order, on what the ones before have left."""
    programs = _programs()
    assert {name for name, _, _ in programs} == {path.name for path in TUTORIAL.glob("*.py")}
    for name, fed, printed in programs:
        done = subprocess.run(
            [sys.executable, TUTORIAL / name],
            env=environment,
            input=fed,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, ""), name
        assert _undated(done.stdout) == _undated(printed), name
    done = subprocess.run(
        [AFTERTURN, "erased", "acme/alice"], env=environment, capture_output=True, text=True
    )
    assert "she asked" in done.stdout


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_program_of_a_page_runs(environment: dict[str, str], page: str) -> None:
    """As in a notebook, where `await` needs no function."""
    program = next(each.text for each in blocks("python") if str(each.page) == page)
    done = subprocess.run(
        [sys.executable, "-c", _CELL],
        env=environment,
        input=program,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def _undated(text: str) -> list[str]:
    return sorted(_DATE.sub("DATE", text).splitlines())
