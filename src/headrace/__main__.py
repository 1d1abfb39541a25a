"""`python -m headrace`: the command line, as `headrace` runs it."""

from headrace.cli import main

main(prog_name="headrace")
