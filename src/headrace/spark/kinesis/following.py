"""One of a query's streams, as its driver knows it: its shards, how far each was read, and what is new in them."""

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
from headrace.spark.kinesis.access import Access
from headrace.spark.kinesis.lineage import advanced, initial
from headrace.spark.kinesis.looking import Looks, still_there
from headrace.spark.kinesis.offsets import End, ShardPosition, Shards, StreamPart
from headrace.spark.kinesis.options import ReadOptions, Starting
from headrace.spark.kinesis.reading import lost

_HOUR_MS: Final = 3_600_000


class Following:
    """Follows one stream."""

    def __init__(
        self, stream: str, options: ReadOptions, access: Access, clock: Callable[[], int]
    ) -> None:
        """Take the stream's name or ARN; nothing is sent yet."""
        self.stream, self.name = stream, stream_name(stream)
        self._options = options
        self._access = access
        self._clock = clock
        self._description: StreamDescription | None = None
        self._infos: list[ShardInfo] = []
        self._shards = Shards()
        self._looks = Looks(stream, options, access, clock)

    @property
    def behind_ms(self) -> dict[str, int]:
        """How far each shard was behind its newest records when it was read or looked into."""
        return dict(self._looks.behind_ms)

    async def describe(self) -> StreamDescription:
        """Return what the stream is, as it was found first."""
        if self._description is None:
            api = await self._api()
            self._description = await api.describe(answer_within_ms=FIRST_CONTACT_MS)
        return self._description

    async def is_that_of(self, part: StreamPart) -> bool:
        """Whether it is the stream of a checkpoint, not another one of its name.

        Raises:
            DataLossError: It is not, and `failOnDataLoss` is true.
        """
        now = (await self.describe()).stream
        if part.stream != now:
            self._lost(
                f"the checkpoint is of the stream {part.stream} (name and creation time), and {self.stream} is {now} "
                "now: it was deleted and created again, or it is one of another account or region"
            )
        return part.stream == now

    async def hash_ranges(self) -> dict[str, HashRange]:
        """Return the hash ranges of its shards."""
        if not self._infos:
            await self._list()
        return {info.shard: info.hash_range for info in self._infos}

    async def begin(self, starting: Starting) -> None:
        """Begin without a checkpoint."""
        await self._forget()
        await self._list()
        self._shards = initial(self._infos, starting, self._clock())

    async def go_on(self, part: StreamPart, ends: Mapping[str, End]) -> None:
        """Go on where the shards of the last round have ended.

        Raises:
            DataLossError: They were left alone for longer than records live, and `failOnDataLoss` is true.
        """
        await self._forget()
        self._shards = part.after(ends)
        for shard, end in ends.items():
            if not end.rows and end.read_ms:
                self._looks.barren.add(shard)
            if end.behind_ms is not None:
                self._looks.behind_ms[shard] = end.behind_ms
        await self._check_ages()

    async def _forget(self) -> None:
        await self._looks.clear()
        self._looks.barren.clear()

    async def _api(self) -> StreamShards:
        return StreamShards(await self._access.client(self._options.aws), self.stream)

    async def _list(self) -> None:
        self._infos = await (await self._api()).list_shards()

    async def look(self, until_ms: int | None, limit: asyncio.Semaphore) -> list[str]:
        """Return the shards that have something; put away those that have nothing more to come.

        Args:
            until_ms: Records that arrived later do not count.
            limit: Of looks at the same time.

        Raises:
            DataLossError: A shard is gone, and `failOnDataLoss` is true.
        """
        while True:
            if not self._infos or any(
                place.checkpoint.is_end for place in self._shards.active.values()
            ):
                await self._list()
                self._drop_vanished()
                self._shards = advanced(self._shards, self._infos)
            found = await self._looks.look(
                self._shards.active, self._infos, until_ms=until_ms, limit=limit
            )
            for shard in found.expired:
                self._lost(f"{shard} of {self.name} is gone before it was read")
            ended = dict.fromkeys(found.ended, ShardPosition(SHARD_END))
            self._shards = replace(
                self._shards, active={**self._shards.active, **found.quiet, **ended}
            )
            if not found.ended:
                return found.ready

    def _drop_vanished(self) -> None:
        """Give up shards that Kinesis does not list any more."""
        listed = {info.shard for info in self._infos}
        for shard, place in list(self._shards.active.items()):
            if shard not in listed and not place.checkpoint.is_end:
                self._lost(f"{shard} of {self.name} is gone before it was read to its end")
                gone = {**self._shards.active, shard: ShardPosition(SHARD_END)}
                self._shards = replace(self._shards, active=gone)

    async def _check_ages(self) -> None:
        """Find shards that were left alone for longer than records live."""
        hours = (await self.describe()).retention_hours
        oldest_ms = self._clock() - hours * _HOUR_MS
        for shard, (checkpoint, read_ms) in self._shards.active.items():
            if checkpoint.is_end or read_ms is None or read_ms >= oldest_ms:
                continue
            if checkpoint.is_sequence_number:
                client = await self._access.client(self._options.aws)
                if await still_there(client, self.stream, shard, checkpoint.position):
                    continue  # Kinesis is in no hurry to remove what may expire
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(read_ms / 1000))
            self._lost(
                f"{shard} of {self.name} was read up to {when}, and the stream keeps records for {hours} hours: "
                "some may have expired before they were read"
            )

    async def ages(self, part: StreamPart) -> bool:
        """Whether the checkpoint should be told anew that nothing came: it would take that for lost some day."""
        known = [place.read_ms for place in part.shards.active.values() if place.read_ms]
        fresh = [place.read_ms for place in self._shards.active.values() if place.read_ms]
        limit_ms = (await self.describe()).retention_hours * _HOUR_MS // 8
        return bool(known and fresh) and min(fresh) - min(known) > limit_ms

    async def part(self, ready: list[str]) -> StreamPart:
        """Return what a round has of it that reads these shards."""
        return StreamPart((await self.describe()).stream, tuple(sorted(ready)), self._shards)

    def _lost(self, what: str) -> None:
        lost(what, fail=self._options.fail_on_data_loss)
