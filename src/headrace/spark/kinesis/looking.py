"""Whether shards have something to read, found out by a read of one record of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.errors import KinesisError
from headrace.kinesis.client.backoff import RealTiming, repeated
from headrace.kinesis.client.get_records import get_records, prepare
from headrace.kinesis.client.settings import AwsClient
from headrace.kinesis.client.streams import stream_arguments
from headrace.kinesis.reading.reader import ShardReader
from headrace.kinesis.reading.shards import ShardInfo
from headrace.spark.kinesis.access import Access
from headrace.spark.kinesis.offsets import ShardPosition
from headrace.spark.kinesis.options import ReadOptions
from headrace.spark.kinesis.reading import is_caught_up

EMPTY_READS: Final = 5
"""Kinesis answers without records where a shard has long gaps; a task then reads on through them."""


@dataclass
class Found:
    """What a look into shards has found."""

    ready: list[str] = field(default_factory=list)
    """Those with records."""
    ended: list[str] = field(default_factory=list)
    """Those that are closed, and have none left."""
    expired: list[str] = field(default_factory=list)
    """Those of the latter whose records are gone."""
    quiet: dict[str, ShardPosition] = field(default_factory=dict)
    """Those that have nothing new, and up to when."""


class Looks:
    """Looks into shards. A reader of a shard without records stays, so that the next look is one call."""

    def __init__(
        self, stream: str, options: ReadOptions, access: Access, clock: Callable[[], int]
    ) -> None:
        self._stream = stream
        self._options = options
        self._access = access
        self._clock = clock
        self._readers: dict[str, ShardReader] = {}
        self._settings = replace(options.reading, max_records=1)
        self.behind_ms: dict[str, int] = {}
        self.barren: set[str] = set()
        """Shards in which a task has just found nothing, also behind long gaps."""

    async def clear(self) -> None:
        """Forget readers: shards are read from elsewhere by now."""
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            await reader.aclose()

    async def look(
        self,
        places: Mapping[str, ShardPosition],
        infos: Iterable[ShardInfo],
        *,
        until_ms: int | None,
        limit: asyncio.Semaphore,
    ) -> Found:
        """Look into shards.

        Args:
            places: The shards, and from where.
            infos: All shards that are listed.
            until_ms: Records that arrived later do not count.
            limit: Of looks at the same time.
        """
        client = await self._access.client(self._options.aws)
        ranges = {info.shard: info.hash_range for info in infos}
        found = Found()

        async def one(shard: str, place: ShardPosition) -> None:
            async with limit:
                if shard not in self._readers:
                    self._readers[shard] = ShardReader(
                        client,
                        self._stream,
                        shard,
                        place.checkpoint,
                        settings=self._settings,
                        hash_range=ranges.get(shard),
                    )
                await self._look(shard, place, until_ms, found)

        async with asyncio.TaskGroup() as group:
            for shard, place in places.items():
                group.create_task(one(shard, place))
        return found

    async def _look(
        self, shard: str, place: ShardPosition, until_ms: int | None, found: Found
    ) -> None:
        reader = self._readers[shard]
        for _ in range(EMPTY_READS):
            before_ms = self._clock()
            fetched = await reader.fetch()
            if fetched.behind_ms is not None:
                self.behind_ms[shard] = fetched.behind_ms
            if fetched.data_expired:
                found.expired.append(shard)
            if fetched.records:
                await self._drop(shard)
                if until_ms is None or fetched.records[0].timestamp_ms <= until_ms:
                    found.ready.append(shard)
                return
            if fetched.ended:
                await self._drop(shard)
                self.behind_ms.pop(shard, None)
                found.ended.append(shard)
                return
            if is_caught_up(fetched):
                found.quiet[shard] = place._replace(read_ms=before_ms)
                return
        if shard not in self.barren:
            await self._drop(shard)
            found.ready.append(shard)

    async def _drop(self, shard: str) -> None:
        reader = self._readers.pop(shard, None)
        if reader is not None:
            await reader.aclose()


async def still_there(client: AwsClient, stream: str, shard: str, sequence_number: str) -> bool:
    """Whether a record has not expired yet; then nothing that came after it has."""
    arguments = stream_arguments(stream)
    timing, doing = RealTiming(), f"looking for a record of {shard}"
    try:
        answer = await repeated(
            lambda: client.get_shard_iterator(
                **arguments,
                ShardId=shard,
                ShardIteratorType="AT_SEQUENCE_NUMBER",
                StartingSequenceNumber=sequence_number,
            ),
            doing,
            client,
            timing,
        )
        given = {"ShardIterator": answer["ShardIterator"], "Limit": 1}
        prepare(client)
        reply = await repeated(lambda: get_records(client, given), doing, client, timing)
    except KinesisError:
        return False
    return bool(reply.records) and reply.records[0].sequence_number == sequence_number
