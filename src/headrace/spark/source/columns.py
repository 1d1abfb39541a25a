"""Collect columns from the encoded records of a batch: in Python, or with the accelerator.

Both implementations stop if the Arrow batch is full, by rows or by bytes. The int32 offsets of an Arrow batch cannot
overflow: several records have at most `max_bytes` of encoded records, and a single record is smaller than 2 GiB.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from headrace.errors import CorruptRecordError
from headrace.records.accel import ColumnWriter
from headrace.records.batch import LOG_APPEND_TIME_FLAG, BatchHeader, TimestampType
from headrace.records.decoding import MAX_HEADERS, too_many_headers
from headrace.records.varint import MAX_VARLONG_SIZE, decode_varint
from headrace.spark.source.schema import HEADER_TYPE, HEADERS_TYPE
from headrace.types import Buffer

DONE: Final = 0
FULL: Final = 1
DAMAGED: Final = 2
"""DONE, FULL and DAMAGED are the reasons why a walk ends: all records are read, the next record does not fit into the
Arrow batch, or the next record is malformed."""

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


class PythonColumns:
    """The rows of the next Arrow batch, collected column by column in Python lists."""

    def __init__(self, columns: Collection[str], max_rows: int, max_bytes: int) -> None:
        self._include_headers = "headers" in columns
        self._wanted = frozenset(columns)
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._clear()

    def _clear(self) -> None:
        self.bytes = 0
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.types: list[int] = []
        self.headers: list[tuple[str, bytes | None]] = []
        self.header_counts: list[int] = []

    def __len__(self) -> int:
        return len(self.offsets)

    def walk(
        self, section: Buffer, position: int, count: int, header: BatchHeader, wanted: range
    ) -> tuple[int, int, int]:
        """Add the records whose offsets are wanted.

        Args:
            section: The encoded records of a batch.
            position: The byte position of the next record in `section`.
            count: The number of records from `position` on.
            header: The header of the batch.
            wanted: The wanted offsets.

        Returns:
            The byte position of the next record, the number of records from there on, and DONE or FULL.

        Raises:
            CorruptRecordError: The bytes are not `count` records.
        """
        assert isinstance(section, bytes), "slices of other buffers are not bytes"
        mark = len(self)
        try:
            position, left = self._walk(section, position, count, header, wanted)
        except IndexError:
            raise CorruptRecordError(
                f"the batch at offset {header.base_offset} ends inside a record"
            ) from None
        rows = len(self) - mark
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            self.timestamps[mark:] = [header.max_timestamp] * rows
        self.types += [header.timestamp_type] * rows
        return position, left, FULL if left else DONE

    def _walk(  # noqa: C901, PLR0912, PLR0915 - short varints are read in place, for speed
        self, section: bytes, position: int, count: int, header: BatchHeader, wanted: range
    ) -> tuple[int, int]:
        start, last = wanted.start, wanted.stop
        add_key = self.keys.append if "key" in self._wanted else None
        add_value = self.values.append if "value" in self._wanted else None
        add_offset, add_timestamp = self.offsets.append, self.timestamps.append
        base_offset, base_timestamp = header.base_offset, header.base_timestamp
        most, size, include_headers = self._max_rows, len(section), self._include_headers
        rows, room = most - len(self), self._max_bytes - self.bytes
        for left in range(count, 0, -1):
            begin = position
            number = section[position]
            position += 1
            if number >= 0x80:
                number += (section[position] - 1) << 7
                position += 1
                if number >= 0x4000:
                    number, position = _long(section, position, number)
            end = position + (number >> 1)
            if end > size or number & 1:
                raise CorruptRecordError(f"the record at byte {begin} does not fit")
            time, position = _varint(section, position + 1)
            number, position = _varint(section, position)
            offset = base_offset + ((number >> 1) ^ -(number & 1))
            if offset < start:
                position = end
                continue
            if offset >= last:  # offsets ascend: no wanted record follows
                return size, 0
            if not rows or (rows < most and end - begin > room):
                self.bytes = self._max_bytes - room
                return begin, left
            for add in (add_key, add_value):
                number = section[position]
                position += 1
                if number >= 0x80:
                    number += (section[position] - 1) << 7
                    position += 1
                    if number >= 0x4000:
                        number, position = _long(section, position, number)
                if number & 1:
                    number = 0
                    if add is not None:
                        add(None)
                elif add is not None:
                    add(section[position : position + (number >> 1)])
                position += number >> 1
            if position >= end:  # the count of headers follows
                raise CorruptRecordError(f"a record does not fit at byte {position}")
            if include_headers:
                self._append_headers(section, position, end)
            add_timestamp(base_timestamp + ((time >> 1) ^ -(time & 1)))
            add_offset(offset)
            position = end
            rows -= 1
            room -= end - begin
        self.bytes = self._max_bytes - room
        return position, 0

    def _append_headers(self, section: bytes, position: int, end: int) -> None:
        count, position = decode_varint(section, position)
        if not 0 <= 2 * count <= end - position:
            raise CorruptRecordError(f"{count} headers claimed in {end - position} bytes")
        if count > MAX_HEADERS:
            raise too_many_headers(count)
        for _ in range(count):
            length, position = decode_varint(section, position)
            if length < 0:
                raise CorruptRecordError("a record header without a key")
            name = section[position : position + length].decode("utf-8", "replace")
            length, position = decode_varint(section, position + length)
            content = section[position : position + length] if length >= 0 else None
            position += max(length, 0)
            if position > end:
                raise CorruptRecordError(f"a header does not fit at byte {position}")
            self.headers.append((name, content))
        if position != end:
            raise CorruptRecordError(f"a record's length is off by {end - position} bytes")
        self.header_counts.append(count)

    def take(self) -> dict[str, Any]:
        """Return the collected columns as Arrow arrays, and clear them.

        Raises:
            CorruptRecordError: A timestamp is outside the range of Spark's timestamps.
        """
        makers = {
            "key": lambda: pa.array(self.keys, pa.binary()),
            "value": lambda: pa.array(self.values, pa.binary()),
            "offset": lambda: pa.array(self.offsets, pa.int64()),
            "timestamp": self._timestamps,
            "timestampType": lambda: pa.array(self.types, pa.int32()),
            "headers": self._headers,
        }
        arrays = {name: make() for name, make in makers.items() if name in self._wanted}
        self._clear()
        return arrays

    def _timestamps(self) -> Any:
        try:
            return pa.array(self.timestamps, pa.timestamp("ms", tz="UTC")).cast(_TIMESTAMP)
        except (OverflowError, pa.ArrowInvalid):
            raise CorruptRecordError(
                f"a record from offset {self.offsets[0]} to {self.offsets[-1]} has a timestamp that is too far from "
                "1970 for Spark. Name the columns without timestamp in the option columns to read the record"
            ) from None

    def _headers(self) -> Any:
        """Build the headers column. A record without headers has an empty list, never null.

        Spark computes the size of each row of an Arrow batch that it passes to Python. With null lists the time for
        that is quadratic in the number of rows (ten times slower at 10,000 rows).
        """
        ends = pa.array([0, *accumulate(self.header_counts)], pa.int32())
        names = pa.array([name for name, _ in self.headers], pa.string())
        contents = pa.array([content for _, content in self.headers], pa.binary())
        return _header_lists(ends, names, contents)


class CompiledColumns:
    """The rows of the next Arrow batch, collected in Arrow buffers by `headrace.records.accel.ColumnWriter`."""

    def __init__(self, writer: ColumnWriter) -> None:
        self._writer = writer

    def __len__(self) -> int:
        return len(self._writer)

    def walk(
        self, section: Buffer, position: int, count: int, header: BatchHeader, wanted: range
    ) -> tuple[int, int, int]:
        """See `PythonColumns.walk`.

        A malformed record is no exception: the result has its byte position, and DAMAGED.
        """
        log_append_time = (
            header.attributes & LOG_APPEND_TIME_FLAG
        )  # a look-up in an enum takes longer than a record
        return self._writer.walk(
            section,
            position,
            count,
            header.base_offset,
            header.base_timestamp,
            header.max_timestamp if log_append_time else None,
            bool(log_append_time),
            wanted.start,
            wanted.stop,
        )

    def take(self) -> dict[str, Any]:
        """Return the collected columns as Arrow arrays, and clear them."""
        rows = len(self._writer)
        return {name: _MAKERS[name](rows, each) for name, each in self._writer.take().items()}


def _binary(kind: Any, rows: int, buffers: Sequence[Any]) -> Any:
    nulls, validity, ends, content = buffers
    parts = [None if validity is None else pa.py_buffer(validity)]
    parts += [pa.py_buffer(ends), pa.py_buffer(content)]
    return pa.Array.from_buffers(kind, rows, parts, nulls)


def _fixed(kind: Any, rows: int, content: bytes) -> Any:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(content)], 0)


def _headers(rows: int, buffers: Sequence[Any]) -> Any:
    entries, ends, names, contents = buffers
    return _header_lists(
        _fixed(pa.int32(), rows + 1, ends),
        _binary(pa.string(), entries, names),
        _binary(pa.binary(), entries, contents),
    )


def _header_lists(ends: Any, names: Any, contents: Any) -> Any:
    entries = pa.StructArray.from_arrays([names, contents], fields=list(HEADER_TYPE))
    return pa.ListArray.from_arrays(ends, entries, type=HEADERS_TYPE)


_MAKERS: Final[Mapping[str, Any]] = {
    "key": lambda rows, buffers: _binary(pa.binary(), rows, buffers),
    "value": lambda rows, buffers: _binary(pa.binary(), rows, buffers),
    "offset": lambda rows, content: _fixed(pa.int64(), rows, content),
    "timestamp": lambda rows, content: _fixed(_TIMESTAMP, rows, content),
    "timestampType": lambda rows, content: _fixed(pa.int32(), rows, content),
    "headers": _headers,
}


def _varint(section: bytes, position: int) -> tuple[int, int]:
    """Read an unsigned varint. Return the number and the next byte position."""
    number = section[position]
    if number < 0x80:
        return number, position + 1
    number += (section[position + 1] - 1) << 7
    return (number, position + 2) if number < 0x4000 else _long(section, position + 2, number)


def _long(section: bytes, position: int, number: int) -> tuple[int, int]:
    """Read the rest of an unsigned varint after its first two bytes. Return the number and the next byte position.

    `number` still contains the continuation bit of the second byte, so it is at least 1 << 14. The `- 1` below
    subtracts that bit.
    """
    shift = 14
    while number >> shift:
        number += (section[position] - 1) << shift
        position += 1
        shift += 7
        if shift > 7 * MAX_VARLONG_SIZE:
            raise CorruptRecordError(f"a varint before byte {position} is too long")
    return number, position
