"""The Spark side of an archive: a source whose tasks write files and return one row for each file.

Records never enter the JVM. A task fetches records, decodes them to Arrow and writes Parquet in its Python process.
Spark may run a task twice. Each attempt writes its own files, and Spark returns the rows of one attempt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from headrace.errors import HeadraceError
from headrace.spark.archive.addresses import open_location
from headrace.spark.archive.files import ArchivedPartition, WrittenFile
from headrace.spark.archive.planning import BatchPlan
from headrace.spark.archive.table_format import FinalError
from headrace.spark.archive.table_location import TableLocation
from headrace.spark.archive.writing import FileTarget, write_range
from headrace.spark.options.source import SourceOptions, source_options
from headrace.spark.source.cluster_client import shared_client
from headrace.spark.source.offsets import OffsetRange
from headrace.spark.source.reading import read_task
from headrace.spark.source.schema import arrow_schema
from headrace.spark.source.source_client import SourceClient
from headrace.spark.source.tasks import ReadTask
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT: Final = "headrace_archive"
_TASKS: Final = "archivetasks"
_ROOT: Final = "archiveroot"
_FILE_BYTES: Final = "archivefilebytes"
_COLUMN: Final = "file"
_PYTHON_ERROR: Final = re.compile(r"((?!org\.|java\.|py4j\.)[\w.]+(?:Error|Exception)): (.+)")


class WriteTask(InputPartition):
    """The ranges that one task copies, with the topic ids of their partitions."""

    def __init__(self, ranges: Iterable[tuple[ArchivedPartition, int, int]]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


class ManifestSource(DataSource):
    """`format("headrace_archive")`: only for `headrace archive`, which registers it in its session."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the only column: a written file as JSON."""
        return f"{_COLUMN} string"

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """Create the reader that runs the tasks."""
        return ManifestReader({name.lower(): value for name, value in self.options.items()})


class ManifestReader(DataSourceReader):
    """Runs the tasks of a plan."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = dict(options)
        self._tasks = json.loads(given.pop(_TASKS))
        root, file_bytes = open_location(given.pop(_ROOT)), int(given.pop(_FILE_BYTES))
        self._options = source_options(given, streaming=False)
        self._target = FileTarget(root, archive_schema(self._options), file_bytes)

    def partitions(self) -> list[InputPartition]:
        """Return the planned tasks."""
        return [
            WriteTask((ArchivedPartition(*source), start, end) for *source, start, end in task)
            for task in self._tasks
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Write a task's files and yield a row for each that is durable."""
        if not isinstance(partition, WriteTask):
            return
        for written in write_task(
            shared_client(self._options.client), self._options, self._target, partition.ranges
        ):
            yield pa.record_batch({_COLUMN: pa.array([written.to_json()], pa.string())})


def write_task(
    client: SourceClient,
    options: SourceOptions,
    target: FileTarget,
    ranges: Iterable[tuple[ArchivedPartition, int, int]],
) -> Iterator[WrittenFile]:
    """Copy ranges of partitions to files, one after the other, and yield the durable files."""
    for source, start, end in ranges:
        wanted = ReadTask([OffsetRange(source.topic_partition, start, end, source.topic_id)])
        yield from write_range(target, source, start, end, read_task(client, wanted, options))


def archive_schema(options: SourceOptions) -> Any:
    """Return the Arrow schema of an archive whose topics are read with these options."""
    return arrow_schema(options)


class SparkTasks:
    """Runs the tasks of a batch on Spark."""

    def __init__(
        self, spark: SparkSession, options: Mapping[str, str], root: TableLocation, file_bytes: int
    ) -> None:
        """Prepare a session.

        Args:
            spark: The session.
            options: The options of the read.
            root: The location of the table's files.
            file_bytes: The size in bytes at which a file ends.
        """
        spark.dataSource.register(ManifestSource)
        self._spark = spark
        self._options = {**options, _ROOT: str(root), _FILE_BYTES: str(file_bytes)}

    def __call__(
        self, plan: BatchPlan, current: Mapping[TopicPartition, ArchivedPartition]
    ) -> list[WrittenFile]:
        """Write a batch's files.

        Raises:
            HeadraceError: A task failed in all attempts that Spark allows.
            FinalError: Spark's JVM has ended.
        """
        encoded = [
            [[*current[wanted.topic_partition], wanted.start, wanted.end] for wanted in task]
            for task in plan.tasks
        ]
        try:
            reader = self._spark.read.format(FORMAT).options(**self._options)
            rows = reader.option(_TASKS, json.dumps(encoded)).load().collect()
        except PySparkException as error:
            raise HeadraceError(f"batch {plan.batch} failed: {essence(str(error))}") from error
        except (Py4JError, OSError) as error:
            raise FinalError(
                f"batch {plan.batch}: Spark has ended ({error}). Start the archive again: it continues from its table"
            ) from error
        return [WrittenFile.from_json(row[_COLUMN]) for row in rows]


def essence(text: str) -> str:
    """Return the error of a Python task in the text of Spark's exception."""
    found = [
        match for line in text.splitlines() if (match := _PYTHON_ERROR.fullmatch(line.strip()))
    ]
    if not found:
        return text.strip().partition("\n")[0]
    name, what = found[-1].groups()
    if name.startswith("headrace."):
        return str(what).partition(" Set the option failOnDataLoss")[0]
    return f"{name}: {what}"
