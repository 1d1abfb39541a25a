"""`python -m headrace` runs the same command as `headrace`."""

from headrace.cli import main

main(prog_name="headrace")
