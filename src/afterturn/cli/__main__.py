"""`python -m afterturn.cli`, where the command itself is not on the path."""

from afterturn.command import run

run()
