"""`headrace dev`: a broker in memory."""

from __future__ import annotations

import click

from headrace.cli.serve import run_server, server_options

_DEV_DEFAULTS = {"durability": "os", "group.initial.rebalance.delay.ms": "0"}


@click.command()
@server_options
def dev(**options: object) -> None:
    """Run a broker in memory, for development and tests: what it holds is gone when it ends.

    Consumer groups start without the usual delay. Everything else is as in `headrace serve`.
    """
    run_server(data=None, defaults=_DEV_DEFAULTS, **options)  # type: ignore[arg-type]  # click checked them
