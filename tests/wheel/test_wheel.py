"""The wheel as a user gets it: built, installed into an empty environment, used in a project."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterturn import embedded

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.timeout(600)]

CHECKOUT = Path(__file__).resolve().parents[2]

# A project with folders of the names that the fleet has, too, and its extractor in one of them.
PROJECT = {
    "tasks/__init__.py": 'OWN = "the project\'s tasks"\n',
    "tasks/extractor.py": '''
from afterturn import ExtractionRequest, ExtractionResult, MemoryLayer, MemoryRecord


class Parrot:
    """Keeps what the user said, word by word."""

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        return ExtractionResult(
            records=tuple(
                MemoryRecord(
                    record_id=f"parrot-{turn.turn_id}",
                    text=f"the parrot heard: {turn.query}",
                    scope_path=request.scope.path,
                    layer=MemoryLayer.SEMANTIC,
                    origin="parrot",
                )
                for turn in request.turns
            )
        )
''',
    "workers/__init__.py": 'OWN = "the project\'s workers"\n',
    "schema/__init__.py": "",
    "say.py": """
import asyncio

import tasks
import workers
from afterturn import Memory, MemoryLayer, MemoryScope


async def main() -> None:
    scope = MemoryScope.of("acme", "alice")
    async with Memory() as memory:
        async with memory.turn(scope, session="c-1") as turn:
            ticket = await turn.finish(query="I eat no meat.", answer="Noted.")
        outcome = await ticket.wait(timeout=60)
        facts = await memory.list(scope, layers=[MemoryLayer.SEMANTIC])
    print(tasks.OWN, workers.OWN, outcome.status, *(fact.text for fact in facts), sep="|")


asyncio.run(main())
""",
}


def _run(*command: object, **options: object) -> str:
    done = subprocess.run(
        [str(each) for each in command],
        capture_output=True,
        text=True,
        timeout=300,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, CHECKOUT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment into which nothing but the wheel was installed, with what it asks for."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    _run(python, "-m", "pip", "install", "-q", f"{wheel}[embedded]", cwd=folder)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The adopter's project."""
    for name, content in PROJECT.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    return tmp_path


@pytest.fixture
def home() -> Iterator[Path]:
    """A home of its own for the embedded servers; socket paths must be short."""
    with tempfile.TemporaryDirectory(prefix="at-", dir="/tmp") as folder:
        yield Path(folder)
        embedded.stop(Path(folder))


def test_the_wheel_holds_what_it_needs_and_nothing_else(wheel: Path) -> None:
    """One package; the fleet and the schema travel inside of it as data; it is typed."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"afterturn"}
    assert len(tops) == 2
    assert {
        "afterturn/py.typed",
        "afterturn/_fleet/tasks/__init__.py",
        "afterturn/_fleet/workers/__init__.py",
        "afterturn/_schema/schema.sql",
        "afterturn/_schema/migrations/0001_initial.sql",
        "afterturn/testing/contracts/__init__.py",
    } <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


def test_only_afterturn_is_added_at_the_top_level(environment: Path) -> None:
    """What pip recorded: the package, its metadata, and the command."""
    (site,) = environment.glob("lib/python3*/site-packages")
    (info,) = site.glob("afterturn-*.dist-info")
    with (info / "RECORD").open() as record:
        installed = [Path(row[0]) for row in csv.reader(record)]
    inside = {path.parts[0] for path in installed if path.parts[0] != ".."}
    assert inside == {"afterturn", info.name}
    assert [path.name for path in installed if path.parts[0] == ".."] == ["afterturn"]
    for name in ("tasks", "workers", "schema", "tests", "examples"):
        assert not (site / name).exists()


def test_a_project_with_folders_of_the_same_names_runs_the_fleet_and_a_turn(
    environment: Path, project: Path, home: Path
) -> None:
    """`afterturn up` in it, with its extractor; its own modules stay its own."""
    variables = {
        "PATH": os.defpath,
        "HOME": str(home),
        "AFTERTURN_HOME": str(home),
        "AFTERTURN_EXTRACTOR": "tasks.extractor:Parrot",
        "AFTERTURN_EMBEDDER": "none",
        "PYTHONUNBUFFERED": "1",
    }
    command = [str(environment / "bin" / "afterturn"), "up", "--no-flower"]
    with subprocess.Popen(
        command, cwd=project, env=variables, stdout=subprocess.PIPE, text=True
    ) as up:
        assert up.stdout is not None
        try:
            assert any("afterturn is up" in line for line in up.stdout)
            said = _run(environment / "bin" / "python", "say.py", cwd=project, env=variables)
        finally:
            up.terminate()
            up.stdout.read()
    assert up.returncode == 0
    assert said.strip().split("|") == [
        "the project's tasks",
        "the project's workers",
        "done",
        "the parrot heard: I eat no meat.",
    ]
