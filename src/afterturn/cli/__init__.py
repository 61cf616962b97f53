"""The command line: `afterturn`, one file a noun.

Everything heavy is imported inside the command that needs it, so that `afterturn --help` answers
at once; a test holds this.
"""

from afterturn.cli.group import main

__all__ = ["main"]
