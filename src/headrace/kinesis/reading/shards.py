"""The description of a stream, and the list of its shards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol

from headrace.core.lease.lease import HashRange
from headrace.errors import KinesisError, StreamNotFoundError
from headrace.kinesis.client.backoff import RealTiming, Timing, repeated
from headrace.kinesis.client.errors import FailureKind, failure_kind
from headrace.kinesis.client.settings import AwsClient
from headrace.kinesis.client.streams import stream_arguments, stream_name

_CREATION_POLL_MS: Final = 1_000
_LISTINGS: Final = 3


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard as a list of shards describes it."""

    shard: str
    parents: frozenset[str]
    """The shards that this shard came from: none, one (after a split) or two (after a merge)."""
    hash_range: HashRange
    closed: bool
    """Whether the shard accepts no more records, and so has an end."""


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """A stream that can be read."""

    stream: str
    """`<name>@<creation time in s since 1970>`, the stream's name in leases."""
    name: str
    arn: str
    status: str
    """`ACTIVE` or `UPDATING`. Both can be read."""
    retention_hours: int


class ShardLister(Protocol):
    """The source of a stream's list of shards."""

    async def list_shards(self) -> list[ShardInfo]:
        """Return every shard that still has records, also closed ones, oldest first."""


class StreamShards:
    """The shards of one stream.

    Limits of an account and region: `describe` 20 times per second, `list_shards` 1,000 times per second and stream.
    """

    def __init__(self, client: AwsClient, stream: str, *, timing: Timing | None = None) -> None:
        """Prepare the calls for a stream, given by name or ARN; nothing is sent yet.

        Raises:
            ConfigError: The ARN does not name a stream.
        """
        self._client = client
        self._name = stream_name(stream)
        self._arguments = stream_arguments(stream)
        self._timing = timing or RealTiming()

    async def describe(
        self, *, within_ms: int = 600_000, answer_within_ms: int | None = None
    ) -> StreamDescription:
        """Return the description of a stream. If the stream is being created, wait until it can be read.

        Args:
            within_ms: How long to wait for a stream that is being created, in milliseconds.
            answer_within_ms: How long to retry without a response, in milliseconds; `FIRST_CONTACT_MS` at the first
                contact.

        Raises:
            StreamNotFoundError: The stream does not exist, or is being deleted.
            ConfigError: Credentials, region or endpoint are wrong.
            KinesisError: Access is denied, Kinesis does not answer, or the creation takes too long.
        """
        give_up_ms = self._timing.now_ms() + within_ms
        while (description := await self._describe(answer_within_ms)).status == "CREATING":
            if self._timing.now_ms() >= give_up_ms:
                raise KinesisError(
                    f"stream {self._name} is still being created. Start again when it is ACTIVE"
                )
            await self._timing.sleep_ms(_CREATION_POLL_MS)
        if description.status == "DELETING":
            raise StreamNotFoundError(f"stream {self._name} is being deleted")
        return description

    async def _describe(self, answer_within_ms: int | None) -> StreamDescription:
        answer = await self._repeated(
            partial(self._client.describe_stream_summary, **self._arguments),
            "describing",
            answer_within_ms,
        )
        summary = answer["StreamDescriptionSummary"]
        created = summary["StreamCreationTimestamp"]
        created_s = int(created.timestamp() if isinstance(created, datetime) else created)
        return StreamDescription(
            stream=f"{self._name}@{created_s}",
            name=self._name,
            arn=summary["StreamARN"],
            status=summary["StreamStatus"],
            retention_hours=summary["RetentionPeriodHours"],
        )

    async def check_same(self, stream: str) -> None:
        """Check that a stream of this name is still the stream that is read.

        Args:
            stream: The stream's name in leases.

        Raises:
            StreamNotFoundError: The stream was deleted, or was deleted and created again.
            KinesisError: Access is denied, or Kinesis does not answer.
        """
        lost = "its unread records are lost"
        try:
            now = await self.describe()
        except StreamNotFoundError as error:
            raise StreamNotFoundError(
                f"stream {self._name} was deleted while it was read, and {lost}. Create it and start again, or do not "
                "read it any more"
            ) from error
        if now.stream != stream:
            raise StreamNotFoundError(
                f"stream {self._name} was deleted and created again while it was read, and {lost} (it was {stream}, "
                f"and is {now.stream}). Start again to read the new stream from the group's start position"
            )

    async def list_shards(self) -> list[ShardInfo]:
        """Return every shard that still has records, also closed ones, oldest first.

        Raises:
            StreamNotFoundError: The stream does not exist any more.
            KinesisError: Access is denied, or Kinesis does not answer.
        """
        expired = None
        for _attempt in range(_LISTINGS):
            try:
                return await self._pages()
            except KinesisError as error:
                # A token is valid for five minutes, and the pages came more slowly than that.
                if (
                    error.__cause__ is None
                    or failure_kind(error.__cause__) is not FailureKind.EXPIRED
                ):
                    raise
                expired = error
        raise expired or AssertionError

    async def _pages(self) -> list[ShardInfo]:
        shards: list[ShardInfo] = []
        arguments: dict[str, str] = self._arguments
        while True:
            page = await self._repeated(
                partial(self._client.list_shards, **arguments), "listing the shards of"
            )
            shards += [_shard(each) for each in page["Shards"]]
            token = page.get("NextToken")
            if not token:
                return sorted(shards, key=lambda each: each.shard)
            arguments = {
                "NextToken": token
            }  # the token names the stream; a name besides it is refused

    async def _repeated(
        self,
        call: Callable[[], Awaitable[Any]],
        doing: str,
        answer_within_ms: int | None = None,
    ) -> Any:
        return await repeated(
            call,
            f"{doing} stream {self._name}",
            self._client,
            self._timing,
            answer_within_ms=answer_within_ms,
            stream=self._name,
        )


def _shard(listed: Mapping[str, Any]) -> ShardInfo:
    parents = (listed.get("ParentShardId"), listed.get("AdjacentParentShardId"))
    keys = listed["HashKeyRange"]
    return ShardInfo(
        shard=listed["ShardId"],
        parents=frozenset(parent for parent in parents if parent),
        hash_range=HashRange(int(keys["StartingHashKey"]), int(keys["EndingHashKey"])),
        closed=bool(listed["SequenceNumberRange"].get("EndingSequenceNumber")),
    )
