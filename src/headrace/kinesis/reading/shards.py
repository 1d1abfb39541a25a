"""Which shards a stream has."""

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
    """A shard, as a list of shards tells of it."""

    shard: str
    parents: frozenset[str]
    """None, one (it came of a split) or two (of a merge)."""
    hash_range: HashRange
    closed: bool
    """Whether it takes no records any more; it has an end then."""


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """A stream that can be read."""

    stream: str
    """`<name>@<creation time, s since 1970>`, as in leases."""
    name: str
    arn: str
    status: str
    """`ACTIVE`, or `UPDATING`: both can be read."""
    retention_hours: int


class ShardLister(Protocol):
    """Where a member of a group learns of shards."""

    async def list_shards(self) -> list[ShardInfo]:
        """Return every shard that still has records, closed ones too, oldest first."""


class StreamShards:
    """The shards of one stream.

    Limits of an account and region: `describe` 20 times a second, `list_shards` 1,000 times a second for a stream.
    """

    def __init__(self, client: AwsClient, stream: str, *, timing: Timing | None = None) -> None:
        """Take a client of Kinesis, and a stream: its name, or its ARN.

        Raises:
            ConfigError: It is an ARN of something else.
        """
        self._client = client
        self._name = stream_name(stream)
        self._arguments = stream_arguments(stream)
        self._timing = timing or RealTiming()

    async def describe(
        self, *, within_ms: int = 600_000, answer_within_ms: int | None = None
    ) -> StreamDescription:
        """Return what a stream is, as soon as it can be read: one that is being created is waited for.

        Args:
            within_ms: How long to wait for one that is being created.
            answer_within_ms: How long to try to get an answer: at the first contact it is `FIRST_CONTACT_MS`.

        Raises:
            StreamNotFoundError: There is none, or it is being deleted.
            ConfigError: Credentials, region or endpoint are wrong.
            KinesisError: It may not be read, does not answer, or is not created in time.
        """
        give_up_ms = self._timing.now_ms() + within_ms
        while (description := await self._describe(answer_within_ms)).status == "CREATING":
            if self._timing.now_ms() >= give_up_ms:
                raise KinesisError(f"stream {self._name} is still being created: try again later")
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
        """See that the stream is still the one that is read.

        Args:
            stream: What leases call it.

        Raises:
            StreamNotFoundError: It was deleted; or it was, and there is another one of its name.
            KinesisError: It may not be looked at, or does not answer.
        """
        lost = "what was not read of it is lost"
        try:
            now = await self.describe()
        except StreamNotFoundError as error:
            raise StreamNotFoundError(
                f"stream {self._name} was deleted while it was read, and {lost}: create it and start again, or read it "
                "no more"
            ) from error
        if now.stream != stream:
            raise StreamNotFoundError(
                f"stream {self._name} was deleted and created again while it was read, and {lost} (it was {stream}, "
                f"and is {now.stream}): start again, and the new one is read from where a group begins"
            )

    async def list_shards(self) -> list[ShardInfo]:
        """Return every shard that still has records, closed ones too, oldest first.

        Raises:
            StreamNotFoundError: There is no such stream any more.
            KinesisError: They may not be listed, or it does not answer.
        """
        expired = None
        for _attempt in range(_LISTINGS):
            try:
                return await self._pages()
            except KinesisError as error:
                # A token is good for five minutes: pages came very slowly.
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
            arguments = {"NextToken": token}  # it names the stream; both are refused

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
