"""Shared parts of `headrace kinesis`: options, lease stores and streams, and the check for running members."""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from headrace.cli.output.printing import confirm, fail, guarded

if TYPE_CHECKING:
    from headrace.core.lease.checkpoint import Checkpoint
    from headrace.kinesis.client.settings import AwsClient, AwsSettings
    from headrace.kinesis.leases.administration import Watched
    from headrace.kinesis.leases.store import LeaseStore
    from headrace.kinesis.reading.shards import StreamDescription, StreamShards

T = TypeVar("T")

DEFAULT_LEASES: Final = "dynamodb://headrace-leases"
DEFAULT_WAIT_S: Final = 33.0
"""The default lease duration in seconds, plus the margin that members wait."""

_OPTIONS: Final = (
    click.option(
        "--leases",
        envvar="HEADRACE_LEASES",
        default=DEFAULT_LEASES,
        show_default=True,
        show_envvar=True,
        metavar="STORE",
        help="The lease store: dynamodb://TABLE or sqlite:///FILE.",
    ),
    click.option(
        "--region",
        metavar="REGION",
        help="The AWS region, e.g. eu-central-1.  [default: that of the environment or the profile]",
    ),
    click.option(
        "--endpoint-url",
        metavar="URL",
        help="Another server instead of AWS, for streams and leases.",
    ),
    click.option("--profile", metavar="NAME", help="A profile of ~/.aws/config."),
    click.option(
        "--format",
        "output_format",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="The output format: a table for people, JSON for programs.",
    ),
)

wait_option = click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=DEFAULT_WAIT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to watch whether owners renew leases: their lease duration plus a tenth.",
)
stream_option = click.option(
    "-s", "--stream", metavar="STREAM", help="The stream; required only if the group reads several."
)


@dataclass(frozen=True, slots=True)
class KinesisAccess:
    """The AWS region, endpoint and profile of the streams, and the lease store."""

    aws: AwsSettings
    leases: str

    @asynccontextmanager
    async def store(self, *, create: bool = False) -> AsyncIterator[LeaseStore]:
        """Open the lease store of the group."""
        from headrace.kinesis.leases.opening import open_store

        store = open_store(self.leases, self.aws, create=create)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def client(self, service: str = "kinesis") -> AsyncIterator[AwsClient]:
        """Open a Kinesis client of AWS."""
        from headrace.kinesis.client.opening import open_client

        async with open_client(self.aws, service) as client:
            yield client


def kinesis_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options, and handle errors; the command gets `access` and `as_json`."""

    @functools.wraps(command)
    @guarded
    def run(
        leases: str,
        region: str | None,
        endpoint_url: str | None,
        profile: str | None,
        output_format: str,
        **options: Any,
    ) -> Any:
        from headrace.kinesis.client.settings import AwsSettings

        if leases.startswith("memory:"):
            raise click.UsageError(
                f"--leases {leases}: other processes cannot see leases in memory: name a table or a file"
            )
        aws = AwsSettings(region=region, endpoint_url=endpoint_url, profile=profile)
        return command(
            access=KinesisAccess(aws, leases), as_json=output_format == "json", **options
        )

    with_options: Callable[..., Any] = run
    for add in reversed(_OPTIONS):
        with_options = add(with_options)
    return with_options


def finished(work: Coroutine[Any, Any, T]) -> T:
    """Run the asynchronous part of a command."""
    return asyncio.run(work)


def now_ms() -> int:
    """Return the time, milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def confirmed(question: str, *, yes: bool) -> None:
    """Ask for confirmation, unless --yes was given; abort if the answer is no."""
    if not yes:
        confirm(question)


def check_answerable(*, yes: bool, dry_run: bool) -> None:
    """Fail if a confirmation is needed and there is no terminal."""
    if not (yes or dry_run) and not sys.stdin.isatty():
        raise click.UsageError("this needs --yes or --dry-run without a terminal")


async def group_streams(store: LeaseStore, group: str, stream: str | None) -> list[str]:
    """Return the streams of a group as named in its leases; exit with code 1 if there are none."""
    found = [id_ for name, id_ in await store.streams() if name == group]
    if not found:
        fail(f"no group {group!r}")
    if stream is None:
        return found
    chosen = [id_ for id_ in found if stream in {id_, name_of(id_)}]
    if not chosen:
        fail(
            f"group {group!r} does not read the stream {stream!r}, but {', '.join(map(name_of, found))}"
        )
    return chosen


def name_of(stream: str) -> str:
    """Return the name of a stream, without its creation time."""
    return stream.rpartition("@")[0] or stream


async def is_stream_of_leases(shards: StreamShards, stream: str) -> bool:
    """Whether leases belong to this stream, and not to an earlier stream of the same name."""
    return (await described(shards)).stream == stream


async def described(shards: StreamShards) -> StreamDescription:
    """Describe a stream. Does not wait for a stream that is being created, nor long for a server."""
    from headrace.kinesis.client.backoff import FIRST_CONTACT_MS

    return await shards.describe(within_ms=0, answer_within_ms=FIRST_CONTACT_MS)


def check_no_active_members(group: str, watch: Watched, doing: str) -> None:
    """Exit with code 1 if the group has active members."""
    if watch.alive:
        from headrace.core.lease.names import shown

        owners = ", ".join(sorted(shown(watch.alive).values()))
        fail(f"group {group!r} has active members ({owners}): stop them, then {doing}")


def position_text(checkpoint: Checkpoint | None) -> str | None:
    """Return a checkpoint as text. A sub-sequence number follows after a colon."""
    if checkpoint is None or checkpoint.sub_sequence is None:
        return checkpoint.position if checkpoint else None
    return f"{checkpoint.position}:{checkpoint.sub_sequence}"
