"""`headrace bridge`: a Kinesis stream copied into a topic, or a topic into a stream."""

from __future__ import annotations

import asyncio
import re
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from headrace.cli.arguments.connection import check_reachable
from headrace.cli.arguments.options import client_options, preformatted
from headrace.cli.command_group import argument, command
from headrace.cli.output.printing import INTERRUPTED, print_json, say

if TYPE_CHECKING:
    from headrace.core.lease.checkpoint import Checkpoint
    from headrace.kinesis.bridge.names import StreamPlace
    from headrace.kinesis.bridge.shard_copy import CopyProgress

EXAMPLES: Final = preformatted(
    """Examples:   headrace bridge 'kinesis://orders?region=eu-central-1' orders
            headrace bridge kinesis://orders orders --leases dynamodb://headrace-leases
            headrace bridge orders 'kinesis://orders?endpoint_url=http://127.0.0.1:4567' --envelope
"""
)
_TIME: Final = re.compile(r"AT_TIMESTAMP:[0-9]{1,15}", re.ASCII)
_LEASES: Final = "dynamodb://TABLE or sqlite:///FILE"


class _Bridge(Protocol):
    progress: CopyProgress

    async def run(self, stopping: asyncio.Event) -> None:
        """Copy until a signal stops the bridge."""


@command(epilog=EXAMPLES)
@argument("source", "The source: a topic, or a stream as kinesis://STREAM.", metavar="FROM")
@argument("target", "The target: a topic, or a stream as kinesis://STREAM.", metavar="TO")
@click.option("--name", help="The name of the bridge.  [default: FROM.TO]")
@click.option(
    "--start",
    default="TRIM_HORIZON",
    show_default=True,
    metavar="POSITION",
    help="Where a new bridge begins: TRIM_HORIZON, LATEST, or from a stream AT_TIMESTAMP:<ms>.",
)
@click.option(
    "--leases",
    metavar="STORE",
    help=f"The lease store of processes that share a stream: {_LEASES}. A single process needs none.",
)
@click.option(
    "--lease",
    "lease_s",
    type=click.FloatRange(min=2),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="The lease time: how long after the end of a process other processes take over its shards.",
)
@click.option("--once", is_flag=True, help="End when all present records are copied.")
@click.option(
    "--envelope",
    is_flag=True,
    help="Into a stream: write JSON with topic, partition, offset, time, key, value and headers.",
)
@click.option(
    "--aggregate",
    is_flag=True,
    help="Into a stream: aggregate records in the format of the Kinesis Producer Library.",
)
@click.option(
    "--record-bytes",
    type=int,
    help="Into a stream: the largest record, if the stream accepts more than 1 MiB.",
)
@click.option(
    "--progress",
    "progress_s",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to report progress.",
)
@partial(client_options, role="client")
def bridge(
    source: str,
    target: str,
    bootstrap: str,
    properties: dict[str, Any],
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Copy a Kinesis stream into a topic, exactly once, or a topic into a stream, at least once.

    FROM and TO are a topic and kinesis://STREAM[?region=..&endpoint_url=..&profile=..]; an ARN may stand for the
    stream. A bridge continues at its position, however it ended. SIGTERM and Ctrl-C stop it cleanly.

    Exit codes: 0 stopped by a signal, or everything copied with --once; 1 the bridge failed; 2 wrong usage or
    configuration; 130 interrupted twice.
    """
    from headrace.kinesis.bridge.names import is_stream

    if is_stream(source) == is_stream(target):
        raise click.UsageError("one of FROM and TO must be a topic, the other kinesis://STREAM")
    brokers = properties.pop("bootstrap.servers", bootstrap)
    check_reachable(brokers, properties)
    make = _into_topic if is_stream(source) else _into_stream
    copying = make(source, target, brokers, properties, options)
    asyncio.run(_run(copying, as_json=as_json, progress_s=options["progress_s"]))


def _into_topic(
    source: str, topic: str, brokers: str, properties: dict[str, Any], options: dict[str, Any]
) -> _Bridge:
    from headrace.cli.arguments.client_settings import general
    from headrace.kinesis.bridge import into_topic
    from headrace.kinesis.bridge.names import bridge_name, parse_stream

    place = parse_stream(source)
    if options["envelope"] or options["aggregate"] or options["record_bytes"] is not None:
        raise click.UsageError(
            "--envelope, --aggregate and --record-bytes are only for bridges into a stream"
        )
    plan = into_topic.IntoTopic(
        source=place,
        target=brokers,
        topic=topic,
        name=bridge_name(options["name"], place.name, topic),
        start=_start(options["start"]),
        leases=options["leases"],
        lease_settings=into_topic.lease_settings(round(options["lease_s"] * 1000)),
        once=options["once"],
        properties=_plain(properties),
        client_properties=general(properties),
    )
    return into_topic.IntoTopicBridge(plan)


def _into_stream(
    topic: str, target: str, brokers: str, properties: dict[str, Any], options: dict[str, Any]
) -> _Bridge:
    from headrace.cli.arguments.client_settings import general
    from headrace.kinesis.bridge import into_stream
    from headrace.kinesis.bridge.names import bridge_name, parse_stream

    place: StreamPlace = parse_stream(target)
    if options["leases"] is not None:
        raise click.UsageError(
            "--leases is only for bridges from a stream; processes share a topic as a consumer group"
        )
    if options["start"] not in {"TRIM_HORIZON", "LATEST"}:
        raise click.UsageError("--start of a bridge from a topic is TRIM_HORIZON or LATEST")
    plan = into_stream.IntoStream(
        target=brokers,
        topic=topic,
        destination=place,
        name=bridge_name(options["name"], topic, place.name),
        latest=options["start"] == "LATEST",
        envelope=options["envelope"],
        once=options["once"],
        producing=into_stream.producing(
            aggregate=options["aggregate"], record_bytes=options["record_bytes"]
        ),
        properties=_plain(properties),
        client_properties=general(properties),
    )
    return into_stream.IntoStreamBridge(plan)


def _plain(properties: dict[str, Any]) -> dict[str, Any]:
    return {name.replace(".", "_"): value for name, value in properties.items()}


def _start(text: str) -> Checkpoint | None:
    from headrace.core.lease.checkpoint import parse_checkpoint

    if text == "LATEST":
        return None
    if text != "TRIM_HORIZON" and not _TIME.fullmatch(text):
        raise click.UsageError(
            f"--start is TRIM_HORIZON, LATEST or AT_TIMESTAMP:<ms since 1970>, not {text!r}"
        )
    return parse_checkpoint(text)


async def _run(copying: _Bridge, *, as_json: bool, progress_s: float) -> None:
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            say("interrupted again: records that are not committed will be copied again")
            raise SystemExit(INTERRUPTED)
        say("stopping after the records in flight")
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    telling = asyncio.create_task(_tell(copying.progress, as_json=as_json, every_s=progress_s))
    failed = True
    try:
        await copying.run(stopping)
        failed = False
    finally:
        telling.cancel()
        if copying.progress.records or not failed:
            _print(copying.progress, as_json=as_json)


async def _tell(progress: CopyProgress, *, as_json: bool, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        _print(progress, as_json=as_json)


def _print(progress: CopyProgress, *, as_json: bool) -> None:
    known = [behind for behind in progress.behind_ms.values() if behind is not None]
    behind_ms = max(known, default=None)
    if as_json:
        print_json(
            {
                "records": progress.records,
                "bytes": progress.bytes,
                "shards": len(progress.behind_ms),
                "shards_ended": len(progress.ended),
                "behind_ms": behind_ms,
            }
        )
        return
    where = "" if behind_ms is None else f", {behind_ms / 1000:.1f} s behind"
    shards = f", {len(progress.behind_ms)} shards" if progress.behind_ms else ""
    say(f"{progress.records} records, {progress.bytes} bytes copied{shards}{where}")
