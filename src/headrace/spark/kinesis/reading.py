"""Read a shard's part of a round up to the end that the first reader of the part decides.

A task returns no row before the end is in the store. Until then the records are in memory, as Arrow columns, and
`maxBytesPerShard` bounds their size. A task that finds the end of another task cuts off later records, or reads on up
to that end. So every read of a round has the same rows, at any time and in any process, even if Spark consumes only
some of them.
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
"""Milliseconds after which a part with records ends. Later records belong to the next round."""

Agree = Callable[[End], Awaitable[str]]
"""Writes an end to the store unless the store has one; returns the end in the store."""


@dataclass(frozen=True)
class PartBounds:
    """The bounds of a part that no task has read yet."""

    max_bytes: int
    """The most bytes of data and partition keys. One record may exceed them."""
    max_records: int | None = None
    """The most records; None is no limit. An aggregated record may exceed it."""
    until_ms: int | None = None
    """Records that arrived later, in milliseconds since 1970, are left out; None is no limit."""


@dataclass
class ShardPart:
    """A shard's part of a round, while it is read."""

    shard: str
    """The name of the shard in messages."""
    start: Checkpoint
    bounds: PartBounds
    clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    batches: list[Any] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0
    first: str | None = None
    last: str | None = None
    read_ms: int | None = None
    """All records that arrived up to this time were read, in milliseconds since 1970; None if that is not known."""
    behind_ms: int | None = None
    ended: bool = False
    caught_up: bool = False
    fetched_ms: int = 0
    rest: Sequence[KinesisRecord] = ()
    """Records that were read after a bound. The end of another task may include them."""

    async def read(self, reader: Reader, agree: Agree, *, fail_on_data_loss: bool) -> list[Any]:
        """Read the part and return its Arrow batches.

        Raises:
            DataLossError: Records of the part are gone, and `fail_on_data_loss` is true.
        """
        started_ms = self.clock()
        own: End | None = None
        while own is None:
            fetched = await self._fetch(reader, lambda: self.bounds.max_bytes - self.size_bytes)
            if fetched.data_expired:
                lost(f"{self.shard} was removed before it was read", fail=fail_on_data_loss)
            kept = wanted(fetched.records, self.bounds, self.rows, self.size_bytes)
            self._add(kept)
            self.rest = fetched.records[len(kept) :]
            own = self._end(not self.rest, started_ms)
        end = parse_end(await agree(own))
        if end != own:
            await self._adopt_end(reader, end)
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

    def _end(self, whole: bool, started_ms: int) -> End | None:  # noqa: FBT001 - there is one caller
        """Return the end of the part if a bound is reached; None if the part goes on."""
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

    async def _adopt_end(self, reader: Reader, end: End) -> None:
        """Read on up to the end of another task, and cut off later records."""
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
                f"this round of {self.shard} had {end.rows} records, {end.first} to {end.last}, when it was first "
                f"read, and has {self.rows} now: records were removed in the meantime",
                fail=fail,
            )


def lost(what: str, *, fail: bool) -> None:
    """Report lost records: raise an error, or log a warning.

    Raises:
        DataLossError: `fail` is true.
    """
    if fail:
        raise DataLossError(what)
    log.warning("%s", what)


def is_caught_up(fetched: Fetched) -> bool:
    """Return whether there were no further records after those of the fetch."""
    return fetched.behind_ms == 0 or (fetched.behind_ms is None and not fetched.records)


def wanted(
    records: Sequence[KinesisRecord], bounds: PartBounds, rows: int, size_bytes: int
) -> Sequence[KinesisRecord]:
    """Return the leading records up to a bound. Records of one aggregated record stay together.

    Args:
        records: The fetched records.
        bounds: The bounds of the part.
        rows: The number of records that the part already has. The first record of a part is never too large.
        size_bytes: The size of these records.
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
