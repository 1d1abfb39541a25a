"""`headrace dev`: a broker for development, in memory unless --data names a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from headrace.cli.command_group import command
from headrace.cli.commands.serve import run_server, server_options

_DEV_DEFAULTS = {"durability": "os", "group.initial.rebalance.delay.ms": "0"}


@command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    multiple=True,
    help="Keep the data in this directory instead of memory; repeatable.",
)
@server_options
def dev(data: tuple[Path, ...], **options: Any) -> None:
    """Run a broker in memory, for development and tests. Its data is lost when it ends.

    Consumer groups start without the usual delay, and acknowledgements do not wait for a disk. Otherwise the broker
    behaves as with `headrace serve`.
    """
    run_server(data=data, defaults=_DEV_DEFAULTS, **options)
