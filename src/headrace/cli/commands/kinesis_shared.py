"""What the commands of `headrace kinesis` share: options, where leases and streams are, who lives."""

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
"""How long leases last by default, with the margin that members wait besides."""

_OPTIONS: Final = (
    click.option(
        "--leases",
        envvar="HEADRACE_LEASES",
        default=DEFAULT_LEASES,
        show_default=True,
        show_envvar=True,
        metavar="STORE",
        help="Where leases are: dynamodb://TABLE, sqlite:///FILE.",
    ),
    click.option(
        "--region",
        metavar="REGION",
        help="As eu-central-1; the environment's or the profile's if not given.",
    ),
    click.option(
        "--endpoint-url", metavar="URL", help="Another server than AWS's, for streams and leases."
    ),
    click.option("--profile", metavar="NAME", help="A profile of ~/.aws/config."),
    click.option(
        "--format",
        "output_format",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Output for people or for programs.",
    ),
)

wait_option = click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=DEFAULT_WAIT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to watch owners for a sign of life: as long as their leases last, and a tenth more.",
)
stream_option = click.option(
    "-s", "--stream", metavar="STREAM", help="Of this stream; not needed where the group reads one."
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where streams and leases are."""

    aws: AwsSettings
    leases: str

    @asynccontextmanager
    async def store(self, *, create: bool = False) -> AsyncIterator[LeaseStore]:
        """Open the store of leases."""
        from headrace.kinesis.leases.opening import open_store

        store = open_store(self.leases, self.aws, create=create)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def client(self, service: str = "kinesis") -> AsyncIterator[AwsClient]:
        """Open a client of AWS."""
        from headrace.kinesis.client.settings import open_client

        async with open_client(self.aws, service) as client:
            yield client


def kinesis_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that every command has, and handle errors; the command gets `place` and `as_json`."""

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
                f"--leases {leases}: what a process has in memory no other one sees: name a table or a file"
            )
        aws = AwsSettings(region=region, endpoint_url=endpoint_url, profile=profile)
        return command(place=Place(aws, leases), as_json=output_format == "json", **options)

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
    """Ask, unless that was answered beforehand; abort if the answer is no."""
    if not yes:
        confirm(question)


def check_answerable(*, yes: bool, dry_run: bool) -> None:
    """Refuse to ask where nobody can answer."""
    if not (yes or dry_run) and not sys.stdin.isatty():
        raise click.UsageError("this needs --yes or --dry-run where nobody can be asked")


async def group_streams(store: LeaseStore, group: str, stream: str | None) -> list[str]:
    """Return the streams of a group, as leases call them; exit code 1 if there are none."""
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
    """Whether a stream is still the one that leases are of: not one that was created anew under the name."""
    return (await described(shards)).stream == stream


async def described(shards: StreamShards) -> StreamDescription:
    """Return what a stream is; a command waits neither for one that is being created nor long for a server."""
    from headrace.kinesis.client.backoff import FIRST_CONTACT_MS

    return await shards.describe(within_ms=0, answer_within_ms=FIRST_CONTACT_MS)


def check_nobody_lives(group: str, watch: Watched, doing: str) -> None:
    """Exit with code 1 if members are active."""
    if watch.alive:
        from headrace.core.lease.names import shown

        owners = ", ".join(sorted(shown(watch.alive).values()))
        fail(f"group {group!r} has active members ({owners}): stop them, and {doing} then")


def position_text(checkpoint: Checkpoint | None) -> str | None:
    """Return a checkpoint for people and programs: the sub-sequence number behind a colon."""
    if checkpoint is None or checkpoint.sub_sequence is None:
        return checkpoint.position if checkpoint else None
    return f"{checkpoint.position}:{checkpoint.sub_sequence}"
