"""Runs the Dockerfile's steps on a machine without Docker: `python -m tests.operate.image`.

Each instruction is taken from the file as it is. COPY goes into a directory of its own, RUN into a
shell there whose `pip` and `python` are those of a fresh virtual environment, which stands for the
base image. The account is not made; that `useradd` is here is all that is looked at, and the
program is run by nobody. Takes a minute and reaches the package index.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.operate.deployment import ROOT

NOBODY: Final = 65_534


def instructions() -> Iterator[tuple[str, str]]:
    """Word and rest of each instruction."""
    text = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def build(root: Path) -> list[str]:
    """Do the steps below `root`; returns the entry point with the default arguments."""
    environment = root / "venv"
    venv.create(environment, with_pip=True)
    path = f"{environment / 'bin'}{os.pathsep}{os.defpath}"
    workdir, entry, default = root, [""], [""]
    for word, rest in instructions():
        print(f"{word} {rest}", flush=True)
        match word:
            case "FROM":
                assert re.fullmatch(r"python:3\.\d+-slim", rest), rest
            case "WORKDIR":
                workdir = root / rest.lstrip("/")
                workdir.mkdir(parents=True, exist_ok=True)
            case "COPY":
                *sources, target = shlex.split(rest)
                _copy(sources, workdir / target)
            case "RUN" if rest.startswith("useradd"):
                program = shutil.which("useradd", path=f"{os.defpath}{os.pathsep}/usr/sbin")
                assert program is not None, "useradd"
                subprocess.run([program, "--help"], check=True, capture_output=True)
            case "RUN":
                env = {k: v for k, v in os.environ.items() if k.startswith("PIP_")}
                subprocess.run(
                    ["/bin/sh", "-ec", rest],
                    cwd=workdir,
                    env={**env, "PATH": path, "HOME": str(root)},
                    check=True,
                )
            case "USER":
                assert rest not in ("root", "0")
            case "ENTRYPOINT":
                entry = json.loads(rest)
            case "CMD":
                default = json.loads(rest)
            case _:
                raise SystemExit(f"{word} is not known here")
    return [str(environment / "bin" / entry[0]), *entry[1:], *default]


def _copy(sources: list[str], target: Path) -> None:
    for source in sources:
        here = ROOT / source
        if here.is_dir():
            shutil.copytree(here, target, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(here, target)


def main() -> int:
    """Build, then run the entry point as nobody."""
    root = Path(tempfile.mkdtemp(prefix="at-image-"))
    try:
        command = build(root)
        root.chmod(0o755)
        account = {"user": NOBODY, "group": NOBODY} if os.getuid() == 0 else {}
        for arguments in (
            [],
            ["--version"],
            ["worker", "--help"],
            ["migrate", "--sql", "--from", "0"],
        ):
            line = [command[0], *(arguments or command[1:])]
            done = subprocess.run(  # type: ignore[call-overload]  # user and group or neither
                line, cwd="/", env={"PATH": os.defpath, "HOME": "/nonexistent"},
                capture_output=True, text=True, **account,
            )  # fmt: skip
            print(f"{' '.join(arguments) or 'default'}: exit code {done.returncode}")
            if done.returncode:
                print(done.stderr)
                return 1
        return 0
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
