"""`python -m headrace.cli`: the command without its script."""

from headrace.cli import main

main(prog_name="headrace")
