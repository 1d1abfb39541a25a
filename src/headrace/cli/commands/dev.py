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
    """Run a broker for development and tests. Without --data it is in memory, and its data is lost when it ends.

    Consumer groups start without the usual delay, and acknowledgements do not wait for a disk. Otherwise the broker
    behaves as with `headrace serve`, also with --brokers. Then data without --data are in a temporary directory.

    It prints one line, `ready kafka=HOST:PORT data=DIR pid=N`, when it accepts connections, and stops on SIGTERM or
    SIGINT. Exit codes: 0 stopped by a signal, 1 the data cannot be used or the disk failed, 2 wrong usage or
    configuration.
    """
    run_server(data=data, defaults=_DEV_DEFAULTS, **options)
