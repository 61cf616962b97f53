"""`python -m afterturn.cli`, where the command itself is not on the path."""

from afterturn.cli.group import main

main(prog_name="afterturn")
