"""Opens the readers of shards as the settings say, and observes their fetches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.kinesis.client.settings import AwsClient
from headrace.kinesis.reading.fan_out import FanOutReader
from headrace.kinesis.reading.reader import Fetched, Reader, ShardReader
from headrace.kinesis.reading.registering import registered_consumer
from headrace.kinesis.reading.shards import StreamDescription

if TYPE_CHECKING:
    from headrace.kinesis.group.settings import StreamGroupSettings


class WatchedReader:
    """A `Reader` whose fetches are observed."""

    def __init__(
        self,
        reader: Reader,
        key: LeaseKey,
        on_fetched: Callable[[LeaseKey, Fetched | None], object],
    ) -> None:
        """Observe a reader.

        Args:
            reader: The reader.
            key: The key of the shard's lease.
            on_fetched: Called after each fetch, with what it returned, or with None if it failed.
        """
        self._reader = reader
        self._key = key
        self._on_fetched = on_fetched
        self.counts = reader.counts
        self.is_fetching = False
        self.count = 0
        """The number of records that the reader has returned."""
        self.behind_ms: int | None = None
        """The distance of the last fetch from the newest records, in milliseconds; None before the first fetch."""
        self.current_at = -1.0
        """The start of the last fetch if it found nothing new, by the event loop's time; -1 if it found records."""

    async def fetch(self, space: Callable[[], int] | None = None) -> Fetched:
        """Fetch records; see `Reader`."""
        begun_at = asyncio.get_running_loop().time()
        self.is_fetching = True
        fetched = None
        try:
            fetched = await self._reader.fetch(space)
        finally:
            self.is_fetching = False
            self._on_fetched(self._key, fetched)
        self.count += len(fetched.records)
        self.behind_ms = fetched.behind_ms
        self.current_at = -1.0 if fetched.records or fetched.behind_ms else begun_at
        return fetched

    def restart(self) -> None:
        """Restart the reader; see `Reader`."""
        self._reader.restart()

    async def aclose(self) -> None:
        """Close the reader; see `Reader`."""
        await self._reader.aclose()


class Readers:
    """Opens readers of the shards of some streams."""

    def __init__(
        self,
        client: AwsClient,
        streams: StreamGroupSettings,
        found: Sequence[StreamDescription],
        on_fetched: Callable[[LeaseKey, Fetched | None], object],
    ) -> None:
        self._client = client
        self._streams = streams
        self._arns = {each.stream: each.arn for each in found}
        self._given = {each.stream: name for each, name in zip(found, streams.names, strict=True)}
        self._on_fetched = on_fetched
        self._consumers: dict[str, str] = {}
        """The ARNs of the registered fan-out consumers, by stream."""

    async def register(self, group: str) -> None:
        """Register a consumer of the group with each stream, if the settings say so.

        Raises:
            KinesisError: The registration is not permitted, or takes too long.
        """
        if not self._streams.fan_out:
            return
        name = self._streams.fan_out if isinstance(self._streams.fan_out, str) else group
        for stream, arn in self._arns.items():
            self._consumers[stream] = await registered_consumer(self._client, arn, name)

    def open(self, lease: Lease, start: Checkpoint) -> WatchedReader:
        """Return a new reader of a shard."""
        stream, shard = lease.key.stream, lease.key.shard
        settings, hash_range = self._streams.reading, lease.hash_range
        reader: Reader
        if stream in self._consumers:
            reader = FanOutReader(
                self._client,
                self._arns[stream],
                self._consumers[stream],
                shard,
                start,
                settings=settings,
                hash_range=hash_range,
                lease_stream=stream,
            )
        else:
            reader = ShardReader(
                self._client,
                self._given[stream],
                shard,
                start,
                settings=settings,
                hash_range=hash_range,
                lease_stream=stream,
            )
        return WatchedReader(reader, lease.key, self._on_fetched)
