"""From raw record batches to Arrow: one walk over a batch's records, one conversion per column.

The walk collects plain columns (lists of bytes and integers) and hands each to Arrow at once, which also lets small
batches share one Arrow batch. Row tuples take more than twice the time; collecting offsets only and gathering with
Arrow's `take` pays for values of a kilobyte and more alone (`benchmarks/micro/arrow.py` has all three).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.errors import CorruptRecordError
from headrace.records.batch import (
    HEADER_SIZE,
    MAGIC,
    BatchHeader,
    TimestampType,
    batch_crc,
    iterate_headers,
)
from headrace.records.compression import Compression, decompress
from headrace.records.varint import MAX_VARLONG_SIZE, decode_varint
from headrace.spark.source.schema import HEADER_TYPE, HEADERS_TYPE, topic_schema
from headrace.types import Buffer, TopicPartition

DEFAULT_MAX_ROWS: Final = 10_000
DEFAULT_MAX_BYTES: Final = 16 << 20

_CODECS: Final = {int(codec): codec for codec in Compression}
_CONTROL_KEY_ABORT: Final = 0
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


class _Columns:
    """Rows gathered for the next Arrow batch, column by column."""

    __slots__ = ("header_counts", "headers", "keys", "offsets", "timestamps", "types", "values")

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.types: list[int] = []
        self.headers: list[tuple[str, bytes | None]] = []
        self.header_counts: list[int] = []

    def __len__(self) -> int:
        return len(self.offsets)

    def trim(self, mark: int, start: int, end: int) -> None:
        """Of the rows from index `mark` on, keep those with offsets from `start` to below `end`."""
        low = bisect_left(self.offsets, start, mark)
        high = bisect_left(self.offsets, end, low)
        first_header = sum(self.header_counts[:mark])
        kept_from = first_header + sum(self.header_counts[mark:low])
        del self.headers[sum(self.header_counts[:high]) :]
        del self.headers[first_header:kept_from]
        for column in (self.keys, self.values, self.offsets, self.timestamps, self.header_counts):
            del column[high:]
            del column[mark:low]


class RangeDecoder:
    """Decodes what fetches return for one range of a partition into Arrow batches of bounded size.

    `position` is the offset to fetch from next: it moves past control batches, aborted transactions and the holes
    that compaction leaves, too.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        start: int,
        end: int,
        *,
        include_headers: bool = False,
        max_rows: int = DEFAULT_MAX_ROWS,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self.position = start
        self.end = end
        self._topic_partition = topic_partition
        self._include_headers = include_headers
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._schema = topic_schema(include_headers=include_headers)
        self._columns = _Columns()
        self._bytes = 0
        self._aborting: set[int] = set()

    def feed(
        self, records: Buffer, aborted_transactions: Sequence[tuple[int, int]] = ()
    ) -> Iterator[Any]:
        """Take over the batches of one fetch response and yield the Arrow batches that became full.

        Args:
            records: Whole batches; an incomplete one at the end is left for the next fetch.
            aborted_transactions: (producer id, first offset) to leave out, under read_committed.

        Raises:
            CorruptRecordError: A batch does not decode.
        """
        aborted = sorted(aborted_transactions, key=lambda transaction: transaction[1])
        self._aborting.clear()
        for byte, header in iterate_headers(records):
            if self.position >= self.end:
                return
            if header.magic != MAGIC or batch_crc(records, byte, header.size) != header.crc:
                raise CorruptRecordError(
                    f"the batch at offset {header.base_offset} has a wrong CRC or format"
                )
            while aborted and aborted[0][1] <= header.last_offset:
                self._aborting.add(aborted.pop(0)[0])
            if header.last_offset < self.position:
                continue
            if header.is_control:
                self._end_transaction(records, byte, header)
            elif not (header.is_transactional and header.producer_id in self._aborting):
                yield from self._decode(records, byte, header)
            self.position = max(self.position, min(header.next_offset, self.end))

    def finish(self) -> Iterator[Any]:
        """Yield what is left."""
        if self._columns:
            yield self._take()

    def _end_transaction(self, records: Buffer, byte: int, header: BatchHeader) -> None:
        """An abort marker ends its producer's aborted transaction; what follows is another one."""
        if header.producer_id in self._aborting:
            columns = _Columns()
            walk(_section(records, byte, header), 0, 1, header, columns)
            key = columns.keys[0]
            if key is not None and int.from_bytes(key[2:4], "big") == _CONTROL_KEY_ABORT:
                self._aborting.discard(header.producer_id)

    def _decode(self, records: Buffer, byte: int, header: BatchHeader) -> Iterator[Any]:
        """Decode one batch in pieces that fit into what is left of the current Arrow batch."""
        section = _section(records, byte, header)
        whole = header.base_offset >= self.position and header.last_offset < self.end
        place, remaining = 0, header.records_count
        while remaining > 0:
            average = max(1, (len(section) - place) // remaining)
            count = min(
                remaining,
                self._max_rows - len(self._columns),
                max(1, (self._max_bytes - self._bytes) // average),
            )
            mark, before = len(self._columns), place
            place = walk(section, place, count, header, self._columns, self._include_headers)
            if not whole:
                self._columns.trim(mark, self.position, self.end)
            self._columns.types += [header.timestamp_type] * (len(self._columns) - mark)
            self._bytes += place - before
            remaining -= count
            if len(self._columns) >= self._max_rows or self._bytes >= self._max_bytes:
                yield self._take()
        if place != len(section):
            raise CorruptRecordError(
                f"{len(section) - place} bytes follow the last record of the batch at offset {header.base_offset}"
            )

    def _take(self) -> Any:
        """Build an Arrow batch of the rows gathered and start over."""
        columns, self._columns, self._bytes = self._columns, _Columns(), 0
        rows = len(columns)
        topic, partition = self._topic_partition
        arrays = [
            pa.array(columns.keys, pa.binary()),
            pa.array(columns.values, pa.binary()),
            pa.repeat(pa.scalar(topic, pa.string()), rows),
            pa.repeat(pa.scalar(partition, pa.int32()), rows),
            pa.array(columns.offsets, pa.int64()),
            pa.array(columns.timestamps, pa.timestamp("ms", tz="UTC")).cast(_TIMESTAMP),
            pa.array(columns.types, pa.int32()),
        ]
        if self._include_headers:
            arrays.append(_headers_array(columns))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _section(records: Buffer, byte: int, header: BatchHeader) -> bytes:
    """Return the encoded records of the batch at `byte`, decompressed."""
    codec = _CODECS.get(header.compression)
    if codec is None:
        raise CorruptRecordError(
            f"unknown compression {header.compression} in the batch at offset {header.base_offset}"
        )
    return decompress(codec, memoryview(records)[byte + HEADER_SIZE : byte + header.size])


def _headers_array(columns: _Columns) -> Any:
    """Build the headers column. A record without headers has an empty list, never null.

    Spark measures each row of an Arrow batch that it passes on to Python; with null lists that takes a time
    quadratic in the rows of a batch (ten times slower at 10,000 rows).
    """
    ends = [0]
    for count in columns.header_counts:
        ends.append(ends[-1] + count)
    names = pa.array([name for name, _ in columns.headers], pa.string())
    contents = pa.array([content for _, content in columns.headers], pa.binary())
    entries = pa.StructArray.from_arrays([names, contents], fields=list(HEADER_TYPE))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), entries, type=HEADERS_TYPE)


def walk(  # noqa: PLR0917 - called once a batch, by this module
    section: bytes,
    position: int,
    count: int,
    header: BatchHeader,
    columns: _Columns,
    include_headers: bool = False,  # noqa: FBT001, FBT002 - as above
) -> int:
    """Append `count` records, the first at byte `position`, to the columns; return the byte after them.

    Raises:
        CorruptRecordError: The bytes are not that many records.
    """
    mark = len(columns)
    try:
        position = _walk(section, position, count, header, columns, include_headers)
    except IndexError:
        position = len(section) + 1
    if position > len(section):
        raise CorruptRecordError(f"the batch at offset {header.base_offset} ends inside a record")
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        columns.timestamps[mark:] = [header.max_timestamp] * count
    return position


def _walk(  # noqa: C901, PLR0912, PLR0915, PLR0917 - short varints are read in place, for speed
    section: bytes,
    position: int,
    count: int,
    header: BatchHeader,
    columns: _Columns,
    include_headers: bool,  # noqa: FBT001 - called once a batch, by `walk`
) -> int:
    add_key, add_value = columns.keys.append, columns.values.append
    add_offset, add_timestamp = columns.offsets.append, columns.timestamps.append
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    for _ in range(count):
        number = section[position]
        position += 1
        if number >= 0x80:
            number += (section[position] - 1) << 7
            position += 1
            if number >= 0x4000:
                number, position = _long(section, position, number)
        end = position + (number >> 1)
        number = section[position + 1]
        position += 2
        if number >= 0x80:
            number += (section[position] - 1) << 7
            position += 1
            if number >= 0x4000:
                number, position = _long(section, position, number)
        add_timestamp(base_timestamp + ((number >> 1) ^ -(number & 1)))
        number = section[position]
        position += 1
        if number >= 0x80:
            number += (section[position] - 1) << 7
            position += 1
            if number >= 0x4000:
                number, position = _long(section, position, number)
        add_offset(base_offset + (number >> 1))
        for add in (add_key, add_value):
            number = section[position]
            position += 1
            if number >= 0x80:
                number += (section[position] - 1) << 7
                position += 1
                if number >= 0x4000:
                    number, position = _long(section, position, number)
            if number & 1:
                add(None)
            else:
                place, position = position, position + (number >> 1)
                add(section[place:position])
        if position >= end:  # the count of headers follows
            raise CorruptRecordError(f"a record does not fit at byte {position}")
        if include_headers:
            _append_headers(section, position, end, columns)
        position = end
    return position


def _long(section: bytes, position: int, number: int) -> tuple[int, int]:
    """Go on with an unsigned varint whose first two bytes have been read; return it and the byte after it.

    `number` still holds the continuation bit of its last byte (which is why it is at least 1 << 14): the - 1 below
    takes that bit away again.
    """
    shift = 14
    while number >> shift:
        number += (section[position] - 1) << shift
        position += 1
        shift += 7
        if shift > 7 * MAX_VARLONG_SIZE:
            raise CorruptRecordError(f"a varint before byte {position} is too long")
    return number, position


def _append_headers(section: bytes, position: int, end: int, columns: _Columns) -> None:
    count, position = decode_varint(section, position)
    if not 0 <= 2 * count <= end - position:
        raise CorruptRecordError(f"{count} headers claimed in {end - position} bytes")
    for _ in range(count):
        length, position = decode_varint(section, position)
        name = section[position : position + length].decode("utf-8", "replace")
        length, position = decode_varint(section, position + length)
        content = section[position : position + length] if length >= 0 else None
        position += max(length, 0)
        if position > end:
            raise CorruptRecordError(f"a header does not fit at byte {position}")
        columns.headers.append((name, content))
    columns.header_counts.append(count)
