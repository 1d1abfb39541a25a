"""`headrace dev`: a broker for development, in memory unless it is given a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from headrace.cli.commands.serve import run_server, server_options

_DEV_DEFAULTS = {"durability": "os", "group.initial.rebalance.delay.ms": "0"}


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    multiple=True,
    help="Keep the data in a directory after all; repeatable.",
)
@server_options
def dev(data: tuple[Path, ...], **options: Any) -> None:
    """Run a broker in memory, for development and tests: what it holds is gone when it ends.

    Consumer groups start without the usual delay, and an acknowledgement does not wait for a disk. Everything else
    is as in `headrace serve`.
    """
    run_server(data=data, defaults=_DEV_DEFAULTS, **options)
