"""Write Arrow batches to Parquet files. Each file is durable before it is reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.spark.archive.files import ArchivedFile, ArchivedPartition, WrittenFile, file_path
from headrace.spark.archive.table_location import TableLocation

ROW_GROUP_ROWS: Final = 100_000
ROW_GROUP_BYTES: Final = 32 << 20
"""The size of a row group in bytes of Arrow data. A reader reads at least one row group, and a task has one in
memory."""
_REPEATED: Final = ("key", "topic", "partition", "timestampType")
_ASCENDING: Final = ("offset", "timestamp")
_SEARCHED: Final = ("topic", "partition", "offset", "timestamp")


@dataclass(frozen=True)
class FileTarget:
    """The location, schema and size of new files. A file ends when it has `file_bytes`."""

    root: TableLocation
    schema: Any
    file_bytes: int = 128 << 20


def write_range(
    target: FileTarget, source: ArchivedPartition, start: int, end: int, batches: Iterable[Any]
) -> Iterator[WrittenFile]:
    """Write the records of a range to one or several files, and yield the files.

    The files cover the range without a gap. A range without records gets a file without rows, so that the files alone
    show what is archived.

    Args:
        target: The location, schema and size of files.
        source: The partition.
        start: The first offset of the range.
        end: The end offset of the range.
        batches: The records of the range, in the order of offsets.
    """
    open_file: _OpenFile | None = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if open_file is None:
                open_file = _OpenFile(target, source, start)
            open_file.add(batch)
            if open_file.size >= target.file_bytes:
                start = open_file.next_offset
                yield open_file.finish(start)
                open_file = None
        if start < end:
            open_file = open_file or _OpenFile(target, source, start)
            yield open_file.finish(end)
            open_file = None
    finally:
        if open_file is not None:
            open_file.abandon()


class _OpenFile:
    """A file that is being written. Readers do not see it before `finish`."""

    def __init__(self, target: FileTarget, source: ArchivedPartition, start: int) -> None:
        self._target = target
        self._source = source
        self._start = start
        self._file = target.root.begin(source.directory)
        self._writer = pq.ParquetWriter(self._file.sink, target.schema, **_layout(target.schema))
        self._pending: list[Any] = []
        self._rows = self._bytes = self._records = 0
        self._first: int | None = None
        self.next_offset = start
        self._min_ms: int | None = None
        self._max_ms: int | None = None

    @property
    def size(self) -> int:
        """The size of the file in bytes so far, without the rows of the row group that is not full yet."""
        return self._file.sink.tell()

    def add(self, batch: Any) -> None:
        """Append rows, whose offsets are greater than those of earlier rows."""
        offsets = batch.column("offset")
        if self._first is None:
            self._first = offsets[0].as_py()
        self.next_offset = offsets[batch.num_rows - 1].as_py() + 1
        self._add_times(batch)
        self._pending.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def finish(self, end: int) -> WrittenFile:
        """Write the last row group, and make the file durable under its final name."""
        self._flush()
        self._writer.close()
        size = self._file.sink.tell()
        path = file_path(self._source, self._start, end)
        self._file.publish(path)
        file = ArchivedFile(self._source, self._start, end, path, size, self._records)
        last = None if self._first is None else self.next_offset - 1
        return WrittenFile(file, self._first, last, self._min_ms, self._max_ms)

    def abandon(self) -> None:
        """Delete the incomplete file."""
        self._file.abandon()

    def _flush(self) -> None:
        if self._pending:
            table = pa.Table.from_batches(self._pending, schema=self._target.schema)
            self._writer.write_table(table, row_group_size=self._rows)
            self._records += self._rows
        self._pending = []
        self._rows = self._bytes = 0

    def _add_times(self, batch: Any) -> None:
        if "timestamp" not in batch.schema.names:
            return
        found = pc.min_max(batch.column("timestamp").cast(pa.int64()))
        low, high = found["min"].as_py(), found["max"].as_py()
        if low is None:
            return
        low, high = low // 1000, high // 1000
        self._min_ms = low if self._min_ms is None else min(self._min_ms, low)
        self._max_ms = high if self._max_ms is None else max(self._max_ms, high)


def _layout(schema: Any) -> dict[str, Any]:
    """Return the Parquet settings.

    Fields of decoded values get a dictionary, because they repeat; binary values do not.
    """
    typed = [f"value.{leaf}" for leaf in _leaves(schema.field("value").type)]
    return {
        "compression": "zstd",
        "use_dictionary": [*_REPEATED, *typed],
        "column_encoding": dict.fromkeys(_ASCENDING, "DELTA_BINARY_PACKED"),
        "write_statistics": list(_SEARCHED),
    }


def _leaves(kind: Any) -> Iterator[str]:
    for field in kind if pa.types.is_struct(kind) else ():
        if pa.types.is_struct(field.type):
            yield from (f"{field.name}.{leaf}" for leaf in _leaves(field.type))
        elif not pa.types.is_nested(field.type):
            yield field.name
