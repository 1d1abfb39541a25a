"""Read a task: a thread fetches its ranges ahead, and the caller's thread decodes them to Arrow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from headrace.records.accel import Kernels, kernels
from headrace.spark.options.source import SourceOptions
from headrace.spark.source.arrow import DEFAULT_MAX_ROWS, RangeDecoder
from headrace.spark.source.decoding import decoded
from headrace.spark.source.fetching import FetchedPart, fetch_ranges
from headrace.spark.source.offsets import OffsetRange
from headrace.spark.source.readahead import read_ahead
from headrace.spark.source.schema import arrow_schema, raw_schema
from headrace.spark.source.source_client import SourceClient
from headrace.spark.source.tasks import ReadTask

READ_AHEAD_BYTES: Final = 32 << 20
"""The most bytes that are fetched and not decoded yet, as the brokers sent them."""
_SMALL_BYTES: Final = 1 << 20
"""Arrow batches below this size in bytes are joined: an Arrow batch costs Spark about as much as a hundred rows."""


def read_task(client: SourceClient, task: ReadTask, options: SourceOptions) -> Iterator[Any]:
    """Yield the records of a task's ranges as Arrow batches with decoded values; see `read_ranges` and `decoded`."""
    return decoded(read_ranges(client, task.ranges, options), options, arrow_schema(options))


def read_ranges(
    client: SourceClient,
    ranges: Sequence[OffsetRange],
    options: SourceOptions,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    compiled: Kernels | None = kernels,
) -> Iterator[Any]:
    """Yield the records of ranges as Arrow batches of `raw_schema`, one range after the other.

    The same ranges always have the same rows in the same order, so Spark may repeat a task.

    Args:
        client: The cluster.
        ranges: The ranges to read. Ranges of one partition are in the order of offsets.
        options: The options of the read. `poll_timeout_ms` is the longest time without new records.
        clock: A monotonic clock in seconds.
        pause: Sleeps between attempts, for a number of seconds.
        compiled: The accelerator; None uses the walk in Python.

    Raises:
        DataLossError: Records of a range are gone, and `failOnDataLoss` is true.
        ApiError: A broker refused a request, or returned errors until the time was over.
        TransportError: The brokers returned no records in time.
        CorruptRecordError: A batch does not decode.
    """
    parts = fetch_ranges(client, ranges, options, clock=clock, pause=pause)
    schema = raw_schema(options)
    with closing(read_ahead(parts, _size, READ_AHEAD_BYTES)) as ahead:
        yield from joined(_decoded(ahead, ranges, schema, compiled), schema)


def _size(part: FetchedPart) -> int:
    return len(part.fetched.records)


def _decoded(
    parts: Iterator[FetchedPart],
    ranges: Sequence[OffsetRange],
    schema: Any,
    compiled: Kernels | None,
) -> Iterator[Any]:
    for number, of_range in groupby(parts, key=attrgetter("number")):
        wanted = ranges[number]
        decoder = RangeDecoder(
            wanted.topic_partition, wanted.start, wanted.end, schema, compiled=compiled
        )
        for part in of_range:
            yield from decoder.feed(part.fetched.records, part.fetched.aborted_transactions)
        yield from decoder.finish()


def joined(batches: Iterable[Any], schema: Any) -> Iterator[Any]:
    """Yield Arrow batches. Consecutive small batches are joined."""
    small: list[Any] = []
    rows = size = 0
    for batch in batches:
        rows += batch.num_rows
        size += batch.nbytes
        if small and (rows > DEFAULT_MAX_ROWS or size > _SMALL_BYTES):
            yield _one(small, schema)
            small, rows, size = [], batch.num_rows, batch.nbytes
        small.append(batch)
        if rows >= DEFAULT_MAX_ROWS or size >= _SMALL_BYTES:
            yield _one(small, schema)
            small, rows, size = [], 0, 0
    if small:
        yield _one(small, schema)


def _one(batches: list[Any], schema: Any) -> Any:
    if len(batches) == 1:
        return batches[0]
    (batch,) = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return batch
