"""An archive without Spark: a cluster in memory, a table on disk, and tasks in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.spark.archive.addresses import open_location
from headrace.spark.archive.batches import Archiver
from headrace.spark.archive.files import ArchivedPartition, WrittenFile
from headrace.spark.archive.planning import BatchLimits, BatchPlan
from headrace.spark.archive.table import create_table, open_table
from headrace.spark.archive.table_format import ArchiveTable
from headrace.spark.archive.table_location import TableLocation
from headrace.spark.archive.writing import FileTarget, write_range
from headrace.spark.options.selection import TopicSelection
from headrace.types import TopicPartition
from tests.unit.spark.fakes import FakeCluster

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
EPOCH_US = 1_700_000_000_000_000


def rows(source: TopicPartition | ArchivedPartition, offsets: list[int]) -> pa.RecordBatch:
    """Return records whose values contain their topic, partition and offset."""
    count = len(offsets)
    columns = [
        [None] * count,
        [f"{source.topic}-{source.partition}-{offset}".encode() for offset in offsets],
        [source.topic] * count,
        [source.partition] * count,
        offsets,
        [EPOCH_US + offset * 1000 for offset in offsets],
        [0] * count,
        [[] for _ in offsets],
    ]
    arrays = [pa.array(each, kind) for each, kind in zip(columns, SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class ArchiveHarness:
    """A cluster whose partitions may have gaps: `holes` are offsets without a record."""

    def __init__(self, root: Path, kind: str = "delta", **limits: Any) -> None:
        self.root = root / "table"
        self.kind = kind
        self.cluster = FakeCluster()
        self.holes: set[int] = set()
        self.told: dict[TopicPartition, int] = {}
        self.limits = BatchLimits(**{"cores": 2, **limits})
        self.batch_rows = 4

    @property
    def place(self) -> TableLocation:
        """The directory of the table."""
        return open_location(self.root)

    def table(self) -> ArchiveTable:
        return open_table(self.kind, self.root)

    def archiver(self, *topics: str, **settings: Any) -> Archiver:
        """Return an archiver as it is after the start of a process."""
        return Archiver(
            self.cluster,
            create_table(self.kind, self.root, None, SCHEMA),
            TopicSelection(topics=topics or ("flights",)),
            self.execute,
            self.told.update,
            self.limits,
            **settings,
        )

    def execute(
        self, plan: BatchPlan, current: Mapping[TopicPartition, ArchivedPartition]
    ) -> list[WrittenFile]:
        return [
            written
            for task in plan.tasks
            for wanted in task
            for written in self.write(current[wanted.topic_partition], wanted.start, wanted.end)
        ]

    def write(self, source: ArchivedPartition, start: int, end: int) -> Iterator[WrittenFile]:
        target = FileTarget(self.place, SCHEMA, self.limits.file_bytes)
        return write_range(target, source, start, end, self.batches(source, start, end))

    def batches(
        self, source: TopicPartition | ArchivedPartition, start: int, end: int
    ) -> Iterator[Any]:
        wanted = [offset for offset in range(start, end) if offset not in self.holes]
        for first in range(0, len(wanted), self.batch_rows):
            yield rows(source, wanted[first : first + self.batch_rows])

    def archived(self) -> list[tuple[str, int, int]]:
        """Return the rows of the table as an ordinary program reads them."""
        found: list[tuple[str, int, int]] = []
        for file in self.table().snapshot().files:
            with self.place.open(file.path) as source:
                table = pq.read_table(source)
            offsets = table.column("offset").to_pylist()
            assert offsets == sorted(offsets)
            assert table.num_rows == file.records
            found += [(file.source.topic, file.source.partition, offset) for offset in offsets]
        return sorted(found)

    def expected(self, *topics: str) -> list[tuple[str, int, int]]:
        return sorted(
            (each.topic, each.partition, offset)
            for each, (first, end) in self.cluster.logs.items()
            if each.topic in (topics or ("flights",))
            for offset in range(first, end)
            if offset not in self.holes
        )
