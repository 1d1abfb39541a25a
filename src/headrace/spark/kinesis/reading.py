"""A shard's part of a round: read to where its first reader has put the end.

Nobody gets a row before the end is in the store. What a task has read until then waits in memory, as Arrow columns; a
part has bounds for that (`maxBytesPerShard`). A task that finds another's end cuts off what lies behind it, or reads on
to it. So every read of a round has the same rows, however late, wherever and however often it is done, and also if
somebody takes only some of them.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any, Final

from headrace.core.lease.checkpoint import SHARD_END, Checkpoint
from headrace.kinesis.reading.reader import Fetched, Reader
from headrace.kinesis.reading.records import KinesisRecord
from headrace.spark.kinesis.columns import raw_batch
from headrace.spark.kinesis.offsets import End, parse_end
from headrace.spark.source.offsets import DataLossError

log = logging.getLogger(__name__)

ROUND_MS: Final = 60_000
"""For so long a part is read that has records already; what is left is for the next round."""

Agree = Callable[[End], Awaitable[str]]
"""Writes an end to the store unless there is one; returns the one that is there."""


@dataclass(frozen=True)
class Bounds:
    """Where a part ends that nobody has read yet."""

    max_bytes: int
    max_records: int | None = None
    until_ms: int | None = None
    """Records that arrived later are not wanted."""


@dataclass
class ShardPart:
    """A shard's part of a round, while it is read."""

    shard: str
    """As errors are to name it."""
    start: Checkpoint
    bounds: Bounds
    clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    batches: list[Any] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0
    first: str | None = None
    last: str | None = None
    read_ms: int | None = None
    """All that arrived up to this time was read, as far as it is known."""
    behind_ms: int | None = None
    ended: bool = False
    caught_up: bool = False
    fetched_ms: int = 0
    rest: Sequence[KinesisRecord] = ()
    """What was read and lies behind a bound: another's end may be behind it, too."""

    async def read(self, reader: Reader, agree: Agree, *, fail_on_data_loss: bool) -> list[Any]:
        """Return the Arrow batches of the part.

        Raises:
            DataLossError: Records of it are gone, and `fail_on_data_loss` is true.
        """
        started_ms = self.clock()
        own: End | None = None
        while own is None:
            fetched = await self._fetch(reader, lambda: self.bounds.max_bytes - self.size_bytes)
            if fetched.data_expired:
                lost(f"{self.shard} is gone before it was read", fail=fail_on_data_loss)
            kept = wanted(fetched.records, self.bounds, self.rows, self.size_bytes)
            self._add(kept)
            self.rest = fetched.records[len(kept) :]
            own = self._end(not self.rest, started_ms)
        end = parse_end(await agree(own))
        if end != own:
            await self._settle(reader, end)
            self._check(end, fail=fail_on_data_loss)
        return self.batches

    async def _fetch(self, reader: Reader, room: Callable[[], int]) -> Fetched:
        self.fetched_ms = self.clock()
        fetched = await reader.fetch(room)
        self.behind_ms, self.ended = fetched.behind_ms, fetched.ended
        self.caught_up = is_caught_up(fetched)
        return fetched

    def _add(self, records: Sequence[KinesisRecord]) -> None:
        if not records:
            return
        self.batches.append(raw_batch(records))
        self.rows += len(records)
        self.size_bytes += sum(map(_size, records))
        self.first = self.first or records[0].sequence_number
        self.last = records[-1].sequence_number
        self.read_ms = records[-1].timestamp_ms

    def _end(self, whole: bool, started_ms: int) -> End | None:  # noqa: FBT001 - told by one caller
        """Return where the part ends, or None if it goes on."""
        full = self.size_bytes >= self.bounds.max_bytes or not whole
        late = bool(self.rows) and self.clock() - started_ms > ROUND_MS
        if not (full or late or self.caught_up or self.ended):
            return None
        position = self.last or self.start.position
        if whole and self.ended:
            position = SHARD_END.position
        if whole and self.caught_up:
            self.read_ms = self.fetched_ms
        return End(
            position=position,
            rows=self.rows,
            first=self.first,
            last=self.last,
            read_ms=self.read_ms,
            behind_ms=self.behind_ms,
        )

    async def _settle(self, reader: Reader, end: End) -> None:
        """Read on to another's end, and cut off what lies behind it."""
        if end.last is None:
            self.batches, self.rows, self.last = [], 0, None
            return
        wanted_last = int(end.last)
        self._add(self.rest)
        while (self.last is None or int(self.last) < wanted_last) and not self.ended:
            fetched = await self._fetch(reader, lambda: self.bounds.max_bytes)
            self._add(fetched.records)
            if self.caught_up:
                break
        cut: list[Any] = []
        for batch in self.batches:
            numbers = batch.column("sequenceNumber")
            if int(numbers[-1].as_py()) <= wanted_last:
                cut.append(batch)
                continue
            rows = bisect_right([int(each) for each in numbers.to_pylist()], wanted_last)
            cut.append(batch.slice(0, rows))
            break
        self.batches = [batch for batch in cut if batch.num_rows]
        self.rows = sum(batch.num_rows for batch in self.batches)
        self.last = self.batches[-1].column("sequenceNumber")[-1].as_py() if self.batches else None

    def _check(self, end: End, *, fail: bool) -> None:
        first = self.first if self.batches else None
        if (self.rows, first, self.last) != (end.rows, end.first, end.last):
            lost(
                f"this round of {self.shard} had {end.rows} records, {end.first} to {end.last}, when first read, "
                f"and has {self.rows} now: some were removed since",
                fail=fail,
            )


def lost(what: str, *, fail: bool) -> None:
    """Say that records are gone.

    Raises:
        DataLossError: It is a failure.
    """
    if fail:
        raise DataLossError(what)
    log.warning("%s", what)


def is_caught_up(fetched: Fetched) -> bool:
    """Whether nothing was left behind what a fetch brought."""
    return fetched.behind_ms == 0 or (fetched.behind_ms is None and not fetched.records)


def wanted(
    records: Sequence[KinesisRecord], bounds: Bounds, rows: int, size_bytes: int
) -> Sequence[KinesisRecord]:
    """Return the first of the records, up to a bound; those that were one stored record stay together.

    Args:
        records: What a fetch brought.
        bounds: Of the part.
        rows: How many the part has already; the first record of a part is never too large.
        size_bytes: How large these are.
    """
    until_ms = bounds.until_ms
    end = len(records)
    if until_ms is not None:
        end = next((i for i, each in enumerate(records) if each.timestamp_ms > until_ms), end)
    room = end
    if bounds.max_records is not None:
        room = min(room, bounds.max_records - rows)
    sizes = accumulate(map(_size, records[:end]), initial=size_bytes)
    room = min(room, sum(size <= bounds.max_bytes for size in islice(sizes, 1, None)))
    if room == end or (room <= 0 and rows):
        return records[: max(room, 0)]
    room = max(room, 1) if end else 0
    while 0 < room < end and not records[room - 1].is_last_sub:
        room += 1
    return records[:room]


def _size(record: KinesisRecord) -> int:
    return len(record.data) + len(record.partition_key)
