"""The installed command. It stands apart so that Ctrl-C is heeded while the rest is imported."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command line; interrupted before it has begun, it ends without a word."""
    try:
        from afterturn.cli import main

        main(prog_name="afterturn")
    except KeyboardInterrupt:
        sys.exit(130)
