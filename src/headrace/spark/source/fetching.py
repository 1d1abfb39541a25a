"""Fetching the ranges of a task, in their order: what is asked for in each round, and what missing records mean.

One round is one request to each broker concerned. It asks for the first range that is not read to its end, and for
those behind it as long as all before them are expected to end with this round; so a task of a hundred small ranges
takes one round, and of large ones no more is fetched than is soon wanted.
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
"""What is asked for of one partition, unless its batches are larger or less is left to read."""
ROUND_BYTES: Final = 16 << 20
"""What is asked for in one round, unless one partition's share is more."""
_LEAST_BYTES: Final = 64 << 10
_ASSUMED_BYTES: Final = 256
"""Of an offset, as long as nothing has come."""
_MARGIN: Final = 1.25
_RETRY_PAUSE_S: Final = 0.1

_EXTENT: Final = struct.Struct(">qi11xi")
"""Base offset, batch length and last offset delta of a batch's header."""


class FetchedPart(NamedTuple):
    """What one fetch returned for one of the ranges."""

    number: int
    """Which of them."""
    fetched: FetchedPartition


class _Cursor:
    """How far one range has been fetched."""

    __slots__ = ("bytes", "held", "largest", "number", "position", "wanted")

    def __init__(self, number: int, wanted: OffsetRange) -> None:
        self.number = number
        self.wanted = wanted
        self.position = wanted.start
        self.held: deque[FetchedPartition] = deque()
        """What came before its turn."""
        self.bytes = 0
        self.largest = 0

    @property
    def done(self) -> bool:
        return self.position >= self.wanted.end

    def expected_bytes(self) -> int:
        """Return what is left of it, by what has come so far."""
        offsets = self.position - self.wanted.start
        mean = self.bytes / offsets if self.bytes and offsets else _ASSUMED_BYTES
        return max(_LEAST_BYTES, int(_MARGIN * mean * (self.wanted.end - self.position)))

    def fetch_bytes(self) -> int:
        """Return how much to ask for."""
        return min(self.expected_bytes(), max(PARTITION_BYTES, 2 * self.largest))

    def add(self, fetched: FetchedPartition) -> None:
        """Take over what was fetched; what has a whole batch waits for its turn.

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
    """Yield where each batch ends, its size and the offset after it; the last may be cut off."""
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
    """Yield what the brokers have of ranges, one range after the other; batches may begin before and end behind them.

    Args:
        client: The cluster.
        ranges: What to fetch; those of one partition by offset.
        options: Of the read; `poll_timeout_ms` bounds how long nothing may come.
        clock: Seconds that only grow.
        pause: How to wait between attempts.

    Raises:
        DataLossError: Records of a range are gone, and `failOnDataLoss` is true.
        ApiError: A broker refused, or the rest of a range did not come in time.
        TransportError: No broker answered in time.
    """
    cursors = [_Cursor(number, wanted) for number, wanted in enumerate(ranges)]
    first = True
    for head in cursors:
        deadline, advanced = 0.0, True
        while True:
            while head.held:
                yield FetchedPart(head.number, head.held.popleft())
            if head.done:
                break
            if advanced:  # the time that what came took to be consumed does not count
                deadline = clock() + options.poll_timeout_ms / 1000
            before = head.position
            fetched = _fetch(client, cursors, options, first=first)
            first, advanced = False, head.position > before
            if advanced:
                continue
            if clock() > deadline:
                head.position = _skip_end(client, head.wanted, before, fetched, options)
                advanced = True
            elif fetched.error:
                pause(_RETRY_PAUSE_S)


def _fetch(
    client: SourceClient, cursors: Sequence[_Cursor], options: SourceOptions, *, first: bool
) -> FetchedPartition:
    """Make one round and take what came; return that of the range whose turn it is. Its error may pass.

    Fetches go by a topic's name. What was fetched before metadata names a topic's old id is of that topic, so a task
    asks for it when it has the answer to its first round and, if there are more, to its last.
    """
    asked = _ask(cursors)
    fetched = client.fetch(
        {
            each.wanted.topic_partition: FetchPosition(each.position, max_bytes=each.fetch_bytes())
            for each in asked
        }
    )
    if first:
        _pass_over_others(client, cursors, options)
    of_head = FetchedPartition()
    for each in asked:
        found = fetched[each.wanted.topic_partition]
        if each.done:  # passed over just now
            continue
        if each is asked[0]:
            of_head = found
            _take(client, each, found, options)
        elif not found.error:  # an error is looked at when its turn comes
            each.add(found)
    if not first and all(each.done for each in cursors):
        _pass_over_others(client, cursors, options)
    return of_head


def _ask(cursors: Sequence[_Cursor]) -> list[_Cursor]:
    """Return the ranges to ask for in the next round, at least the first."""
    room = ROUND_BYTES - sum(len(part.records) for each in cursors for part in each.held)
    asked: list[_Cursor] = []
    partitions = set()
    for each in cursors:
        if each.done:
            continue
        size = each.fetch_bytes()
        if asked and (size > room or each.wanted.topic_partition in partitions):
            break
        asked.append(each)
        partitions.add(each.wanted.topic_partition)
        room -= size
        if each.expected_bytes() > size:
            break
    return asked


def _take(
    client: SourceClient, head: _Cursor, fetched: FetchedPartition, options: SourceOptions
) -> None:
    """Take what came for the range whose turn it is, unless it is an error that may pass.

    Raises:
        DataLossError: Records of it are gone, and `failOnDataLoss` is true.
        ApiError: The error will not pass by itself.
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
    """Return where reading can go on after the broker said that it has no `position`, or (`at_end`) gave nothing."""
    each = wanted.topic_partition
    first = client.offsets([each], EARLIEST)[each]
    after = client.offsets([each], LATEST)[each]
    if first <= position <= after and not (at_end and position == after):
        return position  # its answer is out of date by now
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


def _pass_over_others(
    client: SourceClient, cursors: Iterable[_Cursor], options: SourceOptions
) -> None:
    """Pass over the ranges of topics that were created again since they were planned; records of others lie there now.

    Raises:
        DataLossError: There are such, and `failOnDataLoss` is true.
    """
    planned = {each.wanted.topic_partition.topic: each.wanted.topic_id for each in cursors}
    names = [name for name in sorted(planned) if planned[name]]
    if not names:
        return

    def changed(found: Topology) -> set[str]:
        return {name for name, each in found.items() if changed_id(planned[name], each.topic_id)}

    others = changed(repeat_until(lambda: client.topology(names), lambda found: not changed(found)))
    for each in cursors:
        wanted = each.wanted
        if wanted.topic_partition.topic in others:
            why = "are gone (the topic was deleted and created again)"
            each.position = _skip(wanted, wanted.start, wanted.end, why, options)
            each.held.clear()


def _skip(wanted: OffsetRange, position: int, resume: int, why: str, options: SourceOptions) -> int:
    """Return where to resume if lost records are no error.

    Raises:
        DataLossError: They are.
    """
    what = f"offsets {position} to {resume - 1} of {wanted.topic_partition} {why}"
    if options.fail_on_data_loss:
        raise DataLossError(what)
    log.warning("%s; going on without them (failOnDataLoss=false)", what)
    return resume


def _skip_end(
    client: SourceClient,
    wanted: OffsetRange,
    position: int,
    fetched: FetchedPartition,
    options: SourceOptions,
) -> int:
    """Return where reading can go on if nothing has come because the log ends before the range, as it did not once.

    Raises:
        DataLossError: It does, and `failOnDataLoss` is true.
        ApiError: There is another reason.
        TransportError: There is none that the broker knows of.
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
