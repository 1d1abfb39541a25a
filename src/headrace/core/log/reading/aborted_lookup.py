"""The aborted transactions that a `read_committed` reader needs to read a range of a log.

One response lists at most `MAX_LISTED` aborted transactions. When a range has more, the response ends earlier, so that
its list is complete: a reader treats the records of a transaction that is not listed as committed.

A single batch may lie within more aborted transactions than that. Then the response has a few batches, and lists only
the transactions of the producers of these batches. That is enough: a reader looks for aborted transactions by producer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from headrace.core.log.index.aborted_transactions import AbortedTransaction
from headrace.core.log.reading.readable_log import ReadableLog
from headrace.core.log.reading.selective_read import Selected
from headrace.core.log.segments.segment import Segment
from headrace.records.batch import BatchHeader, iterate_headers
from headrace.types import FileRange, Payload

MAX_LISTED: Final = 4096
"""The largest number of aborted transactions that one response lists, over all partitions."""
_FILE_COST: Final = 128
"""The number of aborted transactions that a file counts for if it has to be read."""
_FEW: Final = 64
"""The number of batches in a response that lists only the transactions of their producers."""

Listing = tuple[Payload | None, Sequence[AbortedTransaction]]
"""The part of a range that may be returned, None for nothing, and the aborted transactions that have batches in it."""


class AbortedLookup:
    """Finds the aborted transactions for one response."""

    __slots__ = ("_left",)

    def __init__(self, most: int = MAX_LISTED) -> None:
        """Begin a response that may list `most` aborted transactions."""
        self._left = most

    def within_range(self, log: ReadableLog, offset: int, found: FileRange) -> Listing:
        """Return how much of a range that was read at an offset may be returned, and its aborted transactions.

        Raises:
            StorageError: A file with aborted transactions cannot be read.
        """
        if log.producers.transactions.aborted.last_marker < offset:
            return found, ()
        if self._left <= 0:
            return None, ()
        segment = _segment_of(log, offset, found)
        end = found.position + found.size
        end_offset = log.log_end_offset
        start = max(segment.index.last_position_within(end - 1), found.position)
        for batch in segment.walk(start, end):
            end_offset = batch.next_offset
        first, entries = self._find(log, offset, end_offset)
        if first is None:
            return found, entries
        size = _size_below(segment, found, first)
        if not size:
            size, kept = _few(log, offset, _headers(segment, found))
        else:
            kept = [entry for entry in entries if entry.first_offset < first]
        return FileRange(found.file, found.position, size), self._listed(kept)

    def within_selected(self, log: ReadableLog, found: Selected) -> Listing:
        """Return how much of the batches that were read selectively may be returned, and their aborted transactions.

        Raises:
            StorageError: A file with aborted transactions cannot be read.
        """
        if log.producers.transactions.aborted.last_marker < found.start_offset:
            return found.records, ()
        if self._left <= 0:
            return None, ()
        first, entries = self._find(log, found.start_offset, found.end_offset)
        if first is None:
            return found.records, entries
        assert not isinstance(found.records, FileRange)
        records = memoryview(found.records)
        headers = [header for _, header in iterate_headers(records)]
        size = sum(header.size for header in headers if header.next_offset <= first)
        if not size:
            size, kept = _few(log, found.start_offset, headers)
        else:
            kept = [entry for entry in entries if entry.first_offset < first]
        return bytes(records[:size]), self._listed(kept)

    def _find(
        self, log: ReadableLog, offset: int, end_offset: int
    ) -> tuple[int | None, Sequence[AbortedTransaction]]:
        """Return the aborted transactions of a range, and the offset at which the range has to end.

        The offset is None if the response can list all of them.
        """
        aborted = log.producers.transactions.aborted
        loads = aborted.cache.loads
        entries = aborted.between(offset, end_offset, most=self._left)
        self._left -= _FILE_COST * (aborted.cache.loads - loads)
        most = max(self._left, 0)
        if len(entries) > most:
            return entries[most].first_offset, entries
        return None, self._listed(entries)

    def _listed(self, entries: Sequence[AbortedTransaction]) -> Sequence[AbortedTransaction]:
        self._left -= len(entries)
        return entries


def _segment_of(log: ReadableLog, offset: int, found: FileRange) -> Segment:
    for segment in log.segments.since(offset):
        if segment.file is found.file:
            return segment
    raise AssertionError("a range lies in a segment that is open")


def _size_below(segment: Segment, found: FileRange, offset: int) -> int:
    """Return the number of bytes of a range that lie below an offset at which a batch begins."""
    position = segment.locate(offset) if offset > segment.base_offset else None
    return 0 if position is None else max(0, min(position - found.position, found.size))


def _headers(segment: Segment, found: FileRange) -> Iterable[BatchHeader]:
    for batch in segment.walk(found.position, found.position + found.size):
        yield segment.header_at(batch.position)


def _few(
    log: ReadableLog, offset: int, headers: Iterable[BatchHeader]
) -> tuple[int, list[AbortedTransaction]]:
    """Return the size of the first batches, and the aborted transactions of their producers in them."""
    first = list(islice(headers, _FEW))
    producers = {header.producer_id for header in first}
    aborted = log.producers.transactions.aborted
    kept = aborted.between(offset, first[-1].next_offset, producers=producers)
    return sum(header.size for header in first), kept
