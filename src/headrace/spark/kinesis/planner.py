"""The driver's part of a streaming read: plan the next round if there are new records.

The planner probes each shard with a read of one record. It plans a round if a shard has new records, and the round
reads only such shards. So batches are not empty, and a run with `availableNow` ends when every shard is read up to the
time at which the run started.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from typing import Final

from headrace.errors import LeaseStoreError
from headrace.kinesis.leases.store import LeaseStore
from headrace.spark.kinesis.connections import Connections, patiently
from headrace.spark.kinesis.followed import FollowedStream
from headrace.spark.kinesis.offsets import (
    End,
    StreamOffset,
    StreamPart,
    parse_end,
    round_name,
    round_of,
)
from headrace.spark.kinesis.options import ReadOptions, Starting
from headrace.spark.kinesis.reading import PartBounds, lost
from headrace.spark.kinesis.tasks import TASK_BYTES, RoundTask, ShardRead, packed, task_count

log = logging.getLogger(__name__)

PROBES_AT_ONCE: Final = 64


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class RoundPlanner:
    """Plans the rounds of one query, in the driver's process."""

    def __init__(
        self, options: ReadOptions, connections: Connections, clock: Callable[[], int] = _now_ms
    ) -> None:
        """Take options and connections. No request is sent yet."""
        self._options = options
        self._connections = connections
        self._clock = clock
        self._until_ms: int | None = None
        self._initial = StreamOffset(uuid.uuid4().hex)
        followed = [FollowedStream(each, options, connections, clock) for each in options.streams]
        self._followed = {each.name: each for each in followed}
        self._continued_after: StreamOffset | None = None
        self._probed_ms: int | None = None
        self._planned = 0  # the last round that this driver has planned or taken over
        self._unread = False
        self._names: list[str] = []

    def initial(self) -> StreamOffset:
        """Return the offset before the first round.

        The first batch does not wait for records: it stores the starting positions in the checkpoint.
        """
        return self._initial

    def set_target(self) -> None:
        """Leave records that arrive from now on for a later run."""
        self._until_ms = self._clock()

    @property
    def behind_ms(self) -> dict[str, dict[str, int]]:
        """Milliseconds by which the shards of each stream were behind their newest records when last read or probed."""
        return {name: each.behind_ms for name, each in self._followed.items()}

    async def latest(self, start: StreamOffset) -> StreamOffset:
        """Return the offset after the next round; `start` if there are no new records.

        Raises:
            DataLossError: Records are gone before they were read, and `failOnDataLoss` is true.
            LeaseStoreError: The store does not answer, or has lost the last round.
            KinesisError: The stream cannot be read.
        """
        if self._continued_after != start:
            await self._continue_after(start)
        elif self._probed_ms is not None:
            waited_ms = self._clock() - self._probed_ms
            if waited_ms < self._options.reading.poll_ms:
                return start
        if self._unread and self._until_ms is not None:
            log.warning(
                "no task has read any part of round %d: this run ends, and a later run reads the round",
                start.planned,
            )
            return start
        ready = await self._probe()
        self._probed_ms = self._clock()
        if any(ready.values()) or await self._needs_checkpoint(start):
            return await self._plan(start, ready)
        return start

    async def tasks(self, end: StreamOffset) -> list[RoundTask]:
        """Return the tasks of the planned round of an offset, the same tasks at every call."""
        reads = [
            ShardRead(
                each.stream,
                shard,
                part.shards.active[shard].checkpoint,
                (await each.hash_ranges()).get(shard),
                end.end_name(part, shard),
            )
            for each, part in await self._known(end)
            for shard in part.reads
        ]
        if not reads:
            return []
        if end.round != self._planned:
            await self._take_over(end)
        options = self._options
        dealt = packed(reads, end.tasks)
        max_bytes = min(options.max_bytes_per_shard, TASK_BYTES // len(dealt[0]))
        if options.max_bytes_per_trigger is not None:
            max_bytes = min(max_bytes, max(options.max_bytes_per_trigger // len(reads), 1))
        bounds = PartBounds(max_bytes, options.max_records_per_shard, end.until_ms)
        return [
            RoundTask(each, query=end.query, number=end.planned, token=end.token, bounds=bounds)
            for each in dealt
        ]

    async def committed(self, end: StreamOffset) -> None:
        """Delete the ends of all rounds before the last one from the store. They are not needed any more."""
        old = [name for name in self._names if round_of(name) < end.planned]
        if not old:
            return
        self._names = [name for name in self._names if round_of(name) >= end.planned]
        store = await self._store()
        try:
            await patiently(lambda: store.forget(end.query, old))
        except LeaseStoreError as error:
            log.warning("%d rows of finished rounds remain in the store: %s", len(old), error)

    async def _store(self) -> LeaseStore:
        assert self._options.store is not None
        return await self._connections.store(self._options.store, self._options.aws)

    async def _known(self, offset: StreamOffset) -> list[tuple[FollowedStream, StreamPart]]:
        """Return the streams of an offset that still exist and that the options name.

        Raises:
            DataLossError: A stream does not exist or is not named any more, and `failOnDataLoss` is true.
        """
        known = []
        for name, part in offset.parts.items():
            each = self._followed.get(name)
            if each is None:
                lost(
                    f"the checkpoint has a position of stream {name}, which the option stream does not name any more",
                    fail=self._options.fail_on_data_loss,
                )
            elif await each.is_stream_of(part):
                known.append((each, part))
        return known

    async def _continue_after(self, start: StreamOffset) -> None:
        """Continue after the planned round of an offset: read the ends of its parts from the store."""
        known = await self._known(start)
        store = await self._store()
        self._unread = False
        ends = await self._ends(store, start, known) if known else {}
        for each, part in known:
            await each.continue_after(part, ends[each.name])
        for name, each in self._followed.items():
            if name not in start.parts:
                await each.begin(self._options.streams[each.stream])
            elif name not in ends:  # the stream was created again, and failOnDataLoss is false
                await each.begin(Starting())
        self._continued_after = start

    async def _take_over(self, end: StreamOffset) -> None:
        """Check that the store still has the round that an earlier driver planned."""
        store = await self._store()
        recorded = await patiently(lambda: store.recorded(end.query))
        name = round_name(end.planned)
        if recorded.get(name) != end.token:
            self._lost_store(end)
            await patiently(lambda: store.forget(end.query, [name]))
            await patiently(lambda: store.record_once(end.query, name, end.token))
        self._planned = end.round

    async def _ends(
        self, store: LeaseStore, start: StreamOffset, known: list[tuple[FollowedStream, StreamPart]]
    ) -> dict[str, dict[str, End]]:
        """Return the ends of the last round. A shard that no task has read ends at its start."""
        recorded = await patiently(lambda: store.recorded(start.query))
        self._names = list(recorded)
        if recorded.get(round_name(start.planned)) != start.token:
            self._lost_store(start)
        ends: dict[str, dict[str, End]] = {each.name: {} for each, _ in known}
        reads = [(part, shard) for _, part in known for shard in part.reads]
        unread = 0
        for part, shard in reads:
            name = start.end_name(part, shard)
            text = recorded.get(name)
            if text is None:
                own = part.nothing_read(shard).to_text()
                text = await patiently(lambda: store.record_once(start.query, name, own))  # noqa: B023 - awaited here
                unread += text == own
            ends[part.name][shard] = parse_end(text)
        self._unread = bool(unread) and unread == len(reads) and start.round == self._planned
        return ends

    def _lost_store(self, start: StreamOffset) -> None:
        what = (
            f"the store {self._options.store} does not have round {start.planned} of this query: it is another store, "
            "or the store or the checkpoint was emptied or set back"
        )
        if self._options.fail_on_data_loss:
            raise LeaseStoreError(
                f"{what}. Use the store that the query had. Or set the option failOnDataLoss to false once, and the "
                "records of the last batch are read again"
            )
        log.warning("%s: the records of the last batch are read again", what)

    async def _probe(self) -> dict[str, list[str]]:
        """Return the shards of each stream that have new records."""
        limit = asyncio.Semaphore(PROBES_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            probes = {
                name: group.create_task(each.probe(self._until_ms, limit))
                for name, each in self._followed.items()
            }
        return {name: probe.result() for name, probe in probes.items()}

    async def _needs_checkpoint(self, start: StreamOffset) -> bool:
        """Return whether a checkpoint is due although there are no new records."""
        if start.parts.keys() != self._followed.keys():
            return True
        return any(
            [
                await each.needs_checkpoint(start.parts[name])
                for name, each in self._followed.items()
            ]
        )

    async def _plan(self, start: StreamOffset, ready: dict[str, list[str]]) -> StreamOffset:
        store = await self._store()
        token = uuid.uuid4().hex
        # A round that an earlier driver planned, and that no task has read, keeps its token.
        token = await patiently(
            lambda: store.record_once(start.query, round_name(start.round), token)
        )
        count = sum(map(len, ready.values()))
        self._planned = start.round + 1
        return StreamOffset(
            query=start.query,
            round=start.round + 1,
            token=token,
            tasks=task_count(count, self._options.max_tasks),
            until_ms=self._until_ms,
            parts={name: await each.part(ready[name]) for name, each in self._followed.items()},
        )
