"""The partitions of this broker as replicas: append, and move the high watermark.

Each partition has one replica. The durability of the topic therefore decides where the high watermark is: with `fsync`
it follows the synced offset; with `interval:<ms>` and `os` it follows the log end offset, and the logs are synced in
the background. Internal topics in real files are always synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.broker.log_dirs.log_dir import LogDir
from headrace.broker.replication.log_store import LogStore
from headrace.broker.replication.partition import Partition
from headrace.core.log import MARKER_SIZE, AppendInfo, Marker, PartitionLog
from headrace.errors import ErrorCode
from headrace.types import Buffer, TopicPartition


class Replicas:
    """All partitions of this broker."""

    def __init__(self, store: LogStore) -> None:
        """Begin without partitions; a `PartitionLoader` adds them."""
        self.store = store
        """The logs of the partitions."""
        store.on_failed = self._directory_failed
        self._partitions: dict[TopicPartition, Partition] = {}
        self.advanced: dict[Partition, None] = {}
        """Partitions whose high watermark has moved since the broker last settled."""
        self.on_offline: Callable[[Partition], object] = lambda _: None
        """Called at once with a partition that is not served any more, because its log directory has failed."""

    @property
    def partitions_count(self) -> int:
        """The number of partitions of this broker."""
        return len(self._partitions)

    def find(self, topic_partition: TopicPartition) -> Partition | None:
        """Return a partition; None if this broker does not serve it."""
        return self._partitions.get(topic_partition)

    def lead(self, partition: Partition) -> None:
        """Add a partition that this broker leads."""
        self._partitions[partition.topic_partition] = partition

    def release(self, topic_partition: TopicPartition) -> Partition | None:
        """Remove a partition, and return it; None if this broker does not serve it."""
        partition = self._partitions.pop(topic_partition, None)
        if partition is not None:
            self.advanced.pop(partition, None)
        return partition

    def _directory_failed(self, log_dir: LogDir) -> None:
        """Fail the requests that wait for the partitions of a failed directory, and serve them no longer."""
        if log_dir is self.store.dirs.first:  # the broker ends
            for partition in self._partitions.values():
                partition.fail_waiters(ErrorCode.KAFKA_STORAGE_ERROR)
            return
        for partition in [each for each in self._partitions.values() if each.log_dir is log_dir]:
            del self._partitions[partition.topic_partition]
            self.advanced.pop(partition, None)
            self.on_offline(partition)
            partition.mark_gone(ErrorCode.KAFKA_STORAGE_ERROR)

    # Appends

    def append(
        self,
        partition: Partition,
        records: Buffer,
        now_ms: int,
        *,
        validate: bool = True,
        in_sequence: bool = True,
    ) -> AppendInfo:
        """Append one batch; see `PartitionLog.append`. The batch is durable when the high watermark has passed it.

        Raises:
            ApiError: The batch is refused, or the log directory has failed.
        """
        log, log_dir = partition.log, partition.log_dir
        if not partition.is_internal:
            log_dir.space.require()
        try:
            info = log.append(
                records,
                leader_epoch=partition.leader_epoch,
                now_ms=now_ms,
                validate=validate and not partition.is_internal,
                in_sequence=in_sequence,
            )
        except OSError as error:
            raise self.store.refused(log_dir, error, now_ms, len(records)) from error
        self._appended(partition, len(records), now_ms)
        return info

    def append_marker(self, partition: Partition, marker: Marker, now_ms: int) -> AppendInfo:
        """Append the marker that ends a transaction. The marker is durable when the high watermark has passed it.

        Markers are also appended when the disk has nearly no space left, because open transactions stop readers.

        Raises:
            ApiError: The marker is refused, or the log directory has failed.
        """
        log = partition.log
        try:
            info = log.append_marker(marker, leader_epoch=partition.leader_epoch, now_ms=now_ms)
        except OSError as error:
            raise self.store.refused(partition.log_dir, error, now_ms, MARKER_SIZE) from error
        self._appended(partition, MARKER_SIZE, now_ms)
        return info

    def _appended(self, partition: Partition, size: int, now_ms: int) -> None:
        log, log_dir = partition.log, partition.log_dir
        log_dir.space.appended(size, now_ms)
        if partition.sync_interval_ms:
            log_dir.background.written(log, partition.sync_interval_ms, now_ms)
            if log.advance_high_watermark(log.log_end_offset):
                self.advanced[partition] = None

    # Progress

    def synced(self, logs: Iterable[PartitionLog]) -> None:
        """Move the high watermarks of partitions whose logs a group commit has synced."""
        for log in logs:
            partition = self._partitions.get(log.topic_partition)
            # The topic may have been deleted, and created again, while its log was synced.
            if (
                partition is not None
                and partition.log is log
                and log.advance_high_watermark(log.synced_offset)
            ):
                self.advanced[partition] = None
