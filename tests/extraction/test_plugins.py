"""Finding the adopter's own parts, in processes of their own as a worker is one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import afterturn
from afterturn.errors import ConfigurationError
from afterturn.plugins import load_factory

CHECKOUT = Path(afterturn.__file__).parents[2]
MADE_HERE = "def make():\n    return f'{__name__} in {__file__}'\n"
LOAD = """
import sys
{before}
from afterturn.errors import ConfigurationError
from afterturn.plugins import load_factory
try:
    print("made", load_factory({spec!r}, setting="AFTERTURN_EXTRACTOR"))
except ConfigurationError as error:
    print("refused", error)
{after}
"""


@dataclass
class Project:
    """An adopter's directory, and a fleet's beside it whose packages are found first."""

    root: Path
    fleet: Path
    elsewhere: Path
    python_path: list[Path] = field(default_factory=list)

    def write(self, name: str, text: str = MADE_HERE) -> None:
        _write(self.root / name, text)

    def load(self, spec: str, before: str = "", after: str = "") -> str:
        """What a process says that was started in the project's directory as workers are."""
        paths = [self.fleet, *self.python_path]
        done = subprocess.run(
            [sys.executable, "-P", "-c", LOAD.format(spec=spec, before=before, after=after)],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    fleet = tmp_path / "fleet"
    for name in ("tasks/__init__.py", "tasks/flush.py", "workers/__init__.py"):
        _write(fleet / name, "OURS = True\n")
    root = tmp_path / "project"
    root.mkdir()
    return Project(root, fleet, tmp_path / "elsewhere")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory of this process; what is loaded from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("memory", None)


LOADED = "import tasks, tasks.flush, workers"
STILL_OURS = "import tasks.flush, workers; assert tasks.OURS and tasks.flush.OURS and workers.OURS"


@pytest.mark.parametrize(
    ("file", "spec"),
    [
        ("memory.py", "memory:make"),
        ("my_agent/memory.py", "my_agent.memory:make"),
        ("my_agent/parts/memory/__init__.py", "my_agent.parts.memory:make"),
    ],
)
def test_a_module_of_the_current_directory(project: Project, file: str, spec: str) -> None:
    """Found although a worker's own path leaves the current directory out."""
    project.write(file)
    assert project.load(spec) == f"made {spec[:-5]} in {project.root / file}"


def test_a_module_on_pythonpath(project: Project) -> None:
    """Found wherever `PYTHONPATH` points."""
    _write(project.elsewhere / "my_agent" / "memory.py", MADE_HERE)
    project.python_path.append(project.elsewhere)
    assert str(project.elsewhere) in project.load("my_agent.memory:make")


def test_an_installed_module() -> None:
    """Found among what is installed."""
    assert load_factory("collections:Counter", setting="X") == {}


@pytest.mark.parametrize(
    ("name", "init", "before"),
    [
        ("tasks.memory", True, LOADED),
        ("tasks.memory", True, ""),
        ("tasks.memory", False, LOADED),
        ("workers.memory", True, LOADED),
        ("tasks.deep.memory", True, LOADED),
    ],
)
def test_a_project_with_packages_named_as_the_fleets(
    project: Project, name: str, init: bool, before: str
) -> None:
    """`tasks.memory` of the project is found beside the fleet's `tasks`, which stays what it is."""
    file = Path(*name.split(".")).with_suffix(".py")
    project.write(str(file))
    if init:
        project.write(str(file.parts[0] + "/__init__.py"), "raise SystemExit('not ours')")
    made = project.load(f"{name}:make", before, STILL_OURS)
    assert made == f"made {name} in {project.root / file}"


def test_the_real_fleets_packages(project: Project) -> None:
    """The same beside the packages that workers really load."""
    project.fleet = CHECKOUT
    project.write("tasks/memory.py")
    project.write("tasks/__init__.py", "")
    made = project.load("tasks.memory:make", "import tasks, workers", "import tasks")
    assert made == f"made tasks.memory in {project.root / 'tasks' / 'memory.py'}"


@pytest.mark.parametrize("before", ["", LOADED], ids=["not loaded", "loaded"])
def test_a_module_with_the_very_name_of_the_fleets(project: Project, before: str) -> None:
    """Where the fleet has a `tasks.flush` too, the factory decides which one is meant."""
    project.write("tasks/flush.py", "from . import shared\nfrom tasks import other\n" + MADE_HERE)
    project.write("tasks/__init__.py", "")
    project.write("tasks/shared.py", "")
    project.write("tasks/other.py", "")
    made = project.load("tasks.flush:make", before, STILL_OURS)
    assert made == f"made afterturn_project.tasks.flush in {project.root / 'tasks' / 'flush.py'}"


def test_a_file_with_the_name_of_a_fleets_package(project: Project) -> None:
    """A project's `workers.py` is found beside the package `workers`."""
    project.write("workers.py")
    assert str(project.root / "workers.py") in project.load("workers:make", LOADED, STILL_OURS)


def test_a_package_with_the_name_of_an_installed_file(project: Project) -> None:
    """A project's `memory/rules.py` is found although a file `memory.py` is found first."""
    _write(project.fleet / "memory.py", "")
    project.write("memory/rules.py")
    assert str(project.root / "memory" / "rules.py") in project.load("memory.rules:make")


def test_an_installed_package_wins_over_its_checkout(project: Project) -> None:
    """No module is loaded a second time only because its source lies in the current directory."""
    _write(project.fleet / "my_agent" / "memory.py", MADE_HERE)
    project.write("my_agent/memory.py")
    assert str(project.fleet) in project.load("my_agent.memory:make")


def test_a_module_without_the_factory_runs_once(directory: Path) -> None:
    """It is not run again under another name in search of what it lacks."""
    (directory / "memory.py").write_text("with open('runs', 'a') as runs:\n    runs.write('x')\n")
    with pytest.raises(ConfigurationError, match="memory has no make"):
        load_factory("memory:make", setting="AFTERTURN_EXTRACTOR")
    assert (directory / "runs").read_text() == "x"


def test_the_current_directory_comes_last_and_once(project: Project) -> None:
    """A project's file cannot shadow what the process itself needs."""
    project.write("memory.py")
    after = (
        "load_factory('memory:make', setting='X')\n"
        "import os; assert sys.path.count(os.getcwd()) == 1 and sys.path[-1] == os.getcwd()"
    )
    assert project.load("memory:make", after=after).startswith("made")


@pytest.mark.parametrize(
    ("source", "spec", "said"),
    [
        (MADE_HERE, "memory.make", "is not of the form module:factory"),
        (MADE_HERE, ":make", "is not of the form module:factory"),
        (MADE_HERE, "memory:", "is not of the form module:factory"),
        (MADE_HERE, "memory:make()", "is not of the form module:factory"),
        (MADE_HERE, "my-agent.memory:make", "is not of the form module:factory"),
        (MADE_HERE, "../memory:make", "is not of the form module:factory"),
        (MADE_HERE, "memoir:make", "there is no module memoir in"),
        (MADE_HERE, "memory.deep:make", "there is no module memory.deep in"),
        (MADE_HERE, "memory:build", "memory has no build; it was read from"),
        ("import numpi", "memory:make", "importing memory needs numpi, which is not installed"),
        ("import memory.deep", "memory:make", "importing memory needs memory.deep"),
        ("1 / 0", "memory:make", "importing memory raised ZeroDivisionError"),
        ("def make(:", "memory:make", "importing memory raised SyntaxError"),
        ("raise SystemExit('s3cret')", "memory:make", "importing memory raised SystemExit"),
        ("from os import nothing", "memory:make", "importing memory raised ImportError"),
        ("make = 7", "memory:make", "it names a int, which cannot be called"),
        ("make = None", "memory:make", "it names a NoneType, which cannot be called"),
        ("async def make(): ...", "memory:make", "the factory is an async function"),
        ("def make(url): ...", "memory:make", "the factory has required arguments"),
        ("def make(*, url): ...", "memory:make", "the factory has required arguments"),
        ("class make:\n  def __init__(self, url): ...", "memory:make", "has required arguments"),
        ("def make(): ...", "memory:make", "the factory returned None"),
        ("def make(): raise KeyError('s3cret')", "memory:make", "the factory raised KeyError"),
        ("def make(): raise SystemExit('s3cret')", "memory:make", "the factory raised SystemExit"),
    ],
)
def test_a_defect_is_named(directory: Path, source: str, spec: str, said: str) -> None:
    """Each error names the setting, the spec and the defect, and no text of the exception."""
    (directory / "memory.py").write_text(source)
    with pytest.raises(ConfigurationError) as caught:
        load_factory(spec, setting="AFTERTURN_EXTRACTOR")
    assert caught.value.message == f"AFTERTURN_EXTRACTOR={spec} cannot be used"
    assert said in caught.value.detail
    assert caught.value.hint
    assert "s3cret" not in str(caught.value)


def test_the_adopters_exception_is_the_cause(directory: Path) -> None:
    """Who debugs it sees the traceback of the own module."""
    (directory / "memory.py").write_text("def make():\n    return 1 / 0\n")
    with pytest.raises(ConfigurationError) as caught:
        load_factory("memory:make", setting="AFTERTURN_EMBEDDER")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_current_directory_that_is_gone(directory: Path) -> None:
    """A process whose directory was removed is told so."""
    directory.rmdir()
    with pytest.raises(ConfigurationError, match="the current directory is gone"):
        load_factory("memory:make", setting="AFTERTURN_EMBEDDER")
