"""The result of opening a log."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.core.log.files.sync import SyncTask
from headrace.core.log.index.leader_epochs import LeaderEpochCache
from headrace.core.log.producers.producer_state import ProducerStates
from headrace.core.log.producers.snapshots import ProducerSnapshots
from headrace.core.log.segments.segment import Segment
from headrace.core.log.shared import Shared
from headrace.ports import Journal
from headrace.types import TopicPartition


@dataclass(slots=True)
class RecoveryReport:
    """The work of a recovery. After a clean shutdown all numbers are 0."""

    scanned_bytes: int = 0
    """Bytes of segments that were read through."""
    truncated_bytes: int = 0
    """Bytes that were cut off at the end of the log."""
    removed_segments: int = 0
    """Segments that were removed after the first unsound batch."""
    reason: str = ""
    """The reason why the end of the log was cut off, "" if it was not."""


@dataclass(slots=True)
class LoadedLog:
    """A log after recovery."""

    segments: list[Segment]
    """The segments, oldest first. Empty if the directory has none."""
    epochs: LeaderEpochCache
    """The leader epochs of all batches."""
    producers: ProducerStates
    """The state of the producers after all batches."""
    log_start_offset: int
    """The first offset that readers may read. The segments may begin later, or end earlier."""
    high_watermark: int | None
    """The end of what is known to be committed; None if everything in the log is."""
    end_offset: int
    """The log end offset."""
    snapshots: ProducerSnapshots
    """The snapshot files of `producers`."""
    shared: Shared
    """The bounds that this log shares with others."""
    caches_current: bool
    """Whether the caches on disk describe the whole log."""
    has_gaps: bool
    """Whether the log may lack offsets in its last segment; see `files.offset_gaps`."""
    unsynced: SyncTask | None
    """The task that makes the checked data durable. It runs before the log is used. None after a clean shutdown."""
    report: RecoveryReport = field(default_factory=RecoveryReport)
    """Report of what was read and repaired."""

    def log_repairs(self, journal: Journal | None, topic_partition: TopicPartition) -> None:
        """Log what was cut off, if anything was."""
        if self.report.reason and journal is not None:
            journal.warning(
                "torn_log_tail_cut_off",
                partition=str(topic_partition),
                reason=self.report.reason,
                truncated_bytes=self.report.truncated_bytes,
                removed_segments=self.report.removed_segments,
                log_end_offset=self.end_offset,
            )
