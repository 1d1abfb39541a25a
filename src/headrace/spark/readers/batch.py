"""Batch reads of topics: `spark.read.format("headrace")`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.errors import ConfigError
from headrace.spark.errors import short_tracebacks
from headrace.spark.options.source import SourceOptions
from headrace.spark.readers.origin import pieces, read, source_client
from headrace.spark.source.division import TaskDivision
from headrace.spark.source.offsets import DataLossError, OffsetRange
from headrace.spark.source.resolving import (
    check_exists,
    current_topology,
    end_positions,
    select,
    start_positions,
)
from headrace.spark.source.source_client import SourceClient
from headrace.spark.source.tasks import ReadTask, tasks

log = logging.getLogger(__name__)


@short_tracebacks
class HeadraceBatchReader(DataSourceReader):
    """Plans the tasks of a batch read and reads them.

    The class has no method `pushFilters`. With such a method, Spark fails every query unless a setting allows filters,
    and by default it does not.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks of the read."""
        client = source_client(self._options)
        ranges = batch_ranges(client, self._options)
        return tasks(pieces(client, ranges, self._options), TaskDivision.of(self._options))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a task's records as Arrow batches."""
        # Spark turns an empty list of tasks into one partition without content.
        if not isinstance(partition, ReadTask):
            return iter(())
        return read(partition, self._options)


def batch_ranges(client: SourceClient, options: SourceOptions) -> list[OffsetRange]:
    """Return the offset ranges of a batch read, without empty ranges.

    Raises:
        ConfigError: A topic does not exist, or the given offsets do not fit the topic.
        DataLossError: Records of the read are gone, and `failOnDataLoss` is true.
    """

    def lost(what: str) -> None:
        if options.fail_on_data_loss:
            raise DataLossError(what)
        log.warning("%s; the read continues without them (failOnDataLoss=false)", what)

    def beyond(what: str) -> None:
        raise ConfigError(f"{what}: there are no records to read")

    topology = current_topology(client, options.selection)
    check_exists(options.selection, topology)
    wanted = select(options.selection, topology)
    start = start_positions(client, options, wanted, lost, beyond)
    end = end_positions(client, options, wanted, lost)
    ranges = [
        OffsetRange(each, start[each], end[each], topology[each.topic].topic_id) for each in wanted
    ]
    for each_range in ranges:
        if each_range.size < 0 and options.starting != "earliest":
            raise ConfigError(
                f"the read of {each_range.topic_partition} starts at offset {each_range.start}, after its end at "
                f"{each_range.end}: correct the options for start and end"
            )
    return [each_range for each_range in ranges if each_range.size > 0]
