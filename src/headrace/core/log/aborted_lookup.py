"""Which aborted transactions a reader has to know of to read a range of a log."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.log.partition_log import PartitionLog
from headrace.core.log.transactions import AbortedTransaction
from headrace.types import FileRange


def aborted_within(
    log: PartitionLog, offset: int, found: FileRange, up_to: int
) -> Sequence[AbortedTransaction]:
    """Return the aborted transactions that a range has something of, by their first offsets.

    Args:
        log: The log.
        offset: The offset that was read at.
        found: What was read.
        up_to: The end of what could be read.
    """
    transactions = log.producers.transactions
    if not transactions.aborted:
        return ()
    if not transactions.aborted_between(offset, up_to):
        return ()
    return transactions.aborted_between(offset, _end_offset(log, offset, found))


def _end_offset(log: PartitionLog, offset: int, found: FileRange) -> int:
    """Return the offset after the last batch of a range."""
    end, end_offset = found.position + found.size, log.log_end_offset
    for segment in log.segments.since(offset):
        if segment.file is found.file:
            start = max(segment.index.last_position_within(end - 1), found.position)
            for batch in segment.walk(start, end):
                end_offset = batch.next_offset
            break
    return end_offset
