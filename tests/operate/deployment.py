"""A deployment by the Procfile: its lines as processes, and the command line of its operator."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fleet.running import any_port, wait_until

ROOT = Path(__file__).resolve().parents[2]
EMBEDDERS = """
import numpy as np

class Tiny:
    def __init__(self, model_id):
        self.model_id, self.dim = model_id, 3
    def embed(self, texts):
        return np.ones((len(texts), 3), dtype=np.float32)

def right():
    return Tiny("right-model")

def wrong():
    return Tiny("wrong-model")
"""


def procfile() -> dict[str, str]:
    """The lines of the Procfile: name → command."""
    lines = (ROOT / "Procfile").read_text("utf-8").splitlines()
    pairs = (line.partition(":") for line in lines if line and not line.startswith("#"))
    return {name.strip(): command.strip() for name, _, command in pairs}


@dataclass
class Answer:
    """What a command said and how it ended."""

    code: int
    output: str

    @property
    def json(self) -> Any:
        """What it printed for a script."""
        return json.loads(self.output)

    @property
    def words(self) -> str:
        """Its output without line breaks, which depend on the width."""
        return " ".join(self.output.split())


@dataclass
class Deployment:
    """The parts that run, each with its log, and the environment that all of them have."""

    directory: Path
    env: Mapping[str, str]
    parts: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, **changes: str) -> None:
        """Start this line of the Procfile."""
        self.run_forever(procfile()[name], name, **changes)

    def run_forever(self, command: str, name: str, **changes: str) -> None:
        """Start a command line that does not end by itself, as an operator would type it."""
        with (self.directory / f"{name}.log").open("ab") as log:
            self.parts[name] = subprocess.Popen(
                shlex.split(command),
                cwd=self.directory,
                env={**self.env, **changes},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """End a part and all its processes at once."""
        process = self.parts.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End everything."""
        for process in self.parts.values():
            process.terminate()
        for name in list(self.parts):
            try:
                self.parts[name].wait(30)
            finally:
                self.kill_quietly(name)

    def kill_quietly(self, name: str) -> None:
        """End a part that may have ended already."""
        process = self.parts.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def log(self, name: str) -> str:
        """What a part has said."""
        return (self.directory / f"{name}.log").read_text("utf-8", "replace")

    def type(self, line: str, **changes: str) -> Answer:
        """Type a command and see its answer."""
        done = subprocess.run(
            shlex.split(line),
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.directory,
            env={**self.env, **changes},
        )
        return Answer(done.returncode, done.stdout + done.stderr)

    def doctor(self, **changes: str) -> dict[str, str]:
        """What is wrong, by the name of the check, with the command that mends it."""
        answer = self.type("afterturn doctor --patience 3 --json", **changes).json
        found = [check for check in answer["checks"] if check["verdict"] == "wrong"]
        assert answer["ok"] == (not found)
        return {check["name"]: check["mend"] for check in found}

    def wait_until_well(self, what: str, **changes: str) -> None:
        """Poll the doctor; longer than elsewhere, since a look takes some seconds."""
        deadline = time.monotonic() + 150.0
        while not self.is_well(**changes):
            assert time.monotonic() < deadline, f"never: {what}"

    def is_well(self, **changes: str) -> bool:
        """Whether status and doctor both are content."""
        found = self.doctor(**changes)
        print("to mend:", found)  # shown when a test fails
        return not found and self.type("afterturn status --check", **changes).code == 0


@contextmanager
def deployed(
    directory: Path, database_url: str, broker_url: str, **env: str
) -> Iterator[Deployment]:
    """A directory with an embedder of its own; no part runs yet, none does afterwards."""
    (directory / "tiny.py").write_text(EMBEDDERS)
    deployment = Deployment(
        directory,
        {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}",
            "HOME": str(directory),
            "COLUMNS": "200",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(directory), os.getenv("PYTHONPATH")))),
            "AFTERTURN_HOME": str(directory / "home"),
            "AFTERTURN_DATABASE_URL": database_url,
            "AFTERTURN_BROKER_URL": broker_url,
            "AFTERTURN_EMBEDDER": "tiny:right",
            "AFTERTURN_WORKER_CONCURRENCY": "1",
            "AFTERTURN_SWEEP_SECONDS": "0.5",
            "AFTERTURN_FLOWER_PORT": str(any_port()),
            **env,
        },
    )
    try:
        yield deployment
    finally:
        deployment.stop()


__all__ = ["ROOT", "Answer", "Deployment", "deployed", "procfile", "wait_until"]
