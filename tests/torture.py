"""The torture: callers, erasers and readers at work while everything is killed around them.

    python tests/torture.py --seed 1 --duration 60 [--faults none|workers|servers|all]

Uses the installed package and its commands only, on a fresh home of its own. The seed fixes the
schedule of the faults. Every process notes what it does before and after; at the end these notes
alone say what must be there, once, and what must be nowhere. The last line is for machines; exit 1
on any violation, and the home and the notes are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from pathlib import Path

# As a script: the parts are found from the checkout, the package where it is installed.
sys.path[0:1] = [str(Path(__file__).resolve().parents[1])]

from tests.torturing.sabotage import KINDS  # noqa: E402


def main() -> int:
    """Run as the conductor or, with `--role`, as one of the calling processes."""
    options = _parser().parse_args()
    if options.role:
        return _play(options)
    from tests.torturing.run import TEMPORARY, Options, clean_up, run, show

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    home = options.home or Path(tempfile.mkdtemp(prefix=TEMPORARY, dir="/tmp")) / "home"
    chosen = Options(
        seed=options.seed,
        duration=options.duration,
        faults=options.faults,
        home=home,
        notes=home.with_name(f"{home.name}-notes"),
        script=Path(__file__).resolve(),
        sabotage=options.sabotage,
    )
    if home.exists() and any(home.iterdir()):
        print(f"{home} is not empty; the torture needs a fresh home", file=sys.stderr)
        return 2
    print(f"seed {chosen.seed}", flush=True)
    report = run(chosen)
    last = show(chosen, report)
    if options.json:
        options.json.write_text(
            json.dumps(
                {
                    "seed": chosen.seed,
                    "duration": chosen.duration,
                    "faults": chosen.faults,
                    **report.numbers,
                    "violations": [str(violation) for violation in report.violations],
                },
                indent=2,
            )
        )
    if report.violations or options.keep:
        print(f"kept for inspection: {chosen.home} and {chosen.notes}")
    else:
        clean_up(chosen)
    print(last, flush=True)
    return 1 if report.violations else 0


def _play(options: argparse.Namespace) -> int:
    from tests.torturing.acting import Actor, Part, act
    from tests.torturing.erasing import erase
    from tests.torturing.listening import listen
    from tests.torturing.looking import read
    from tests.torturing.talker import hurry, talk

    parts: dict[str, list[Part]] = {
        "talker": [*[talk] * 4, hurry],
        "eraser": [erase] * 2,
        "reader": [read] * 2,
        "listener": [listen],
    }
    actor = Actor(options.notes, options.role, options.index, options.life, options.seed)
    asyncio.run(act(actor, parts[options.role]))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--duration", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--faults", choices=["none", "workers", "servers", "all"], default="all")
    parser.add_argument("--home", type=Path, help="a fresh directory; kept in /tmp unless given")
    parser.add_argument("--json", type=Path, help="write the result there, too")
    parser.add_argument("--keep", action="store_true", help="keep home and notes in any case")
    parser.add_argument("--sabotage", choices=KINDS, help="plant a fault: the run must exit 1")
    for name, kind in (("role", str), ("index", int), ("life", int), ("notes", Path)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
