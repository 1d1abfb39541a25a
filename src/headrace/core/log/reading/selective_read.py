"""Reads that leave records out: expired records, and records without the tags that a reader asks for.

A range of a segment file from which nothing has to be left out is returned as it is, like any other read. Otherwise the
batches are decoded, and batches that lose records are rewritten for this response. Their offsets stay, as after
compaction. Control batches always stay. If records are left out at the end of the response, a placeholder batch
(`headrace.records.rewriting`) covers their offsets, so that every reader advances.

Blocks whose records have all expired are skipped without being read. What else one request may read and decompress is
bounded by the `effort` of its `SelectiveReading`. Each log has a share of the effort, and the logs after it share what
it leaves. When a share is used up, the response ends there, and the next request continues.
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
"""The effort of one request in bytes of decompressed records, plus one batch: some ten milliseconds each."""
MOST_RECORDS: Final = 1 << 16
"""The largest number of records in a batch that is searched for tags. A larger batch is returned whole."""
_RECORD_COST: Final = 64
"""The effort of finding a record, in bytes of decompressed records. A record with more bytes counts with its bytes."""
_EXPIRY_COST: Final = 500
"""The effort of finding out when a record expires (two microseconds), in bytes of decompressed records."""
_HEADER_COST: Final = 128
"""The effort of reading one record header, in bytes of decompressed records."""
_COMPRESSION_COST: Final = 4
"""The effort of compressing one byte, in bytes of decompressed records."""
_MOST_COMPRESSED: Final = 1 << 20
"""The largest size of records, in bytes, that are compressed again for a response. More are returned uncompressed."""
_WORTH_SENDING: Final = 64 << 10
"""The least size, in bytes, of a range without expired records that is returned by itself, to be sent from its file."""


class Selected(NamedTuple):
    """The result of a read: batches from `start_offset` on.

    `end_offset` is the offset after the batches, -1 if they are a range of a file.
    """

    records: Payload
    start_offset: int
    end_offset: int


class SelectiveReading:
    """The records that one request wants of its logs, and the effort that it has left."""

    __slots__ = ("effort", "now_ms", "tags")

    def __init__(
        self, now_ms: int, tags: TagFilter | None = None, effort: int = EFFORT_BYTES
    ) -> None:
        """Prepare to read.

        Args:
            now_ms: The time. Records that expire at this time have expired.
            tags: The tags that are wanted; None for all records.
            effort: How many bytes of decompressed records may be looked at. A batch is always looked at as a whole.
        """
        self.now_ms = now_ms
        self.tags = tags
        self.effort = effort

    def concerns(self, config: LogConfig) -> bool:
        """Return whether records of a log may have to be left out."""
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
        """Return the records from an offset on, None when there are none; see `ReadableLog.read`.

        Args:
            log: The log.
            offset: The first offset wanted.
            max_bytes: As for `ReadableLog.read`.
            up_to: The offset at which to end.
            minimum_one: Whether to return the first batch even if it alone is larger than `max_bytes`.
            among: The number of logs that share the effort that is left, this one included.

        Raises:
            OffsetOutOfRangeError: `offset` lies before the log start offset or after the log end offset.
        """
        share = -(-self.effort // among)
        read = _Read(self, log, max(0, self.effort - share))
        return read.run(offset, max_bytes=max_bytes, up_to=up_to, minimum_one=minimum_one)


class _Read:
    """One read of one log."""

    def __init__(self, reading: SelectiveReading, log: ReadableLog, reserved: int) -> None:
        self._reading = reading
        self._reserved = reserved
        """The effort that has to be left for other logs."""
        self._log = log
        self._expires = log.config.expires
        self._now_ms = reading.now_ms
        self._tags = reading.tags if log.config.filters else None
        self._parts: list[bytes | bytearray | memoryview] = []
        self._size = 0
        self._end_offset = 0
        """The offset after the last batch of the response."""
        self._expiry: Expiry | None = None
        """The expiry times of the records of the last decoded batch; None if they were not computed."""

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
                # Not after a batch of this response: the batch may belong to a transaction, whose marker would be
                # skipped.
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
        # A reader of all unexpired records gets what there is. A reader of rare tags waits for more than a few records.
        return self._size >= max_bytes >> 1 or (self._size > 0 and self._tags is None)

    def _segment_of(self, found: FileRange, offset: int) -> Segment:
        for segment in self._log.segments.since(offset):
            if segment.file is found.file:
                return segment
        raise AssertionError("a range lies in a segment that is open")

    def _pass_expired(self, segment: Segment, position: int, up_to: int) -> int | None:
        """Return the offset after the blocks that have expired as a whole, None if the first block has not."""
        end = segment.expiries.index(segment.size).end_of_expired(position, self._now_ms)
        if end == position:
            return None
        if end >= segment.size:
            return min(segment.end_offset, up_to)
        return min(segment.header_at(end).base_offset, up_to)

    def _unexpired_start(self, segment: Segment, found: FileRange) -> FileRange | None:
        """Return the beginning of a range in which nothing has expired, None if it is too small."""
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
        """Add the remaining records of a range to the response, and return the offset after the last decoded batch."""
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
            return batch  # too many records to look at: readers filter by tags themselves
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
            return batch  # the producer's fault: the reader gets the batch as it is

    def _decompressed(self, header: BatchHeader, batch: memoryview) -> bytes | None:
        """Return the records of a batch, None if they are too large to be decompressed."""
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
        """Return a batch with the remaining records, compressed fast, or not at all where that would take long."""
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
        """Note when the records of a batch expire if that is unknown: the broker was killed, or the setting was off."""
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
