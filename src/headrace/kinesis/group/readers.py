"""Readers of shards, made as the settings say, and watched: a fetch that brings nothing is news, too."""

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
    """A `Reader` of which it is known what it does."""

    def __init__(
        self, reader: Reader, key: LeaseKey, told: Callable[[LeaseKey, Fetched | None], object]
    ) -> None:
        """Watch a reader.

        Args:
            reader: Who reads.
            key: Which shard.
            told: Called after each fetch that succeeded, with what it brought, and (with None) for one that did not.
        """
        self._reader = reader
        self._key = key
        self._told = told
        self.counts = reader.counts
        self.is_fetching = False
        self.count = 0
        """Records that were brought."""
        self.behind_ms: int | None = None
        """How far the last fetch was behind the newest records."""
        self.current_at = -1.0
        """When the last fetch was begun, if there was nothing new; -1 if there was."""

    async def fetch(self, room: Callable[[], int] | None = None) -> Fetched:
        """See `Reader`."""
        begun_at = asyncio.get_running_loop().time()
        self.is_fetching = True
        fetched = None
        try:
            fetched = await self._reader.fetch(room)
        finally:
            self.is_fetching = False
            self._told(self._key, fetched)
        self.count += len(fetched.records)
        self.behind_ms = fetched.behind_ms
        self.current_at = -1.0 if fetched.records or fetched.behind_ms else begun_at
        return fetched

    def restart(self) -> None:
        """See `Reader`."""
        self._reader.restart()

    async def aclose(self) -> None:
        """See `Reader`."""
        await self._reader.aclose()


class Readers:
    """Makes readers of the shards of some streams."""

    def __init__(
        self,
        client: AwsClient,
        streams: StreamGroupSettings,
        found: Sequence[StreamDescription],
        told: Callable[[LeaseKey, Fetched | None], object],
    ) -> None:
        self._client = client
        self._streams = streams
        self._arns = {each.stream: each.arn for each in found}
        self._given = {each.stream: name for each, name in zip(found, streams.names, strict=True)}
        self._told = told
        self._consumers: dict[str, str] = {}
        """By stream: what is registered for fan-out."""

    async def register(self, group: str) -> None:
        """Have a consumer of the group registered with each stream, if records are pushed.

        Raises:
            KinesisError: It may not be, or is not in time.
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
        return WatchedReader(reader, lease.key, self._told)
