"""For debugging: `python -m afterturn.embedded up|down|status HOME`."""

from __future__ import annotations

import dataclasses
import json
import sys

from afterturn.embedded import client
from afterturn.embedded.stopping import stop
from afterturn.errors import AfterturnError

_USAGE = "usage: python -m afterturn.embedded up|down|status HOME"


def main(arguments: list[str]) -> int:
    """Run one command; the exit code."""
    match arguments:
        case ["up", home]:
            client.ensure(home)
            client.keep(home)
            return _show(home)
        case ["down", home]:
            print("stopped" if stop(home) else "nothing ran")
            return 0
        case ["status", home]:
            return _show(home)
    print(_USAGE, file=sys.stderr)
    return 2


def _show(home: str) -> int:
    found = client.status(home)
    if found is None:
        print("nothing runs")
        return 1
    print(json.dumps(dataclasses.asdict(found), indent=1, default=str))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except AfterturnError as error:
        sys.exit(f"{type(error).__name__}: {error}")
