"""The checkpoint of the high watermarks of a log directory.

A log is opened with the high watermark of the checkpoint, or with its log start offset. An older checkpoint does no
harm, because the replicas raise the high watermark again. An entry above the log end offset would do harm: the log
would reach it again with records that no other replica may have. A crash that cuts the log leaves such an entry, and so
does a deleted topic of the same name. The file is removed then, before the log takes an append.

A log without other replicas is opened with its log end offset. So a directory with such logs only gets the file at a
clean shutdown, which a change of the replicas before the next start may need.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from headrace.core.log.files.disk_errors import is_passing
from headrace.core.log.files.high_watermark_file import (
    HIGH_WATERMARK_FILE,
    decode_high_watermarks,
    encode_high_watermarks,
    entry_of,
)
from headrace.core.log.partition_log import PartitionLog
from headrace.ports import FileSystem, Journal
from headrace.types import TopicPartition

CHECKPOINT_INTERVAL_MS: Final = 5_000
"""The time between two checkpoints in milliseconds; the default, which is Kafka's."""


class HighWatermarks:
    """The content of the checkpoint, and the time of the next one."""

    __slots__ = (
        "_entries",
        "_failed",
        "_files",
        "_is_periodic",
        "_is_put_off",
        "_is_stored",
        "_journal",
        "_logs",
        "_offsets",
        "follows_sync",
        "interval_ms",
        "next_ms",
    )

    def __init__(
        self,
        files: FileSystem,
        logs: Mapping[TopicPartition, PartitionLog],
        failed: Container[TopicPartition],
        journal: Journal,
    ) -> None:
        """Read the checkpoint of a directory.

        Args:
            files: The directory.
            logs: The open logs, to which others add and from which they remove.
            failed: The partitions whose logs could not be opened. Their entries stay in the checkpoint.
            journal: Logs a checkpoint for which there is no space.
        """
        self._files = files
        self._logs = logs
        self._failed = failed
        self._journal = journal
        self._offsets = decode_high_watermarks(files.read_file(HIGH_WATERMARK_FILE))
        """The high watermarks of the last checkpoint."""
        self._entries = {name: entry_of(name, offset) for name, offset in self._offsets.items()}
        """The lines of the last checkpoint."""
        self._is_stored = bool(self._offsets)
        """Whether the file has the last checkpoint."""
        self._is_periodic = False
        """Whether a log with other replicas was opened."""
        self._is_put_off = False
        """Whether the disk was full at the last checkpoint, which was logged."""
        self.follows_sync = False
        """Whether the next sync is to call `moved`: the checkpoint is periodic, and no time is set."""
        self.interval_ms = CHECKPOINT_INTERVAL_MS
        self.next_ms: int | None = None
        """The time of the next checkpoint; None if nothing has changed since the last one."""

    def of(self, partition: TopicPartition) -> int:
        """Return the high watermark with which a log is opened; 0 if it is unknown."""
        return self._offsets.get(partition, 0)

    def opened(self, log: PartitionLog) -> None:
        """Remove the file if it has a high watermark above the log end offset. Called before the first append."""
        if self._is_stored and self.of(log.topic_partition) > log.log_end_offset:
            self._files.remove(HIGH_WATERMARK_FILE)
            self._files.sync_directory("")
            self._is_stored = False

    def begin(self) -> None:
        """Write the checkpoint periodically from now on: a log with other replicas is opened."""
        if not self._is_periodic:
            self._is_periodic = self.follows_sync = True

    def moved(self, now_ms: int) -> None:
        """Let a checkpoint follow after the interval if `follows_sync`, because high watermarks may have moved."""
        if self.follows_sync:
            self.next_ms, self.follows_sync = now_ms + self.interval_ms, False

    def tick(self, now_ms: int) -> None:
        """Write the checkpoint if it is due. While the high watermarks move, another one follows after the interval.

        Raises:
            OSError: The disk refused the file for another reason than being full.
        """
        if self.next_ms is None or now_ms < self.next_ms:
            return
        self.next_ms = now_ms + self.interval_ms if self.write_if_possible() else None
        self.follows_sync = self.next_ms is None

    def write_if_possible(self) -> bool:
        """Write the checkpoint like `write`. A full disk is logged once: the older checkpoint does no harm.

        Returns:
            Whether another checkpoint is to be tried later: this one was written, or the disk is full.

        Raises:
            OSError: The disk refused the file for another reason than being full.
        """
        try:
            is_written = self.write()
        except OSError as error:
            if not is_passing(error):
                raise
            if not self._is_put_off:
                self._is_put_off = True
                self._journal.warning("checkpoint_not_written", reason=str(error))
            return True
        self._is_put_off = False
        return is_written

    def write(self) -> bool:
        """Write the checkpoint unless the file has it already. Return whether it was written.

        Raises:
            OSError: The file could not be written.
        """
        known = self._offsets
        moved = {
            name: log.high_watermark
            for name, log in self._logs.items()
            if known.get(name, 0) != log.high_watermark
        }
        gone = [name for name in known if name not in self._logs and name not in self._failed]
        if not moved and not gone and self._is_stored:
            return False
        entries = self._entries | {name: entry_of(name, offset) for name, offset in moved.items()}
        offsets = known | moved
        for name in gone:
            del entries[name], offsets[name]
        if not entries and not self._is_stored:
            return False
        self._files.write_file(HIGH_WATERMARK_FILE, encode_high_watermarks(entries.values()))
        self._entries, self._offsets, self._is_stored = entries, offsets, True
        return True
