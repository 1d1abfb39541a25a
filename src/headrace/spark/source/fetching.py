"""Fetch the ranges of a task in order, and find out why records are missing.

A round is one request to each broker concerned. It requests the first range that is not complete, and further ranges
as long as all ranges before them are expected to be complete after this round. So a task of a hundred small ranges
needs one round, and of large ranges only what is consumed soon is fetched.
"""

from __future__ import annotations

import logging
import struct
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from headrace.clients.blocking import FetchedPartition, FetchPosition
from headrace.errors import ApiError, CorruptRecordError, ErrorCode, HeadraceError
from headrace.records.batch import HEADER_SIZE, LOG_OVERHEAD, MIN_BATCH_LENGTH
from headrace.spark.client.contact import repeat_until
from headrace.spark.options.positions import EARLIEST, LATEST
from headrace.spark.options.source import SourceOptions
from headrace.spark.source.offsets import DataLossError, OffsetRange, Topology, changed_id
from headrace.spark.source.source_client import SourceClient
from headrace.spark.source.stalled import stalled
from headrace.types import Buffer

log = logging.getLogger(__name__)

PARTITION_BYTES: Final = 8 << 20
"""The bytes that a round requests of one partition, unless its batches are larger or fewer bytes are left."""
ROUND_BYTES: Final = 16 << 20
"""The bytes that a round requests in all, unless one partition alone needs more."""
_LEAST_BYTES: Final = 64 << 10
_ASSUMED_BYTES: Final = 256
"""The assumed bytes per offset as long as nothing was fetched."""
_MARGIN: Final = 1.25
_RETRY_PAUSE_S: Final = 0.1

_EXTENT: Final = struct.Struct(">qi11xi")
"""Base offset, batch length and last offset delta of a batch's header."""


class FetchedPart(NamedTuple):
    """The result of one fetch for one range."""

    number: int
    """The index of the range in the task."""
    fetched: FetchedPartition


class _RangeFetch:
    """The progress of one range."""

    __slots__ = ("bytes", "held", "largest", "number", "position", "wanted")

    def __init__(self, number: int, wanted: OffsetRange) -> None:
        self.number = number
        self.wanted = wanted
        self.position = wanted.start
        self.held: deque[FetchedPartition] = deque()
        """Results that were fetched while an earlier range was not complete."""
        self.bytes = 0
        self.largest = 0

    @property
    def done(self) -> bool:
        return self.position >= self.wanted.end

    def expected_bytes(self) -> int:
        """Estimate the bytes that are left of the range from what was fetched so far."""
        offsets = self.position - self.wanted.start
        mean = self.bytes / offsets if self.bytes and offsets else _ASSUMED_BYTES
        return max(_LEAST_BYTES, int(_MARGIN * mean * (self.wanted.end - self.position)))

    def fetch_bytes(self) -> int:
        """Return the bytes to request in the next round."""
        return min(self.expected_bytes(), max(PARTITION_BYTES, 2 * self.largest))

    def add(self, fetched: FetchedPartition) -> None:
        """Add a result. A result with a complete batch is held until the caller consumes the range.

        Raises:
            CorruptRecordError: A batch length is smaller than a header.
        """
        self.bytes += len(fetched.records)
        for end, size, next_offset in _extents(fetched.records):
            self.largest = max(self.largest, size)
            if end <= len(fetched.records):
                if end == size:
                    self.held.append(fetched)
                self.position = max(self.position, next_offset)


def _extents(records: Buffer) -> Iterator[tuple[int, int, int]]:
    """Yield the end position, the size and the next offset of each batch. The last batch may be cut off."""
    position = 0
    while position + HEADER_SIZE <= len(records):
        base_offset, length, delta = _EXTENT.unpack_from(records, position)
        if length < MIN_BATCH_LENGTH:
            raise CorruptRecordError(f"batch length {length} at byte {position}")
        position += LOG_OVERHEAD + length
        yield position, LOG_OVERHEAD + length, base_offset + delta + 1


def fetch_ranges(
    client: SourceClient,
    ranges: Iterable[OffsetRange],
    options: SourceOptions,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Generator[FetchedPart, None, None]:
    """Yield fetched batches of ranges, one range after the other. Batches may begin before a range and end after it.

    Args:
        client: The cluster.
        ranges: The ranges to fetch. Ranges of one partition are in the order of offsets.
        options: The options of the read. `poll_timeout_ms` is the longest time without new records.
        clock: A monotonic clock in seconds.
        pause: Sleeps between attempts, for a number of seconds.

    Raises:
        DataLossError: Records of a range are gone, and `failOnDataLoss` is true.
        ApiError: A broker refused a request, or returned errors until the time was over.
        TransportError: The brokers returned no records in time.
    """
    fetches = [_RangeFetch(number, wanted) for number, wanted in enumerate(ranges)]
    first = True
    for head in fetches:
        deadline, advanced = 0.0, True
        while True:
            while head.held:
                yield FetchedPart(head.number, head.held.popleft())
            if head.done:
                break
            if advanced:  # the time in which the caller consumed records does not count
                deadline = clock() + options.poll_timeout_ms / 1000
            before = head.position
            fetched = _fetch(client, fetches, options, first=first)
            first, advanced = False, head.position > before
            if advanced:
                continue
            if clock() > deadline:
                head.position = _skip_end(client, head.wanted, before, fetched, options)
                advanced = True
            elif fetched.error:
                pause(_RETRY_PAUSE_S)


def _fetch(
    client: SourceClient, fetches: Sequence[_RangeFetch], options: SourceOptions, *, first: bool
) -> FetchedPartition:
    """Make one round and add its results. Return the result of the first incomplete range, which may have an error.

    Fetch requests name topics, and a topic may be deleted and created again. If metadata shows the planned topic id
    after a fetch, the fetched records are of the planned topic. So the function compares the ids after the task's
    first round and, if there are several rounds, after its last.
    """
    requested = _next_round(fetches)
    fetched = client.fetch(
        {
            each.wanted.topic_partition: FetchPosition(each.position, max_bytes=each.fetch_bytes())
            for each in requested
        }
    )
    if first:
        _skip_recreated(client, fetches, options)
    of_head = FetchedPartition()
    for each in requested:
        found = fetched[each.wanted.topic_partition]
        if each.done:  # skipped a moment ago, because its topic was created again
            continue
        if each is requested[0]:
            of_head = found
            _take(client, each, found, options)
        elif not found.error:  # an error counts when the range is the first incomplete one
            each.add(found)
    if not first and all(each.done for each in fetches):
        _skip_recreated(client, fetches, options)
    return of_head


def _next_round(fetches: Sequence[_RangeFetch]) -> list[_RangeFetch]:
    """Return the ranges to request in the next round, at least the first incomplete range."""
    space = ROUND_BYTES - sum(len(part.records) for each in fetches for part in each.held)
    requested: list[_RangeFetch] = []
    partitions = set()
    for each in fetches:
        if each.done:
            continue
        size = each.fetch_bytes()
        if requested and (size > space or each.wanted.topic_partition in partitions):
            break
        requested.append(each)
        partitions.add(each.wanted.topic_partition)
        space -= size
        if each.expected_bytes() > size:
            break
    return requested


def _take(
    client: SourceClient, head: _RangeFetch, fetched: FetchedPartition, options: SourceOptions
) -> None:
    """Add the result of the first incomplete range, unless it is a retriable error.

    Raises:
        DataLossError: Records of the range are gone, and `failOnDataLoss` is true.
        ApiError: The error is not retriable.
    """
    if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        head.position = _skip_lost(client, head.wanted, head.position, options)
    elif not fetched.error:
        head.add(fetched)
    elif not fetched.error.retriable:
        raise ApiError.for_code(fetched.error, f"reading {head.wanted.topic_partition}")


def _skip_lost(
    client: SourceClient,
    wanted: OffsetRange,
    position: int,
    options: SourceOptions,
    *,
    at_end: bool = False,
) -> int:
    """Return the offset at which the read continues after the broker answered that `position` is out of range.

    With `at_end` the broker returned no records at `position`, so that a log that ends there is too short, too.
    """
    each = wanted.topic_partition
    first = client.offsets([each], EARLIEST)[each]
    after = client.offsets([each], LATEST)[each]
    if first <= position <= after and not (at_end and position == after):
        return position  # the log has changed since the broker's response
    if position < first:
        resume = min(first, wanted.end)
        why = f"were removed before they were read (the log starts at {first})"
    else:
        resume = wanted.end
        why = (
            f"do not exist any more (the log ends at {after}: it was truncated, or the topic was "
            "created again)"
        )
    return _skip(wanted, position, resume, why, options)


def _skip_recreated(
    client: SourceClient, fetches: Iterable[_RangeFetch], options: SourceOptions
) -> None:
    """Skip the ranges of topics that were created again since the task was planned, because their records are new ones.

    Raises:
        DataLossError: There is such a topic, and `failOnDataLoss` is true.
    """
    planned = {each.wanted.topic_partition.topic: each.wanted.topic_id for each in fetches}
    names = [name for name in sorted(planned) if planned[name]]
    if not names:
        return

    def changed(found: Topology) -> set[str]:
        return {name for name, each in found.items() if changed_id(planned[name], each.topic_id)}

    others = changed(repeat_until(lambda: client.topology(names), lambda found: not changed(found)))
    for each in fetches:
        wanted = each.wanted
        if wanted.topic_partition.topic in others:
            why = "are gone (the topic was deleted and created again)"
            each.position = _skip(wanted, wanted.start, wanted.end, why, options)
            each.held.clear()


def _skip(wanted: OffsetRange, position: int, resume: int, why: str, options: SourceOptions) -> int:
    """Log lost records and return `resume`.

    Raises:
        DataLossError: `failOnDataLoss` is true.
    """
    what = f"offsets {position} to {resume - 1} of {wanted.topic_partition} {why}"
    if options.fail_on_data_loss:
        raise DataLossError(what)
    log.warning("%s; the read continues without them (failOnDataLoss=false)", what)
    return resume


def _skip_end(
    client: SourceClient,
    wanted: OffsetRange,
    position: int,
    fetched: FetchedPartition,
    options: SourceOptions,
) -> int:
    """Return the offset at which the read continues if no records came because the log is shorter than it was planned.

    Raises:
        DataLossError: The log is shorter, and `failOnDataLoss` is true.
        ApiError: The last fetch returned an error.
        TransportError: The brokers returned neither records nor an error.
    """
    if not fetched.error:
        resume = _skip_lost(client, wanted, position, options, at_end=True)
        if resume > position:
            return resume
    raise _stalled(wanted, position, fetched, options)


def _stalled(
    wanted: OffsetRange, position: int, fetched: FetchedPartition, options: SourceOptions
) -> HeadraceError:
    seconds = options.poll_timeout_ms / 1000
    what = (
        f"no records of {wanted.topic_partition} from offset {position} to {wanted.end - 1} came in {seconds:g} s "
        "(option kafkaConsumer.pollTimeoutMs)"
    )
    return stalled(what, fetched)
