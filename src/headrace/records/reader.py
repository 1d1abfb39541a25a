"""Decoding the records of batches one by one: for timestamp lookup, the coordinators' own topics, and clients.

Python decodes about 1.2 million records a second, the accelerator eight times as many. The produce and fetch paths of
the broker do not decode records.

A batch of some kilobytes may hold millions of records, and each decoded record takes some hundred bytes of memory. So
code that reads batches of other programs reads them in slices (`BatchSlices`, `read_records`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Generic, NamedTuple, TypeVar

from headrace.errors import CorruptRecordError
from headrace.records.batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    MIN_BATCH_LENGTH,
    MIN_RECORD_SIZE,
    BatchHeader,
    check_batch,
)
from headrace.records.compression import MAX_DECOMPRESSED_SIZE, Compression, decompress
from headrace.records.decoding import as_fastest, decode_slice
from headrace.types import Buffer

R = TypeVar("R", bound=tuple[Any, ...])

SLICE_RECORDS: Final = 4096
"""The largest number of records of a batch that are decoded at a time."""
SLICE_BYTES: Final = 1 << 20
"""The approximate number of bytes of encoded records that are decoded at a time.

A slice ends after a record with headers that ends beyond this number of bytes.
"""

_CODECS: Final = {int(codec): codec for codec in Compression}


class Record(NamedTuple):
    """One record of a partition. `timestamp` is in milliseconds since 1970."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_records(
    buffer: Buffer,
    *,
    tolerate_truncated: bool = False,
    include_control: bool = False,
    max_decompressed_size: int = MAX_DECOMPRESSED_SIZE,
) -> Iterator[Record]:
    """Yield the records of batches one after the other. At most `SLICE_RECORDS` are decoded at a time.

    Args:
        buffer: Batches, as a fetch response or a segment has them.
        tolerate_truncated: Whether an incomplete batch at the end is ignored, as in a fetch response. Otherwise it is
            an error.
        include_control: Whether to yield the records of control batches too.
        max_decompressed_size: The largest size in bytes of one batch's records.

    Raises:
        CorruptRecordError: A batch is damaged. The records before it have been yielded.
    """
    position, end = 0, len(buffer)
    while position < end:
        if tolerate_truncated and _is_cut_off(buffer, position):
            return
        header = check_batch(buffer, position)
        if include_control or not header.is_control:
            batch = slices_of(header, buffer, position, max_decompressed_size)
            while batch.left:
                yield from batch.next_slice()
        position += header.size


def read_batch(
    buffer: Buffer,
    position: int = 0,
    *,
    max_decompressed_size: int = MAX_DECOMPRESSED_SIZE,
) -> tuple[BatchHeader, list[Record]]:
    """Return the header and the records of the batch at `position`.

    Raises:
        CorruptRecordError: The batch is damaged.
    """
    header = check_batch(buffer, position)
    return header, decode_batch(header, buffer, position, max_decompressed_size)


class BatchSlices(Generic[R]):
    """The records of one batch, decoded slice by slice.

    An error in a slice is raised again each time that the slice is asked for.
    """

    __slots__ = (
        "_after",
        "_before",
        "_data",
        "_header",
        "_kind",
        "_limit",
        "_place",
        "_source",
        "left",
    )

    def __init__(
        self,
        kind: type[R],
        header: BatchHeader,
        source: Buffer,
        *,
        before: tuple[Any, ...] = (),
        after: tuple[Any, ...] = (),
        limit: int = MAX_DECOMPRESSED_SIZE,
        data: Buffer | None = None,
    ) -> None:
        """Prepare to decode the records of a batch whose CRC has been checked.

        Args:
            kind: The named tuple that each record becomes.
            header: The batch's header.
            source: The bytes after the header.
            before: The fields of each record that come before those of `Record`.
            after: The fields of each record that come after those of `Record`.
            limit: The largest size of the records in bytes.
            data: The decompressed records; None decompresses them.

        Raises:
            CorruptRecordError: The records cannot be decompressed, or the header has an impossible number of records.
        """
        self._kind, self._header, self._before, self._after = kind, header, before, after
        self._source, self._limit = source, limit
        data = _decompressed(header, source, limit) if data is None else data
        self._data: Buffer | None = data
        self._place = 0
        self.left = header.records_count
        """The number of records that have not been decoded yet."""
        if not 0 <= self.left * MIN_RECORD_SIZE <= len(data):
            raise CorruptRecordError(f"{self.left} records claimed in {len(data)} bytes")
        if not self.left and len(data):
            raise _left_over(len(data))

    @property
    def held(self) -> int:
        """The memory of the decompressed records in bytes; 0 if the batch is not compressed."""
        return 0 if self._data is None or not self._header.compression else len(self._data)

    def release(self) -> None:
        """Free the decompressed records. The next slice decompresses them again."""
        self._data = None

    def next_slice(self) -> list[R]:
        """Return the next records, an empty list after the last.

        Raises:
            CorruptRecordError: A record cannot be decoded, or the batch does not end after the last record.
        """
        if not self.left:
            return []
        rest = len(self._bytes()) - self._place
        fit = SLICE_BYTES * self.left // rest if rest > SLICE_BYTES else SLICE_RECORDS
        return self._decode(min(self.left, SLICE_RECORDS, max(1, fit)), SLICE_BYTES)

    def whole(self) -> list[R]:
        """Return all records that are left, for batches that are known to be small.

        Raises:
            CorruptRecordError: The records cannot be decoded, or their number is not the one in the header.
        """
        records: list[R] = []
        while self.left:
            records += self._decode(self.left, len(self._bytes()))
        return records

    def _bytes(self) -> Buffer:
        if self._data is None:
            self._data = _decompressed(self._header, self._source, self._limit)
        return self._data

    def _decode(self, count: int, most_bytes: int) -> list[R]:
        data = self._bytes()
        if not isinstance(data, bytes):
            self._data = data = as_fastest(data)  # once, not for each slice
        records, place = decode_slice(
            self._kind,
            self._header,
            data,
            self._place,
            count,
            most_bytes,
            self._before,
            self._after,
        )
        left = self.left - len(records)
        if not left and place != len(data):
            raise _left_over(len(data) - place)
        self._place, self.left = place, left
        return records


def first_slice(  # noqa: PLR0917 - names would be felt: it is called for each batch that is consumed
    kind: type[R],
    header: BatchHeader,
    buffer: Buffer,
    position: int,
    before: tuple[Any, ...] = (),
    after: tuple[Any, ...] = (),
) -> tuple[list[R], BatchSlices[R] | None]:
    """Return the first records of a batch whose CRC has been checked, and the slices with the others, if there are any.

    Raises:
        CorruptRecordError: The records cannot be decompressed or decoded, or their number is not the one in the header.
    """
    source = memoryview(buffer)[position + HEADER_SIZE : position + header.size]
    data = _decompressed(header, source, MAX_DECOMPRESSED_SIZE)
    count = header.records_count
    if 0 <= count <= SLICE_RECORDS and count * MIN_RECORD_SIZE <= len(data) < SLICE_BYTES:
        # Nearly always one slice is all, so no object is made for the batch.
        records, place = decode_slice(kind, header, data, 0, count, SLICE_BYTES, before, after)
        if place != len(data):
            raise _left_over(len(data) - place)
        return records, None
    batch = BatchSlices(kind, header, source, before=before, after=after, data=data)
    records = batch.next_slice()
    return records, batch if batch.left else None


def decode_batch(
    header: BatchHeader,
    buffer: Buffer,
    position: int,
    max_decompressed_size: int = MAX_DECOMPRESSED_SIZE,
) -> list[Record]:
    """Decode all records of a batch whose CRC has been checked, at once.

    Raises:
        CorruptRecordError: The records cannot be decoded, or their number is not the one in the header.
    """
    return slices_of(header, buffer, position, max_decompressed_size).whole()


def slices_of(
    header: BatchHeader,
    buffer: Buffer,
    position: int,
    max_decompressed_size: int = MAX_DECOMPRESSED_SIZE,
) -> BatchSlices[Record]:
    """Return the slices of a batch whose CRC has been checked.

    Raises:
        CorruptRecordError: The records cannot be decompressed, or the header has an impossible number of records.
    """
    source = memoryview(buffer)[position + HEADER_SIZE : position + header.size]
    return BatchSlices(Record, header, source, limit=max_decompressed_size)


def first_record(header: BatchHeader, buffer: Buffer, position: int) -> Record | None:
    """Return the first record of a batch, for example the marker in a control batch; None without records.

    Raises:
        CorruptRecordError: The first records cannot be decoded.
    """
    records, _ = first_slice(Record, header, buffer, position)
    return records[0] if records else None


def decode_data(header: BatchHeader, data: Buffer) -> list[Record]:
    """Decode the records of a batch from their decompressed bytes.

    Raises:
        CorruptRecordError: The records cannot be decoded, or their number is not the one in the header.
    """
    return BatchSlices(Record, header, b"", data=data).whole()


def _decompressed(header: BatchHeader, records: Buffer, limit: int) -> Buffer:
    number = header.attributes & COMPRESSION_MASK
    if not number:
        return records
    codec = _CODECS.get(number)
    if codec is None:
        raise CorruptRecordError(f"unknown compression {number}")
    return decompress(codec, records, limit)


def _left_over(size: int) -> CorruptRecordError:
    return CorruptRecordError(f"{size} bytes after the last record of a batch")


def _is_cut_off(buffer: Buffer, position: int) -> bool:
    remaining = len(buffer) - position
    if remaining < HEADER_SIZE:
        return True
    header = BatchHeader.parse(buffer, position)
    return header.batch_length >= MIN_BATCH_LENGTH and header.size > remaining
