"""The reading side of a partition's log: its offsets, its batches, and its leader epochs.

`PartitionLog` is a `ReadableLog` that also changes. The modules beside this one need no more than this class.
"""

from __future__ import annotations

from headrace.core.log.config import LogConfig
from headrace.core.log.index.leader_epochs import LeaderEpochCache
from headrace.core.log.producers.producer_state import ProducerStates
from headrace.core.log.reading.time_lookup import (
    TimestampOffset,
    at_once,
    lookup_newest,
    lookup_timestamp,
)
from headrace.core.log.segments.segments import Segments
from headrace.errors import OffsetOutOfRangeError
from headrace.types import FileRange, TopicPartition


class ReadableLog:
    """A log that can be read. Its offsets and segments change as the log changes."""

    __slots__ = (
        "config",
        "epochs",
        "high_watermark",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "segments",
        "topic_partition",
    )

    def __init__(
        self,
        config: LogConfig,
        segments: Segments,
        epochs: LeaderEpochCache,
        producers: ProducerStates,
        *,
        topic_partition: TopicPartition,
        log_start_offset: int,
        high_watermark: int | None = None,
    ) -> None:
        """Begin with what was loaded.

        Args:
            config: The topic's settings.
            segments: The segments.
            epochs: The leader epochs of the batches in the segments.
            producers: The state of the producers after these batches.
            topic_partition: The partition of this log.
            log_start_offset: The first offset that readers may read. The segments may begin later, or end earlier.
            high_watermark: The end of what is known to be committed; None if everything is.
        """
        self.config = config
        """The topic's settings; may be replaced at any time."""
        self.segments = segments
        """The segments of the log, oldest first."""
        self.epochs = epochs
        """The leader epochs of the log."""
        self.producers = producers
        """The state of idempotent and transactional producers."""
        self.topic_partition = topic_partition
        """The partition of this log."""
        self.log_end_offset = segments.active.end_offset
        """The offset of the next record."""
        self.log_start_offset = min(
            max(log_start_offset, segments.start_offset), self.log_end_offset
        )
        """The first offset that readers may read."""
        epochs.truncate_to_start(self.log_start_offset)
        producers.transactions.start_at(self.log_start_offset)
        self.high_watermark = self.log_end_offset
        if high_watermark is not None and high_watermark < self.log_end_offset:
            self.high_watermark = max(high_watermark, self.log_start_offset)
        """The end of what consumers may read."""
        producers.transactions.high_watermark_moved(self.high_watermark)

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch, -1 before the first."""
        return self.epochs.latest

    @property
    def last_stable_offset(self) -> int:
        """The end of what `read_committed` consumers read: the first undecided transaction, or the high watermark."""
        return min(self.producers.transactions.first_unstable_offset, self.high_watermark)

    @property
    def size_bytes(self) -> int:
        """The size of all segments, in bytes."""
        return sum(segment.size for segment in self.segments)

    @property
    def segment_count(self) -> int:
        """The number of segments, with the active one."""
        return len(self.segments)

    @property
    def producer_count(self) -> int:
        """The number of producers whose state is kept."""
        return len(self.producers)

    def read(
        self, offset: int, *, max_bytes: int, up_to: int, minimum_one: bool
    ) -> FileRange | None:
        """Return whole batches of one segment, from the batch that holds `offset` on.

        The first batch may begin before `offset`; the reader skips the records before. A batch that ends beyond
        `up_to` is left out. The range may be shorter than `max_bytes` allows, but is never empty. It begins with a
        batch that has records, if there is one: compaction leaves batches without records.

        Args:
            offset: The first offset wanted.
            max_bytes: The largest size of the range in bytes.
            up_to: The end offset: the high watermark, the last stable offset, or the log end offset.
            minimum_one: Whether to return the first batch even if it alone is larger than `max_bytes`.

        Returns:
            The range, or None when there is nothing to read (yet).

        Raises:
            OffsetOutOfRangeError: `offset` lies before the log start offset or after the log end offset.
        """
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is outside {self.log_start_offset}..{self.log_end_offset}"
            )
        if offset == self.log_end_offset:
            self.segments.active.remember_end()  # the reader asks again for the next batch
            return None
        if offset >= up_to:
            return None
        if offset >= self.segments.active.base_offset:
            return self.segments.active.read(
                offset, max_bytes=max_bytes, up_to=up_to, minimum_one=minimum_one
            )
        return self.segments.read(offset, max_bytes=max_bytes, up_to=up_to, minimum_one=minimum_one)

    def offset_for_timestamp(
        self, timestamp: int, *, up_to: int | None = None
    ) -> TimestampOffset | None:
        """Return the first record whose timestamp is at least `timestamp`, None without one.

        Args:
            timestamp: In milliseconds since 1970.
            up_to: Records at or above this offset do not count; None for the log end offset.
        """
        limit = self.log_end_offset if up_to is None else up_to
        found = at_once(lookup_timestamp(self.segments, timestamp, self.log_start_offset))
        return found if found is not None and found.offset < limit else None

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """Return the first record that has the largest timestamp of the log (KIP-734), None when there is none."""
        return at_once(lookup_newest(self.segments, self.log_start_offset))

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) as OffsetForLeaderEpoch answers; see `LeaderEpochCache.end_offset_for`."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch that wrote an offset, -1 if unknown."""
        return self.epochs.epoch_at(offset)
