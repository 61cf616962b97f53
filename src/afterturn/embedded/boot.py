"""Runs the supervisor, and no more of afterturn than it needs.

A plain `import afterturn` brings numpy, asyncpg and all the rest. The supervisor lives long and
does little, so it starts from this file with a package that has the same modules but runs no
`__init__`: that is quicker to start and several times smaller. Run by path and with `-P`, so that
the modules beside it do not become top-level ones.
"""

import sys
import types
from pathlib import Path

if __name__ == "__main__":
    package = types.ModuleType("afterturn")
    package.__path__ = [str(Path(__file__).parents[1])]
    sys.modules["afterturn"] = package

    from afterturn.embedded.supervisor import serve

    sys.exit(serve(*sys.argv[1:]))
