"""Parts that an adopter brings, named in a setting as `module:factory`.

A module is looked for in the directory where the process was started, on `PYTHONPATH`, and among
what is installed. A project may have a `tasks/` or `workers/` folder while a worker has already
imported packages of these names; its modules are found all the same:

    tasks/memory.py, the loaded package has no `memory`    the loaded package learns the folder too
    tasks/flush.py, the loaded package has a `flush`       imported as afterturn_project.tasks.flush

The second way is only taken where the first leads to a module that lacks the factory.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

from afterturn.errors import ConfigurationError

PROJECT_PACKAGE: Final = "afterturn_project"


def load_factory(spec: str, *, setting: str) -> object:
    """What the factory named by `module:factory` makes when it is called without arguments.

    Every defect is a `ConfigurationError` that names the setting and the spec. An exception of
    the adopter's own code is its cause; the message holds only its type.
    """
    try:
        return _made(_factory(*_parts(spec)))
    except _Defect as defect:
        raise ConfigurationError(
            f"{setting}={spec[:120]} cannot be used", detail=defect.what, hint=defect.remedy
        ) from defect.__cause__


class _Defect(Exception):
    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


def _parts(spec: str) -> tuple[str, str]:
    module, _, factory = spec.partition(":")
    if not factory.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise _Defect(
            "it is not of the form module:factory",
            "Write a dotted module, a colon, and the name of a callable in it, "
            "for example my_agent.memory:make.",
        )
    return module, factory


def _factory(module_name: str, factory_name: str) -> object:
    roots = _project_roots()
    _open_to_projects(module_name.partition(".")[0], roots)
    module = _imported(module_name, module_name)
    if not hasattr(module, factory_name):
        root = next((r for r in roots if _is_other_file(r, module_name, module)), None)
        if root is not None:
            package = sys.modules.setdefault(PROJECT_PACKAGE, ModuleType(PROJECT_PACKAGE))
            package.__path__ = [root]
            module = _imported(f"{PROJECT_PACKAGE}.{module_name}", module_name)
    if module is None:
        raise _Defect(
            f"there is no module {module_name} in {roots[0]}, on PYTHONPATH, or installed",
            "Start the process in the project's directory, or put that on PYTHONPATH.",
        )
    if not hasattr(module, factory_name):
        raise _Defect(
            f"{module_name} has no {factory_name}; it was read from {_file(module)}",
            f"Define {factory_name} at the top level of the module, or name another callable.",
        )
    return getattr(module, factory_name)


def _project_roots() -> tuple[str, ...]:
    """The working directory and the entries of `PYTHONPATH`; the former joins `sys.path` last."""
    try:
        here = str(Path.cwd())
    except FileNotFoundError as error:
        raise _Defect("the current directory is gone", "Start the process in another.") from error
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return (here, *(str(Path(entry).absolute()) for entry in entries if entry))


def _open_to_projects(package_name: str, roots: tuple[str, ...]) -> None:
    """Let a package also find the modules in the projects' folders of the same name."""
    path = getattr(_imported(package_name, package_name), "__path__", None)
    if path is None:
        return
    known = {Path(entry).resolve() for entry in path}
    for root in roots:
        folder = Path(root, package_name)
        if folder.is_dir() and folder.resolve() not in known:
            path.append(str(folder))


def _imported(name: str, shown: str) -> ModuleType | None:
    """The module, or `None` where there is none of this name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise _Defect(
            f"importing {shown} needs {error.name or 'a module'}, which is not installed",
            "Install it in the environment of this process.",
        ) from error
    except (Exception, SystemExit) as error:
        raise _theirs(f"importing {shown}", error) from error


def _is_other_file(root: str, name: str, module: ModuleType | None) -> bool:
    """Whether the project at `root` has a file of this name that is not the module's."""
    stem = Path(root, *name.split("."))
    own = getattr(module, "__file__", None)
    return any(
        file.is_file() and (own is None or file.resolve() != Path(own).resolve())
        for file in (stem / "__init__.py", stem.with_suffix(".py"))
    )


def _made(factory: object) -> object:
    remedy = "Name a function or class that is called without arguments and returns the part."
    if not callable(factory):
        raise _Defect(f"it names a {type(factory).__name__}, which cannot be called", remedy)
    if inspect.iscoroutinefunction(factory):
        raise _Defect("the factory is an async function", remedy)
    if not _takes_nothing(factory):
        raise _Defect("the factory has required arguments", remedy)
    try:
        made: object = factory()
    except (Exception, SystemExit) as error:
        raise _theirs("the factory", error) from error
    if made is None:
        raise _Defect("the factory returned None", "Return the part, or set `none` to have none.")
    return made


def _takes_nothing(factory: Callable[..., object]) -> bool:
    try:
        inspect.signature(factory).bind()
    except TypeError:
        return False
    except ValueError:  # some builtins cannot be inspected: the call will show
        return True
    return True


def _theirs(what: str, error: BaseException) -> _Defect:
    return _Defect(
        f"{what} raised {type(error).__name__}",
        "Run it by itself in the same directory and environment to see why.",
    )


def _file(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "a folder without __init__.py"
