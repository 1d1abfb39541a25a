"""Read one shard, from a checkpoint to its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import HashRange
from headrace.kinesis.client.settings import AwsClient
from headrace.kinesis.reading.records import KinesisRecord
from headrace.kinesis.reading.settings import ReadSettings
from headrace.kinesis.reading.shards import ShardInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What one fetch brought."""

    records: list[KinesisRecord] = field(default_factory=list)
    """In order; often none."""
    ended: bool = False
    """Whether these are the last of a closed shard."""
    children: list[ShardInfo] = field(default_factory=list)
    """The shards that follow one that has ended, where Kinesis said it; they may have to be listed."""
    behind_ms: int | None = None
    """How far these are behind the newest records of the shard; None if it is not known."""
    size_bytes: int = 0
    """Data and keys, as Kinesis counts them."""
    data_expired: bool = False
    """Whether it has ended because the shard is gone: what was not read of it is lost."""


class Reader(Protocol):
    """Reads one shard: `ShardReader`, or `FanOutReader`."""

    async def fetch(self, room_bytes: int | None = None) -> Fetched:
        """Wait as long as the limits of Kinesis want, read, and return what there is.

        May be cancelled and called again: what it did not return comes again.

        Args:
            room_bytes: About how much may be read at most.

        Raises:
            StreamNotFoundError: The stream was deleted.
            ConfigError: The credentials are not valid, or not any more.
            KinesisError: It may not be read, or there is no such position in the shard.
        """

    @property
    def last_completed_ms(self) -> int:
        """When the last fetch was complete, by the reader's clock; when it was made if there was none."""

    def restart(self) -> None:
        """Forget iterator or subscription; the next fetch gets a new one behind the last record that was returned."""

    async def aclose(self) -> None:
        """End what is under way."""


class ShardReader:
    """Reads one shard with GetRecords; see `Reader`."""

    def __init__(
        self,
        client: AwsClient,
        stream: str,
        shard: str,
        start: Checkpoint,
        *,
        settings: ReadSettings | None = None,
        hash_range: HashRange | None = None,
    ) -> None:
        """Take a client of Kinesis, a stream (name or ARN), a shard and where to begin; nothing is sent yet.

        Args:
            client: Of Kinesis.
            stream: Its name, or its ARN.
            shard: As `shardId-000000000001`.
            start: A checkpoint; records behind it are read.
            settings: How to read.
            hash_range: The shard's; user records of aggregates that do not belong there are dropped. None: none is.
        """
        self._client = client
        self._stream = stream
        self._shard = shard
        self._start = start
        self._settings = settings or ReadSettings()
        self._hash_range = hash_range

    async def fetch(self, room_bytes: int | None = None) -> Fetched:
        """See `Reader`."""
        raise NotImplementedError

    @property
    def last_completed_ms(self) -> int:
        """See `Reader`."""
        raise NotImplementedError

    def restart(self) -> None:
        """See `Reader`."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """See `Reader`."""
