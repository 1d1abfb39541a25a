"""Batch reads: `spark.read.format("headrace")`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.errors import ConfigError
from headrace.spark.cluster import SourceClient, shared_client
from headrace.spark.options.source import EARLIEST, LATEST, Positions, SourceOptions
from headrace.spark.source.offsets import (
    DataLossError,
    OffsetRange,
    check_bounds,
    check_complete,
    check_exists,
    resolve,
    select,
)
from headrace.spark.source.reading import read_range
from headrace.types import TopicPartition

log = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """One task: one range of one partition."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class HeadraceBatchReader(DataSourceReader):
    """Plans the ranges of a batch read and reads each of them in a task."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return a task for each partition that has something to read."""
        client = shared_client(self._options.client)
        return [RangePartition(wanted) for wanted in batch_ranges(client, self._options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a range's records as Arrow batches."""
        # Spark turns an empty list of partitions into one partition without content.
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_range(shared_client(self._options.client), partition.wanted, self._options)


def batch_ranges(client: SourceClient, options: SourceOptions) -> list[OffsetRange]:
    """Return what a batch read covers, without empty ranges.

    Raises:
        ConfigError: A topic does not exist, or the offsets given do not fit it.
        DataLossError: Reading should start before what is left, and `failOnDataLoss` is true.
    """
    topology = client.topology(options.selection.names)
    check_exists(options.selection, topology)
    wanted = select(options.selection, topology)
    earliest, latest = client.offsets(wanted, EARLIEST), client.offsets(wanted, LATEST)
    start = _given("startingOffsets", options.starting, wanted, earliest, latest)
    end = _given("endingOffsets", options.ending, wanted, earliest, latest)
    for each, nearest, what in check_bounds(start, earliest, latest):
        if options.fail_on_data_loss:
            raise DataLossError(what)
        log.warning("%s; starting at %d (failOnDataLoss=false)", what, nearest)
        start[each] = nearest
    for each, _, what in check_bounds(end, earliest, latest):
        if end[each] > latest[each]:
            raise ConfigError(f"option endingOffsets: {what}")
    ranges = [OffsetRange(each, start[each], end[each]) for each in wanted]
    for each_range in ranges:
        if each_range.size < 0 and options.starting != "earliest":
            raise ConfigError(
                f"startingOffsets {each_range.start} of {each_range.topic_partition} "
                f"lies behind endingOffsets {each_range.end}"
            )
    return [each_range for each_range in ranges if each_range.size > 0]


def _given(
    option: str,
    given: str | Positions,
    wanted: list[TopicPartition],
    earliest: Positions,
    latest: Positions,
) -> dict[TopicPartition, int]:
    if isinstance(given, str):
        return dict(earliest if given == "earliest" else latest)
    check_complete(option, given, wanted)
    return resolve(given, earliest, latest)
