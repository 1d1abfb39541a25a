"""One stream of a query in the driver: its shards, how far each shard was read, and which have new records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from headrace.core.lease.checkpoint import SHARD_END
from headrace.core.lease.lease import HashRange
from headrace.kinesis.client.backoff import FIRST_CONTACT_MS
from headrace.kinesis.client.streams import stream_name
from headrace.kinesis.reading.shards import ShardInfo, StreamDescription, StreamShards
from headrace.spark.kinesis.connections import Connections
from headrace.spark.kinesis.lineage import advanced, initial
from headrace.spark.kinesis.offsets import End, ShardPosition, Shards, StreamPart
from headrace.spark.kinesis.options import ReadOptions, Starting
from headrace.spark.kinesis.probing import Probes, still_there
from headrace.spark.kinesis.reading import lost

_HOUR_MS: Final = 3_600_000


class FollowedStream:
    """The driver's state of one stream."""

    def __init__(
        self, stream: str, options: ReadOptions, connections: Connections, clock: Callable[[], int]
    ) -> None:
        """Take the stream's name or ARN. No request is sent yet."""
        self.stream, self.name = stream, stream_name(stream)
        self._options = options
        self._connections = connections
        self._clock = clock
        self._description: StreamDescription | None = None
        self._infos: list[ShardInfo] = []
        self._shards = Shards()
        self._probes = Probes(stream, options, connections, clock)

    @property
    def behind_ms(self) -> dict[str, int]:
        """Milliseconds by which each shard was behind its newest records when it was last read or probed."""
        return dict(self._probes.behind_ms)

    async def describe(self) -> StreamDescription:
        """Describe the stream. The first description is kept."""
        if self._description is None:
            api = await self._api()
            self._description = await api.describe(answer_within_ms=FIRST_CONTACT_MS)
        return self._description

    async def is_stream_of(self, part: StreamPart) -> bool:
        """Return whether this is the stream of a checkpoint, and not a newer stream with the same name.

        Raises:
            DataLossError: It is another stream, and `failOnDataLoss` is true.
        """
        now = (await self.describe()).stream
        if part.stream != now:
            self._lost(
                f"the checkpoint is of the stream {part.stream} (name and creation time), but {self.stream} is {now} "
                "now: the stream was deleted and created again, or it is in another account or region"
            )
        return part.stream == now

    async def hash_ranges(self) -> dict[str, HashRange]:
        """Return the hash key ranges of the stream's shards."""
        if not self._infos:
            await self._list()
        return {info.shard: info.hash_range for info in self._infos}

    async def begin(self, starting: Starting) -> None:
        """Start without a checkpoint."""
        await self._forget()
        await self._list()
        self._shards = initial(self._infos, starting, self._clock())

    async def continue_after(self, part: StreamPart, ends: Mapping[str, End]) -> None:
        """Continue at the ends of the last round.

        Raises:
            DataLossError: A shard was not read for longer than the stream's retention, and `failOnDataLoss` is true.
        """
        await self._forget()
        self._shards = part.after(ends)
        for shard, end in ends.items():
            if not end.rows and end.read_ms:
                self._probes.barren.add(shard)
            if end.behind_ms is not None:
                self._probes.behind_ms[shard] = end.behind_ms
        await self._check_retention()

    async def _forget(self) -> None:
        await self._probes.clear()
        self._probes.barren.clear()

    async def _api(self) -> StreamShards:
        return StreamShards(await self._connections.client(self._options.aws), self.stream)

    async def _list(self) -> None:
        self._infos = await (await self._api()).list_shards()

    async def probe(self, until_ms: int | None, limit: asyncio.Semaphore) -> list[str]:
        """Return the shards that have new records. Shards that were read to their end are replaced by their children.

        Args:
            until_ms: Records that arrived later do not count; None counts all.
            limit: Limits the number of concurrent probes.

        Raises:
            DataLossError: A shard is gone, and `failOnDataLoss` is true.
        """
        while True:
            if not self._infos or any(
                position.checkpoint.is_end for position in self._shards.active.values()
            ):
                await self._list()
                self._drop_vanished()
                self._shards = advanced(self._shards, self._infos)
            found = await self._probes.probe(
                self._shards.active, self._infos, until_ms=until_ms, limit=limit
            )
            for shard in found.expired:
                self._lost(f"{shard} of {self.name} was removed before it was read")
            ended = dict.fromkeys(found.ended, ShardPosition(SHARD_END))
            self._shards = replace(
                self._shards, active={**self._shards.active, **found.quiet, **ended}
            )
            if not found.ended:
                return found.ready

    def _drop_vanished(self) -> None:
        """Treat active shards that Kinesis does not list any more as lost and ended."""
        listed = {info.shard for info in self._infos}
        for shard, position in list(self._shards.active.items()):
            if shard not in listed and not position.checkpoint.is_end:
                self._lost(f"{shard} of {self.name} was removed before it was read to its end")
                gone = {**self._shards.active, shard: ShardPosition(SHARD_END)}
                self._shards = replace(self._shards, active=gone)

    async def _check_retention(self) -> None:
        """Find shards that were not read for longer than the stream's retention."""
        hours = (await self.describe()).retention_hours
        oldest_ms = self._clock() - hours * _HOUR_MS
        for shard, (checkpoint, read_ms) in self._shards.active.items():
            if checkpoint.is_end or read_ms is None or read_ms >= oldest_ms:
                continue
            if checkpoint.is_sequence_number:
                client = await self._connections.client(self._options.aws)
                if await still_there(client, self.stream, shard, checkpoint.position):
                    continue  # Kinesis has not removed the expired records yet
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(read_ms / 1000))
            self._lost(
                f"{shard} of {self.name} was read up to {when}, and the stream's retention is {hours} hours: "
                "records may have expired before they were read"
            )

    async def needs_checkpoint(self, part: StreamPart) -> bool:
        """Return whether a checkpoint without new records is due.

        The read times in the checkpoint become old while no records arrive. A restart after the retention time would
        take that for lost records.
        """
        known = [position.read_ms for position in part.shards.active.values() if position.read_ms]
        fresh = [position.read_ms for position in self._shards.active.values() if position.read_ms]
        limit_ms = (await self.describe()).retention_hours * _HOUR_MS // 8
        return bool(known and fresh) and min(fresh) - min(known) > limit_ms

    async def part(self, ready: list[str]) -> StreamPart:
        """Return this stream's part of a round that reads these shards."""
        return StreamPart((await self.describe()).stream, tuple(sorted(ready)), self._shards)

    def _lost(self, what: str) -> None:
        lost(what, fail=self._options.fail_on_data_loss)
