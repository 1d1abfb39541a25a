"""Find out whether shards have new records, with a read of one record from each shard."""

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
from headrace.spark.kinesis.connections import Connections
from headrace.spark.kinesis.offsets import ShardPosition
from headrace.spark.kinesis.options import ReadOptions
from headrace.spark.kinesis.reading import is_caught_up

EMPTY_READS: Final = 5
"""The most empty reads of a probe. Kinesis returns no records in long gaps of a shard. A task then reads on."""


@dataclass
class ProbeResult:
    """The results of probing some shards."""

    ready: list[str] = field(default_factory=list)
    """The shards with new records."""
    ended: list[str] = field(default_factory=list)
    """The closed shards without further records."""
    expired: list[str] = field(default_factory=list)
    """The shards whose records are gone."""
    quiet: dict[str, ShardPosition] = field(default_factory=dict)
    """The positions of the shards without new records, with the time of the probe."""


class Probes:
    """Probes into shards. A reader of a shard without records stays, so that the next look is one call."""

    def __init__(
        self, stream: str, options: ReadOptions, connections: Connections, clock: Callable[[], int]
    ) -> None:
        self._stream = stream
        self._options = options
        self._connections = connections
        self._clock = clock
        self._readers: dict[str, ShardReader] = {}
        self._settings = replace(options.reading, max_records=1)
        self.behind_ms: dict[str, int] = {}
        self.barren: set[str] = set()
        """The shards in which the last task found no records, also after long gaps."""

    async def clear(self) -> None:
        """Close all readers, because the shards' positions have changed."""
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            await reader.aclose()

    async def probe(
        self,
        positions: Mapping[str, ShardPosition],
        infos: Iterable[ShardInfo],
        *,
        until_ms: int | None,
        limit: asyncio.Semaphore,
    ) -> ProbeResult:
        """Probe shards.

        Args:
            positions: The shards and their positions.
            infos: All listed shards.
            until_ms: Records that arrived later do not count; None counts all.
            limit: Limits the number of concurrent probes.
        """
        client = await self._connections.client(self._options.aws)
        ranges = {info.shard: info.hash_range for info in infos}
        found = ProbeResult()

        async def one(shard: str, position: ShardPosition) -> None:
            async with limit:
                if shard not in self._readers:
                    self._readers[shard] = ShardReader(
                        client,
                        self._stream,
                        shard,
                        position.checkpoint,
                        settings=self._settings,
                        hash_range=ranges.get(shard),
                    )
                await self._probe(shard, position, until_ms, found)

        async with asyncio.TaskGroup() as group:
            for shard, position in positions.items():
                group.create_task(one(shard, position))
        return found

    async def _probe(
        self, shard: str, position: ShardPosition, until_ms: int | None, found: ProbeResult
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
                found.quiet[shard] = position._replace(read_ms=before_ms)
                return
        if shard not in self.barren:
            await self._drop(shard)
            found.ready.append(shard)

    async def _drop(self, shard: str) -> None:
        reader = self._readers.pop(shard, None)
        if reader is not None:
            await reader.aclose()


async def still_there(client: AwsClient, stream: str, shard: str, sequence_number: str) -> bool:
    """Return whether a record has not expired yet. Then no later record of the shard has expired."""
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
