"""One round of compaction of one log: keep the last record of each key (`cleanup.policy=compact`).

A log is clean up to its *first dirty offset*, and dirty from there on. In the clean part each key occurs once. A round:

1. reads the keys of the dirty part, as far as it may be compacted, into an `OffsetMap`. When the map is full, the round
   ends there.
2. rewrites the log from its start to that offset, segment by segment, without the records that the map or a delete
   horizon excludes (`batch_compaction`). Neighbouring segments that together stay below `segment.bytes` become one.
3. hands each group of segments over as a `Replacement`, oldest first, before it continues with the next group.

The order, oldest first, makes it safe to drop a tombstone: when its group is rewritten, all older records of its key
have been replaced durably. A round that is given up leaves a correct log that is not yet clean.

`rewriting` rewrites segments in steps. `cleaned_transactions` decides about transactions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from headrace.core.log.cleaning.batch_compaction import Rules
from headrace.core.log.cleaning.cleaned_transactions import CleanedTransactions
from headrace.core.log.cleaning.offset_map import OffsetMap
from headrace.core.log.cleaning.rewriting import Rewriting, batches, cost
from headrace.core.log.index.aborted_transactions import AbortedRanges
from headrace.core.log.partition_log import PartitionLog
from headrace.core.log.segments.segment import Segment
from headrace.ports import FileSystem
from headrace.records.batch import BatchHeader
from headrace.types import Buffer


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """A round of compaction.

    Attributes:
        log: The log to compact.
        segments: All segments that may be compacted, from the first segment of the log on.
        first_dirty_offset: The offset where the dirty part begins.
        dirty_ratio: The share of dirty bytes in all bytes that may be compacted.
        overdue: Whether `max.compaction.lag.ms` requires the round, whatever the share.
    """

    log: PartitionLog
    segments: Sequence[Segment]
    first_dirty_offset: int
    dirty_ratio: float
    overdue: bool

    @property
    def end_offset(self) -> int:
        """The end offset of the part that may be compacted."""
        return self.segments[-1].end_offset


class Compaction(Rewriting):
    """A running round of compaction."""

    def __init__(
        self, files: FileSystem, plan: CompactionPlan, *, now_ms: int, max_keys: int
    ) -> None:
        """Copy what the steps need of the log, which may change meanwhile.

        Args:
            files: The file system that has the log.
            plan: The round to run.
            now_ms: The time of the round.
            max_keys: The largest number of entries in the offset map.
        """
        super().__init__(files, plan.log, plan.segments)
        self._now_ms = now_ms
        self._map = OffsetMap(plan.first_dirty_offset, max_keys)
        self._rules = self._current_rules()
        self._transactions = CleanedTransactions()

    @property
    def clean_end_offset(self) -> int:
        """The offset up to which the log is clean when the round has finished."""
        return self._map.end_offset

    def _current_rules(self) -> Rules:
        return Rules(
            self._map.newest,
            self._map.end_offset,
            self._now_ms,
            self._config.delete_retention_ms,
        )

    def work(self) -> Iterator[int]:
        """Read keys, then rewrite the segments that have some of them."""
        for segment in self.segments:
            if segment.end_offset > self._map.end_offset and not self._map.is_full:
                yield from self._read_keys(segment)
        self._rules = self._current_rules()
        end_offset = self._map.end_offset
        below = takewhile(lambda segment: segment.base_offset < end_offset, self.segments)
        for sources in self.groups(below):
            yield from self.rewrite(sources)

    def _read_keys(self, segment: Segment) -> Iterator[int]:
        offset_map = self._map
        self.begin_segment(segment)
        for header, batch in batches(self._files.open(segment.path), segment):
            if header.next_offset > offset_map.end_offset:
                if self._transactions.is_aborted(header):
                    offset_map.end_offset = header.next_offset
                else:
                    offset_map.add_batch(header, batch)
                yield cost(header)
                if offset_map.end_offset < header.next_offset:
                    return
        offset_map.end_offset = max(offset_map.end_offset, segment.end_offset)

    def begin_segment(self, segment: Segment) -> None:
        """Look up the aborted transactions in a segment."""
        self._transactions.aborted = AbortedRanges(
            self._aborted.between(segment.base_offset, segment.end_offset)
        )

    def retained_part(
        self, header: BatchHeader, batch: Buffer, *, keep_empty: bool
    ) -> Buffer | None:
        """Return the remaining part of the next batch."""
        return self._transactions.compact(header, batch, self._rules, keep_empty=keep_empty)

    def take_dropped_markers(self) -> frozenset[int]:
        """Return the offsets of the markers of aborted transactions that the last group has lost."""
        dropped = frozenset(self._transactions.dropped_markers)
        self._transactions.dropped_markers.clear()
        return dropped
