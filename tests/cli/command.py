"""Running the command line in tests: in this process, or as an installed program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from afterturn.cli import main

DEADLINE_SECONDS = 90.0


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """What it printed for a script."""
        return json.loads(self.stdout)

    @property
    def error(self) -> str:
        """Its one line on stderr."""
        (line,) = self.stderr.splitlines()
        return line


@dataclass
class CommandLine:
    """The command with the settings of one test."""

    settings: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: object, **settings: str) -> Outcome:
        """Run in this process. A defect of the program is raised, not hidden in a code."""
        env = {**self.settings, **{f"AFTERTURN_{k.upper()}": v for k, v in settings.items()}}
        result = CliRunner().invoke(main, [str(each) for each in arguments], env=env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    def installed(self, *arguments: object, cwd: Path, **env: str) -> Outcome:
        """Run the installed program by its full path, without an activated environment."""
        done = subprocess.run(
            [program(), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            cwd=cwd,
            env={"PATH": os.defpath, **self.settings, **env},
        )
        return Outcome(done.returncode, done.stdout, done.stderr)


def program() -> str:
    """The installed command, beside the interpreter."""
    return str(Path(sys.executable).with_name("afterturn"))
