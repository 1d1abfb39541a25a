"""Reading one range of a partition: fetch until its end is reached, and say precisely what is missing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from headrace.errors import ApiError, ErrorCode, TransportError
from headrace.spark.cluster import SourceClient
from headrace.spark.options.source import EARLIEST, LATEST, SourceOptions
from headrace.spark.source.arrow import RangeDecoder
from headrace.spark.source.offsets import DataLossError, OffsetRange
from headrace.spark.source.schema import arrow_schema
from headrace.spark.source.tasks import ReadTask

log = logging.getLogger(__name__)

_RETRY_PAUSE_S = 0.1


def read_task(client: SourceClient, task: ReadTask, options: SourceOptions) -> Iterator[Any]:
    """Yield the records of a task's ranges as Arrow batches."""
    for wanted in task.ranges:
        yield from read_range(client, wanted, options)


def read_range(
    client: SourceClient,
    wanted: OffsetRange,
    options: SourceOptions,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[Any]:
    """Yield the records of a range as Arrow batches.

    Reading the same range again yields the same rows, so that Spark may repeat a task.

    Args:
        client: The cluster.
        wanted: The range.
        options: Of the read; `poll_timeout_ms` bounds how long nothing may come.
        clock: Seconds that only grow.
        pause: How to wait between attempts.

    Raises:
        DataLossError: Records of the range are gone, and `failOnDataLoss` is true.
        ApiError: The broker refused, or the rest of the range did not come in time.
        TransportError: No broker answered in time.
    """
    decoder = RangeDecoder(wanted.topic_partition, wanted.start, wanted.end, arrow_schema(options))
    deadline = clock() + options.poll_timeout_ms / 1000
    while decoder.position < wanted.end:
        before = decoder.position
        fetched = client.fetch(wanted.topic_partition, before)
        if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            decoder.position = _skip_lost(client, wanted, before, options)
        elif fetched.error:
            _refuse_final(fetched.error, wanted)
        else:
            for batch in decoder.feed(fetched.records, fetched.aborted_transactions):
                yield batch.select(options.column_names)
        if decoder.position > before:
            deadline = clock() + options.poll_timeout_ms / 1000
        elif clock() > deadline:
            raise _stalled(wanted, before, fetched.error, options)
        elif fetched.error:
            pause(_RETRY_PAUSE_S)
    for batch in decoder.finish():
        yield batch.select(options.column_names)


def _skip_lost(
    client: SourceClient, wanted: OffsetRange, position: int, options: SourceOptions
) -> int:
    """Return where reading can go on after the broker said that it has no `position`."""
    each = wanted.topic_partition
    first = client.offsets([each], EARLIEST)[each]
    after = client.offsets([each], LATEST)[each]
    if first <= position <= after:  # its answer is out of date by now
        return position
    if position < first:
        resume = min(first, wanted.end)
        what = (
            f"offsets {position} to {resume - 1} of {each} were removed before they were read "
            f"(the log starts at {first})"
        )
    else:
        resume = wanted.end
        what = (
            f"offsets {position} to {resume - 1} of {each} do not exist any more "
            f"(the log ends at {after}: it was truncated, or the topic was created again)"
        )
    if options.fail_on_data_loss:
        raise DataLossError(what)
    log.warning("%s; going on without them (failOnDataLoss=false)", what)
    return resume


def _refuse_final(error: ErrorCode, wanted: OffsetRange) -> None:
    """Raise an error that will not pass by itself."""
    if not error.retriable:
        raise ApiError.for_code(error, f"reading {wanted.topic_partition}")


def _stalled(
    wanted: OffsetRange, position: int, error: ErrorCode, options: SourceOptions
) -> Exception:
    seconds = options.poll_timeout_ms / 1000
    what = (
        f"no records of {wanted.topic_partition} from offset {position} to {wanted.end - 1} came in {seconds:g} s "
        "(option kafkaConsumer.pollTimeoutMs)"
    )
    return ApiError.for_code(error, what) if error else TransportError(what)
