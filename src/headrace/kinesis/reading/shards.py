"""Which shards a stream has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headrace.core.lease.lease import HashRange
from headrace.kinesis.client.settings import AwsClient


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

    def __init__(self, client: AwsClient, stream: str) -> None:
        """Take a client of Kinesis, and a stream: its name, or its ARN."""
        self._client = client
        self._stream = stream

    async def describe(self) -> StreamDescription:
        """Return what a stream is, as soon as it can be read: one that is being created is waited for.

        Raises:
            StreamNotFoundError: There is none, or it is being deleted.
            ConfigError: Credentials, region or endpoint are wrong.
            KinesisError: It may not be read, or does not answer.
        """
        raise NotImplementedError

    async def list_shards(self) -> list[ShardInfo]:
        """Return every shard that still has records, closed ones too, oldest first.

        Raises:
            StreamNotFoundError: There is no such stream any more.
            KinesisError: They may not be listed, or it does not answer.
        """
        raise NotImplementedError
