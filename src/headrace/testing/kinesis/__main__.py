"""The fakes as a process of their own, for manual trials and for measurements.

    python -m headrace.testing.kinesis --port 4567 --stream orders:4

The process prints its address. It ends by ^C or by a signal. If its standard input is a pipe, it also ends with the
pipe, so that it does not outlive the program that started it. All data is in memory.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from contextlib import suppress

import click

from headrace.errors import HeadraceError
from headrace.testing.kinesis.account import ShardEnd
from headrace.testing.kinesis.aws import FakeAws
from headrace.testing.kinesis.limits import Limits


@click.command(
    help="Serve fakes of Amazon Kinesis and DynamoDB on 127.0.0.1, until ^C or the end of a pipe at standard input."
)
@click.option("--port", default=0, help="The port to listen on; 0 is a free port.")
@click.option(
    "--stream", "streams", multiple=True, metavar="NAME[:SHARDS]", help="A stream to create."
)
@click.option("--region", help="The only region that has streams and tables.")
@click.option("--transition-ms", default=0, help="Milliseconds that creating and resharding take.")
@click.option("--shard-end", type=click.Choice(["with_data", "extra_call"]), default="with_data")
@click.option("--unthrottled", is_flag=True, help="Do not enforce limits per second.")
def main(
    *,
    port: int,
    streams: tuple[str, ...],
    region: str | None,
    transition_ms: int,
    shard_end: ShardEnd,
    unthrottled: bool,
) -> None:
    """Serve until a signal arrives."""
    limits = Limits().unthrottled() if unthrottled else Limits()
    aws = FakeAws(
        limits=limits, transition_ms=transition_ms, shard_end=shard_end, region=region, port=port
    )
    try:
        for stream in streams:
            name, _, shards = stream.partition(":")
            aws.kinesis.create_stream(name, _count(shards or "1"))
        aws.start()
    except (HeadraceError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(aws.endpoint_url)
    with suppress(KeyboardInterrupt):
        _wait()
    aws.stop()


def _wait() -> None:
    """Wait for the end of a pipe. Other standard inputs are not read: a shell stops a background job that reads."""
    mode = os.fstat(0).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        sys.stdin.read()
    else:
        threading.Event().wait()


def _count(text: str) -> int:
    if not text.isdecimal():
        raise click.BadParameter(f"{text!r} is not a number of shards: write NAME or NAME:SHARDS")
    return int(text)


if __name__ == "__main__":
    main()
