"""The effect of compaction on transactions.

The records of aborted transactions are removed, whatever their keys, and do not count as newer values of their keys. A
marker stays as long as a record of its transaction does, and for `delete.retention.ms` after the first round that found
none: readers in the middle of the transaction need it. When the marker of an aborted transaction is removed, so is its
entry among the aborted transactions: a reader that learns of an aborted transaction expects its marker.

All compacted batches lie below the last stable offset, so their transactions are decided.
"""

from __future__ import annotations

from headrace.core.log.cleaning.batch_compaction import (
    Rules,
    compact_batch,
    compact_marker,
)
from headrace.core.log.control_batch import read_marker
from headrace.core.log.index.aborted_transactions import AbortedRanges
from headrace.records.batch import BatchHeader
from headrace.records.rewriting import without_records
from headrace.types import Buffer


class CleanedTransactions:
    """The transactions of one log during one round."""

    __slots__ = ("_with_records", "aborted", "dropped_markers")

    def __init__(self) -> None:
        """Begin at the log's start."""
        self.aborted = AbortedRanges(())
        """The aborted transactions of the segment that is being read."""
        self._with_records: set[int] = set()
        """The producers with a transaction of which a record stays, until its marker is read."""
        self.dropped_markers: set[int] = set()
        """The offsets of the markers of aborted transactions that were removed."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether a batch has records of an aborted transaction."""
        return (
            header.is_transactional
            and not header.is_control
            and self.aborted.hold(header.producer_id, header.base_offset)
        )

    def compact(
        self, header: BatchHeader, batch: Buffer, rules: Rules, *, keep_empty: bool
    ) -> Buffer | None:
        """Return the remaining part of the next batch; see `compact_batch`.

        Raises:
            CorruptRecordError: The records cannot be decoded.
        """
        if header.is_control and header.records_count:
            result = self._compact_marker(header, batch, rules)
        elif (
            header.records_count
            and header.base_offset < rules.end_offset
            and self.is_aborted(header)
        ):
            result = None
        else:
            result = compact_batch(header, batch, rules, keep_empty=keep_empty)
            if (
                header.is_transactional
                and result is not None
                and BatchHeader.parse(result).records_count
            ):
                self._with_records.add(header.producer_id)
            return result
        return without_records(header) if result is None and keep_empty else result

    def _compact_marker(self, header: BatchHeader, batch: Buffer, rules: Rules) -> Buffer | None:
        if header.producer_id in self._with_records:
            self._with_records.remove(header.producer_id)
            return batch
        if header.base_offset >= rules.end_offset:
            return batch
        result = compact_marker(header, batch, rules)
        if result is None and not _commits(batch):
            self.dropped_markers.add(header.base_offset)
        return result


def _commits(batch: Buffer) -> bool:
    marker = read_marker(batch)
    return marker is not None and marker.committed
