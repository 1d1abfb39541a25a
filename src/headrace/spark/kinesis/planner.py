"""The driver's part of a streaming read: which round comes next, if one does.

It looks into each shard by a read of one record. A round is planned when there is something in one of them, and reads
those alone; so batches are not empty, and a run with `availableNow` ends when every shard is at the time of its start.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from headrace.core.lease.checkpoint import SHARD_END
from headrace.errors import LeaseStoreError
from headrace.kinesis.leases.store import LeaseStore
from headrace.kinesis.reading.shards import ShardInfo, StreamDescription, StreamShards
from headrace.spark.kinesis.access import Access, patiently
from headrace.spark.kinesis.lineage import advanced, initial
from headrace.spark.kinesis.looking import Looks, still_there
from headrace.spark.kinesis.offsets import (
    End,
    Place,
    Shards,
    StreamOffset,
    end_name,
    parse_end,
    round_name,
    round_of,
)
from headrace.spark.kinesis.options import ReadOptions, Starting
from headrace.spark.kinesis.reading import Bounds
from headrace.spark.kinesis.tasks import SHARDS_OF_A_TASK, TASK_BYTES, RoundTask, ShardRead, packed
from headrace.spark.source.offsets import DataLossError

log = logging.getLogger(__name__)

_HOUR_MS: Final = 3_600_000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Planner:
    """Plans the rounds of one query, in the driver's process."""

    def __init__(
        self, options: ReadOptions, access: Access, clock: Callable[[], int] = _now_ms
    ) -> None:
        """Take options and connections; nothing is sent yet."""
        self._options = options
        self._access = access
        self._clock = clock
        self._until_ms: int | None = None
        self._initial = StreamOffset(uuid.uuid4().hex)
        self._stream: StreamDescription | None = None
        self._infos: list[ShardInfo] = []
        self._settled: StreamOffset | None = None
        self._shards = Shards()
        self._looks = Looks(options, access, clock)
        self._looked_ms: int | None = None
        self._planned = 0  # the last round that this driver has planned or taken over
        self._unread = False
        self._names: list[str] = []

    def initial(self) -> StreamOffset:
        """Return the offset before the first round. The first batch, which waits for nothing, pins where it is."""
        return self._initial

    def set_target(self) -> None:
        """Leave what arrives from now on for another run."""
        self._until_ms = self._clock()

    @property
    def behind_ms(self) -> dict[str, int]:
        """How far each shard was behind its newest records when it was read or looked into."""
        return dict(self._looks.behind_ms)

    async def latest(self, start: StreamOffset) -> StreamOffset:
        """Return the offset behind the next round; `start` if there is nothing to read.

        Raises:
            DataLossError: Records are gone that were not read, and `failOnDataLoss` is true.
            LeaseStoreError: The store does not answer, or has lost what it had.
            KinesisError: The stream cannot be read.
        """
        if self._settled != start:
            await self._settle(start)
        elif self._looked_ms is not None:
            waited_ms = self._clock() - self._looked_ms
            if waited_ms < self._options.reading.poll_ms:
                return start
        if self._unread and self._until_ms is not None:
            log.warning(
                "no task has read anything of round %d: this run ends, and a later one reads it",
                start.planned,
            )
            return start
        ready = await self._look()
        self._looked_ms = self._clock()
        if not ready and start.round and not self._ages(start):
            return start
        return await self._plan(start, ready)

    async def tasks(self, end: StreamOffset) -> list[RoundTask]:
        """Return the tasks of the round that ends with an offset: the same ones whenever they are asked for."""
        if not end.reads:
            return []
        stream = await self._describe(end)
        if end.stream != stream.stream:  # and failOnDataLoss is false
            return []
        if end.round != self._planned:
            await self._take_over(end)
        if not self._infos:
            await self._list()
        ranges = {info.shard: info.hash_range for info in self._infos}
        reads = [
            ShardRead(shard, end.shards.active[shard].checkpoint, ranges.get(shard))
            for shard in end.reads
        ]
        options = self._options
        dealt = packed(reads, end.tasks)
        max_bytes = min(options.max_bytes_per_shard, TASK_BYTES // len(dealt[0]))
        if options.max_bytes_per_trigger is not None:
            max_bytes = min(max_bytes, max(options.max_bytes_per_trigger // len(reads), 1))
        bounds = Bounds(max_bytes, options.max_records_per_shard, end.until_ms)
        return [
            RoundTask(
                each,
                stream=stream.name,
                query=end.query,
                number=end.planned,
                token=end.token,
                bounds=bounds,
            )
            for each in dealt
        ]

    async def committed(self, end: StreamOffset) -> None:
        """Forget the ends that no plan will be derived from any more. The last round's are kept."""
        old = [name for name in self._names if round_of(name) < end.planned]
        if not old:
            return
        self._names = [name for name in self._names if round_of(name) >= end.planned]
        store = await self._store()
        try:
            await patiently(lambda: store.forget(end.query, old))
        except LeaseStoreError as error:
            log.warning("%d rows of rounds that are over stay in the store: %s", len(old), error)

    async def _store(self) -> LeaseStore:
        assert self._options.store is not None
        return await self._access.store(self._options.store, self._options.aws)

    async def _shards_api(self) -> StreamShards:
        return StreamShards(await self._access.client(self._options.aws), self._options.stream)

    async def _list(self) -> None:
        self._infos = await (await self._shards_api()).list_shards()

    async def _describe(self, start: StreamOffset) -> StreamDescription:
        """Return what the stream is, and make sure that it is the one of the checkpoint."""
        if self._stream is None:
            self._stream = await (await self._shards_api()).describe()
        if start.round and start.stream != self._stream.stream:
            self._lost(
                f"the checkpoint is of the stream {start.stream} (name and creation time), and {self._options.stream} "
                f"is {self._stream.stream} now: it was deleted and created again, or option stream names another one"
            )
        return self._stream

    async def _settle(self, start: StreamOffset) -> None:
        """Find out where the round before an offset has ended."""
        await self._looks.clear()
        self._looks.barren.clear()
        stream = await self._describe(start)
        store = await self._store()
        self._unread = False
        if not start.round:
            await self._list()
            self._shards = initial(self._infos, self._options.starting, self._clock())
        elif start.stream != stream.stream:  # and failOnDataLoss is false
            await self._list()
            self._shards = initial(self._infos, Starting(), 0)
        else:
            ends = await self._ends(store, start)
            self._shards = start.after(ends)
            self._looks.barren |= {
                shard for shard, end in ends.items() if not end.rows and end.read_ms
            }
            self._looks.behind_ms |= {
                shard: end.behind_ms for shard, end in ends.items() if end.behind_ms is not None
            }
        await self._check_ages(stream)
        self._settled = start

    async def _take_over(self, end: StreamOffset) -> None:
        """Make sure that the store still has the round that an earlier driver planned."""
        store = await self._store()
        recorded = await patiently(lambda: store.recorded(end.query))
        name = round_name(end.planned)
        if recorded.get(name) != end.token:
            self._lost_store(end)
            await patiently(lambda: store.forget(end.query, [name]))
            await patiently(lambda: store.record_once(end.query, name, end.token))
        self._planned = end.round

    async def _ends(self, store: LeaseStore, start: StreamOffset) -> dict[str, End]:
        """Return where shards have ended in the last round; those that nobody has read end where they began."""
        recorded = await patiently(lambda: store.recorded(start.query))
        self._names = list(recorded)
        if recorded.get(round_name(start.planned)) != start.token:
            self._lost_store(start)
        ends = {}
        unread = 0
        for shard in start.reads:
            name = end_name(start.planned, shard)
            text = recorded.get(name)
            if text is None:
                own = start.nothing_read(shard).to_text()
                text = await patiently(lambda: store.record_once(start.query, name, own))  # noqa: B023 - awaited here
                unread += text == own
            ends[shard] = parse_end(text)
        self._unread = bool(unread) and unread == len(start.reads) and start.round == self._planned
        return ends

    def _lost_store(self, start: StreamOffset) -> None:
        what = (
            f"the store {self._options.store} does not have what it had of round {start.planned} of this query: it is "
            "another store, it was emptied or set back, or the checkpoint was"
        )
        if self._options.fail_on_data_loss:
            raise LeaseStoreError(
                f"{what}. Give the store back that the query had; or set the option failOnDataLoss to false once, and "
                "the records of its last batch come again"
            )
        log.warning("%s: the records of the last batch come again", what)

    async def _check_ages(self, stream: StreamDescription) -> None:
        """Find shards that were left alone for longer than records live."""
        oldest_ms = self._clock() - stream.retention_hours * _HOUR_MS
        for shard, (checkpoint, read_ms) in self._shards.active.items():
            if checkpoint.is_end or read_ms is None or read_ms >= oldest_ms:
                continue
            if checkpoint.is_sequence_number:
                client = await self._access.client(self._options.aws)
                if await still_there(client, self._options.stream, shard, checkpoint.position):
                    continue  # Kinesis is in no hurry to remove what may expire
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(read_ms / 1000))
            self._lost(
                f"{shard} was read up to {when}, and the stream keeps records for {stream.retention_hours} hours: "
                "some may have expired before they were read"
            )

    async def _look(self) -> list[str]:
        """Return the shards that have something; put away those that have nothing more to come."""
        while True:
            if not self._infos or any(
                place.checkpoint.is_end for place in self._shards.active.values()
            ):
                await self._list()
                self._drop_vanished()
                self._shards = advanced(self._shards, self._infos)
            found = await self._looks.look(self._shards.active, self._infos, self._until_ms)
            for shard in found.expired:
                self._lost(f"{shard} is gone before it was read")
            ended = dict.fromkeys(found.ended, Place(SHARD_END))
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
                self._lost(f"{shard} is gone before it was read to its end")
                gone = {**self._shards.active, shard: Place(SHARD_END)}
                self._shards = replace(self._shards, active=gone)

    def _ages(self, start: StreamOffset) -> bool:
        """Whether the checkpoint should be told anew that nothing came: it would take that for lost some day."""
        assert self._stream is not None
        known = [place.read_ms for place in start.shards.active.values() if place.read_ms]
        fresh = [place.read_ms for place in self._shards.active.values() if place.read_ms]
        limit_ms = self._stream.retention_hours * _HOUR_MS // 8
        return bool(known and fresh) and min(fresh) - min(known) > limit_ms

    async def _plan(self, start: StreamOffset, ready: list[str]) -> StreamOffset:
        assert self._stream is not None
        store = await self._store()
        token = uuid.uuid4().hex
        # One that was planned before a driver ended, and that nobody has read, keeps its token.
        token = await patiently(
            lambda: store.record_once(start.query, round_name(start.round), token)
        )
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self._planned = start.round + 1
        return StreamOffset(
            query=start.query,
            round=start.round + 1,
            stream=self._stream.stream,
            token=token,
            tasks=self._options.max_tasks or max(cores or 1, -(-len(ready) // SHARDS_OF_A_TASK)),
            until_ms=self._until_ms,
            reads=tuple(sorted(ready)),
            shards=self._shards,
        )

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(what)
        log.warning("%s", what)
