"""Reading only some records: those that have not expired, and those with the tags that a reader wants.

What has nothing to leave out is answered as ranges of the segment files, like any other read. Else batches are looked
into, and those that lose records are written anew for this answer: offsets stay, as after compaction. Control batches
always stay. What is left out at the end of an answer is covered by a placeholder (`headrace.records.rewriting`), so
that every reader comes past it.

Blocks whose records have all expired are passed over unread. How much one request reads and inflates besides is bounded
by the `effort` of its `SelectiveReading`, of which each log has a share; what one leaves is for those that follow. When
a share is used up the answer ends there, and the next request goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.core.log.config import LogConfig
from headrace.core.log.reading.readable_log import ReadableLog
from headrace.core.log.segments.segment import Segment
from headrace.errors import CorruptRecordError
from headrace.records.batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    BatchHeader,
    iterate_headers,
)
from headrace.records.compression import FAST, OutputTooLargeError
from headrace.records.expiry import NOTHING_EXPIRES, Expiry, expiries, expiry_of_batch
from headrace.records.raw import records_of
from headrace.records.refusal import LOOK_BYTES, MAX_DIRECTED
from headrace.records.rewriting import placeholder, with_records
from headrace.records.tags import TagFilter
from headrace.types import FileRange, Payload

EFFORT_BYTES: Final = 4 << 20
"""How much one request looks into, as bytes of decompressed records, and one batch: some ten milliseconds each."""
MOST_RECORDS: Final = 1 << 16
"""Of how many records a batch is searched for tags; a larger one is sent whole."""
_RECORD_COST: Final = 64
"""What it costs to find a record, in bytes that are decompressed; one that has more bytes costs these."""
_EXPIRY_COST: Final = 500
"""What it costs to find out when a record expires, in bytes that are decompressed: two microseconds."""
_HEADER_COST: Final = 128
"""What it costs to look at a header, in bytes that are decompressed."""
_COMPRESSION_COST: Final = 4
"""What it costs to compress a byte, in bytes that are decompressed."""
_MOST_COMPRESSED: Final = 1 << 20
"""How many bytes of records are compressed again for an answer; more are sent as they are."""
_WORTH_SENDING: Final = 64 << 10
"""A range without expired records is answered by itself from this size on, to be sent from its file."""


class Selected(NamedTuple):
    """What a reader gets: batches from `start_offset` on, and the offset behind them (-1 of a range of a file)."""

    records: Payload
    start_offset: int
    end_offset: int


class SelectiveReading:
    """What a request wants of the logs that it names, and how much it may still look into."""

    __slots__ = ("effort", "now_ms", "tags")

    def __init__(
        self, now_ms: int, tags: TagFilter | None = None, effort: int = EFFORT_BYTES
    ) -> None:
        """Prepare to read.

        Args:
            now_ms: The time; what expires at it has expired.
            tags: The tags that are wanted; None for all records.
            effort: How many bytes of decompressed records may be looked into; a batch is looked into as a whole.
        """
        self.now_ms = now_ms
        self.tags = tags
        self.effort = effort

    def concerns(self, config: LogConfig) -> bool:
        """Whether records of a log may have to be left out."""
        return config.expires or (config.filters and self.tags is not None)

    def select(
        self,
        log: ReadableLog,
        offset: int,
        *,
        max_bytes: int,
        up_to: int,
        minimum_one: bool,
        among: int = 1,
    ) -> Selected | None:
        """Return what there is from an offset on, None when there is nothing; see `ReadableLog.read`.

        Args:
            log: The log.
            offset: Where to begin.
            max_bytes: As for `ReadableLog.read`, like the next two.
            up_to: The offset at which to end.
            minimum_one: Whether a batch may be larger than that.
            among: How many logs, this one first, are to share in the effort that is left.

        Raises:
            OffsetOutOfRangeError: `offset` lies before the log start or after the log end.
        """
        share = -(-self.effort // among)
        read = _Read(self, log, max(0, self.effort - share))
        return read.run(offset, max_bytes=max_bytes, up_to=up_to, minimum_one=minimum_one)


class _Read:
    """One read of one log."""

    def __init__(self, reading: SelectiveReading, log: ReadableLog, reserved: int) -> None:
        self._reading = reading
        self._reserved = reserved
        """What is to be left of the effort for others."""
        self._log = log
        self._expires = log.config.expires
        self._now_ms = reading.now_ms
        self._tags = reading.tags if log.config.filters else None
        self._parts: list[bytes | bytearray | memoryview] = []
        self._size = 0
        self._end_offset = 0
        """Behind the last batch of the answer."""
        self._expiry: Expiry | None = None
        """When the records of the batch expire that was looked into last; None if that was not found out."""

    def run(self, offset: int, *, max_bytes: int, up_to: int, minimum_one: bool) -> Selected | None:
        start = position = offset
        while position == offset or (self._effort > 0 and not self._is_enough(max_bytes)):
            found = self._log.read(
                position,
                max_bytes=max_bytes - self._size,
                up_to=up_to,
                minimum_one=minimum_one and not self._size,
            )
            if found is None:
                break
            segment = self._segment_of(found, position)
            if self._expires and not self._parts:
                # Not behind a batch of this answer: markers are passed over, too, and it may be of a transaction.
                passed = self._pass_expired(segment, found.position, up_to)
                if passed is not None:
                    start = position = passed
                    continue
                whole = self._unexpired_start(segment, found)
                if whole is not None:
                    return Selected(whole, start, -1)
            if self._effort <= 0:
                break
            position = self._look_into(segment, found)
        if position == offset:
            return None
        if self._end_offset < position:
            epoch = self._log.epoch_at(position - 1)
            first = max(offset, self._end_offset)
            rest = placeholder(first, position, leader_epoch=epoch, now_ms=self._now_ms)
            self._add(rest, position)
        return Selected(b"".join(self._parts), start, position)

    @property
    def _effort(self) -> int:
        return self._reading.effort - self._reserved

    def _is_enough(self, max_bytes: int) -> bool:
        # A reader of everything that has not expired gets what there is; one of rare tags wants more than a few.
        return self._size >= max_bytes >> 1 or (self._size > 0 and self._tags is None)

    def _segment_of(self, found: FileRange, offset: int) -> Segment:
        for segment in self._log.segments.since(offset):
            if segment.file is found.file:
                return segment
        raise AssertionError("a range lies in a segment that is open")

    def _pass_expired(self, segment: Segment, position: int, up_to: int) -> int | None:
        """Return the offset behind what has expired as a whole, None if the first block has not."""
        end = segment.expiries.index(segment.size).end_of_expired(position, self._now_ms)
        if end == position:
            return None
        if end >= segment.size:
            return min(segment.end_offset, up_to)
        return min(segment.header_at(end).base_offset, up_to)

    def _unexpired_start(self, segment: Segment, found: FileRange) -> FileRange | None:
        """Return the beginning of a range in which nothing has expired, if it is large enough; None if it is not."""
        if self._tags is not None:
            return None
        end = found.position + found.size
        first = segment.expiries.index(segment.size).first_expired(
            found.position, end, self._now_ms
        )
        if first is None:
            return found
        size = first - found.position
        return FileRange(found.file, found.position, size) if size >= _WORTH_SENDING else None

    def _look_into(self, segment: Segment, found: FileRange) -> int:
        """Add what stays of a range's batches to the answer; return the offset behind the last that was looked into."""
        first = BatchHeader.parse(b"".join(found.file.buffers(found.position, HEADER_SIZE)))
        size = min(found.size, max(first.size, self._effort))
        data = memoryview(FileRange(found.file, found.position, size).read())
        offset = 0
        for at, header in iterate_headers(data):
            batch, position = data[at : at + header.size], found.position + at
            kept: memoryview | bytearray | None = batch
            if self._tags is not None or self._may_have_expired(segment, position, header):
                self._expiry = None
                kept = self._what_stays(header, batch)
                self._learn(segment, position, header, batch)
            offset = header.next_offset
            if kept is not None:
                self._add(kept, offset)
            if self._effort <= 0:
                break
        return offset

    def _may_have_expired(self, segment: Segment, position: int, header: BatchHeader) -> bool:
        end = position + header.size
        return (
            segment.expiries.index(segment.size).first_expired(position, end, self._now_ms)
            is not None
        )

    def _what_stays(self, header: BatchHeader, batch: memoryview) -> memoryview | bytearray | None:
        reading = self._reading
        reading.effort -= header.size
        if header.is_control or header.records_count > MOST_RECORDS:
            return batch  # so many are not looked into: readers of tags look themselves
        if not header.records_count:
            return None
        try:
            data = self._decompressed(header, batch)
            if data is None:
                return batch
            stays = self._selection(header, data)
            if stays is not None:
                self._reading.effort -= max(
                    0, _RECORD_COST * len(stays) - max(header.size, len(data))
                )
            if stays is None or not any(stays):
                return None
            return batch if all(stays) else self._rebuilt(header, data, stays)
        except CorruptRecordError:
            return batch  # the producer's doing: the reader is to see it

    def _decompressed(self, header: BatchHeader, batch: memoryview) -> bytes | None:
        """Return the records of a batch, None if they are too large to be looked into."""
        reading = self._reading
        try:
            data = records_of(header, batch, LOOK_BYTES)
        except OutputTooLargeError:
            reading.effort -= LOOK_BYTES
            return None
        reading.effort -= max(0, len(data) - header.size)
        if self._tags is not None:
            reading.effort -= _HEADER_COST * self._tags.headers_to_look_at(data)
        return data

    def _rebuilt(self, header: BatchHeader, data: bytes, stays: Sequence[bool]) -> bytearray:
        """Return a batch with what stays, compressed quickly or, where that would take long, not at all."""
        newest = header.max_timestamp
        if header.compression:
            if len(data) > _MOST_COMPRESSED:
                header = header._replace(attributes=header.attributes & ~COMPRESSION_MASK)
            else:
                self._reading.effort -= _COMPRESSION_COST * len(data)
        return with_records(header, data, stays, max_timestamp=newest, level=FAST)

    def _selection(self, header: BatchHeader, data: bytes) -> Sequence[bool] | None:
        wanted = None if self._tags is None else self._tags.select(header, data)
        if wanted is None and self._tags is not None:
            return None
        times = expiries(header, data, MAX_DIRECTED) if self._expires else None
        self._expiry = NOTHING_EXPIRES
        if times is None:
            return wanted if wanted is not None else (True,)
        self._expiry = Expiry(min(times), max(times))
        self._reading.effort -= max(0, _EXPIRY_COST * len(times) - max(header.size, len(data)))
        now_ms = self._now_ms
        unexpired = [time > now_ms for time in times]
        if wanted is None:
            return unexpired
        return [both == (True, True) for both in zip(wanted, unexpired, strict=True)]

    def _learn(
        self, segment: Segment, position: int, header: BatchHeader, batch: memoryview
    ) -> None:
        """Note when the records of a batch expire if nobody did: the broker was killed, or the option was off."""
        if not self._expires or position != segment.expiries.index(segment.size).end:
            return
        expiry = self._expiry
        if expiry is None:
            expiry = expiry_of_batch(header, batch)
        segment.expiries.index(segment.size).note(position, position + header.size, expiry)
        if position + header.size == segment.size:
            segment.expiries.write()

    def _add(self, batch: bytes | bytearray | memoryview, end_offset: int) -> None:
        self._parts.append(batch)
        self._size += len(batch)
        self._end_offset = end_offset
