"""Convert record batches to Arrow with one walk over the records, by the accelerator or in Python.

The walk collects columns, so that several small record batches share an Arrow batch. The accelerator writes Arrow's
buffers directly. The walk in Python fills lists and converts them together, which is up to twice as fast as a tuple
for each record (`benchmarks/micro/arrow.py` compares them).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.errors import CorruptRecordError
from headrace.records.accel import Kernels, kernels
from headrace.records.batch import (
    CONTROL_FLAG,
    HEADER_SIZE,
    MAGIC,
    MIN_RECORD_SIZE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    batch_crc,
    iterate_headers,
)
from headrace.records.compression import Compression, decompress
from headrace.records.reader import first_record
from headrace.spark.source.columns import DAMAGED, DONE, CompiledColumns, PythonColumns
from headrace.types import Buffer, TopicPartition

DEFAULT_MAX_ROWS: Final = 10_000
DEFAULT_MAX_BYTES: Final = 2 << 20
"""The most bytes of encoded records in an Arrow batch of several rows.

The allocator reuses buffers of this size, and they stay in the CPU's cache. With 16 MiB the walk takes four times as
long for records of 10 KiB.
"""

_CODECS: Final = {int(codec): codec for codec in Compression}
_CONTROL_KEY_ABORT: Final = 0


class RangeDecoder:
    """Decodes the fetched records of one range of a partition to Arrow batches of bounded size.

    `position` is the next offset to fetch. It also moves past control batches, aborted transactions and the gaps that
    compaction leaves.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        start: int,
        end: int,
        schema: Any,
        *,
        max_rows: int = DEFAULT_MAX_ROWS,
        max_bytes: int = DEFAULT_MAX_BYTES,
        compiled: Kernels | None = kernels,
    ) -> None:
        """Prepare to decode a range.

        Args:
            topic_partition: The partition.
            start: The first offset of the range.
            end: The end offset of the range.
            schema: The schema of the Arrow batches, with any columns of `headrace.spark.source.schema`.
            max_rows: The most rows of an Arrow batch.
            max_bytes: The most bytes of encoded records in an Arrow batch of several rows.
            compiled: The accelerator; None uses the walk in Python.
        """
        self.position = start
        self.end = end
        self._constants = {
            "topic": _string(topic_partition.topic.encode()),
            "partition": _int32(topic_partition.partition),
        }
        self._schema = schema
        self._bounds = (tuple(schema.names), max_rows, max_bytes)
        self._columns: CompiledColumns | PythonColumns = (
            PythonColumns(*self._bounds)
            if compiled is None
            else CompiledColumns(compiled.ColumnWriter(*self._bounds))
        )
        self._aborting: set[int] = set()

    def feed(
        self, records: Buffer, aborted_transactions: Sequence[tuple[int, int]] = ()
    ) -> Iterator[Any]:
        """Decode the record batches of one fetch response, and yield the Arrow batches that became full.

        Args:
            records: Record batches. An incomplete batch at the end is ignored; the next fetch returns it again.
            aborted_transactions: (producer id, first offset) of aborted transactions, which are skipped under
                read_committed.

        Raises:
            CorruptRecordError: A batch does not decode.
        """
        aborted = sorted(aborted_transactions, key=lambda transaction: transaction[1])
        self._aborting.clear()
        for byte, header in iterate_headers(records):
            if self.position >= self.end:
                return
            last_offset, attributes = header.last_offset, header.attributes
            if header.magic != MAGIC or batch_crc(records, byte, header.size) != header.crc:
                raise CorruptRecordError(
                    f"the batch at offset {header.base_offset} has a wrong CRC or format"
                )
            while aborted and aborted[0][1] <= last_offset:
                self._aborting.add(aborted.pop(0)[0])
            if last_offset < self.position:
                continue
            if attributes & CONTROL_FLAG:
                self._end_transaction(records, byte, header)
            elif not (attributes & TRANSACTIONAL_FLAG and header.producer_id in self._aborting):
                yield from self._decode(_section(records, byte, header), header)
            self.position = min(last_offset + 1, self.end)

    def finish(self) -> Iterator[Any]:
        """Yield the last Arrow batch, if there is one."""
        if len(self._columns):
            yield self._take(self._columns)

    def _end_transaction(self, records: Buffer, byte: int, header: BatchHeader) -> None:
        """Stop skipping a producer's batches after its abort marker: later batches belong to another transaction."""
        if header.producer_id in self._aborting:
            marker = first_record(header, records, byte)
            key = None if marker is None else marker.key
            if key is not None and int.from_bytes(key[2:4], "big") == _CONTROL_KEY_ABORT:
                self._aborting.discard(header.producer_id)

    def _decode(self, section: Buffer, header: BatchHeader) -> Iterator[Any]:
        """Decode one record batch in pieces that fit into the rest of the current Arrow batch."""
        columns: CompiledColumns | PythonColumns = self._columns
        if isinstance(columns, PythonColumns):
            section = bytes(section)
        position, left, wanted = 0, header.records_count, range(self.position, self.end)
        if not 0 <= left * MIN_RECORD_SIZE <= len(section):
            raise CorruptRecordError(
                f"{left} records claimed in the {len(section)} bytes of the batch at offset {header.base_offset}"
            )
        while left:
            position, left, why = columns.walk(section, position, left, header, wanted)
            if why != DONE and len(columns):
                yield self._take(columns)
            if (
                why == DAMAGED
            ):  # the walk in Python then decodes the rest, and raises an error that says what is wrong
                columns, section = PythonColumns(*self._bounds), bytes(section)
        if position != len(section):
            raise CorruptRecordError(
                f"{len(section) - position} bytes follow the last record of the batch at offset {header.base_offset}"
            )
        if columns is not self._columns and len(columns):
            yield self._take(columns)

    def _take(self, columns: CompiledColumns | PythonColumns) -> Any:
        """Build an Arrow batch of the collected rows and clear the columns."""
        rows = len(columns)
        arrays = columns.take()
        for name in self._constants.keys() & set(self._schema.names):
            arrays[name] = pa.repeat(self._constants[name], rows)
        return pa.RecordBatch.from_arrays(
            [arrays[name] for name in self._schema.names], schema=self._schema
        )


# `pa.scalar` and `pa.array` import pandas, if it is installed, to recognise its types. In each Python process of Spark
# that import takes as long as reading some hundred thousand rows. So the functions below build scalars from buffers.


def _string(content: bytes) -> Any:
    ends = pa.py_buffer(struct.pack("=2i", 0, len(content)))
    return pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(content)])[0]


def _int32(number: int) -> Any:
    content = pa.py_buffer(struct.pack("=i", number))
    return pa.Array.from_buffers(pa.int32(), 1, [None, content])[0]


def _section(records: Buffer, byte: int, header: BatchHeader) -> Buffer:
    """Return the encoded records of the batch at `byte`, decompressed."""
    codec = _CODECS.get(header.compression)
    if codec is None:
        raise CorruptRecordError(
            f"unknown compression {header.compression} in the batch at offset {header.base_offset}"
        )
    encoded = memoryview(records)[byte + HEADER_SIZE : byte + header.size]
    return encoded if codec is Compression.NONE else decompress(codec, encoded)
