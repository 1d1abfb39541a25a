"""The log of a replica that follows a leader: appends, truncations, and a new beginning."""

from __future__ import annotations

from headrace.broker.replication.partition import Partition
from headrace.broker.replication.replicas import Replicas
from headrace.core.log import PartitionSpec
from headrace.core.replica.following import Fetched, offsets_after
from headrace.types import Buffer


class FollowerLogs:
    """Changes the logs of partitions as their leaders say. All errors of the file system are those of a follower."""

    __slots__ = ("_replicas",)

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def append(self, partition: Partition, records: Buffer, now_ms: int) -> None:
        """Append batches of the leader.

        Raises:
            ApiError: The batches are damaged or do not continue the log, or the log directory has failed or is full.
        """
        log, log_dir = partition.log, partition.log_dir
        if not partition.is_internal:
            log_dir.space.require()
        try:
            log.append_replicated(records, now_ms=now_ms)
        except OSError as error:
            raise self._replicas.store.refused(log_dir, error, now_ms, len(records)) from error
        log_dir.space.appended(len(records), now_ms)
        if partition.sync_interval_ms:
            log_dir.background.written(log, partition.sync_interval_ms, now_ms)

    def take_offsets(self, partition: Partition, fetched: Fetched, now_ms: int) -> bool:
        """Take the leader's high watermark and log start offset, together: below the start the logs may differ.

        Returns:
            Whether the log start offset has changed.
        """
        log = partition.log
        high_watermark, log_start_offset = offsets_after(fetched, log)
        log.advance_high_watermark(high_watermark)
        if log_start_offset <= log.log_start_offset:
            return False
        log.advance_log_start_offset(log_start_offset)
        partition.log_dir.logs.delete_below_start([log], now_ms)
        return True

    def truncate(self, partition: Partition, end_offset: int, now_ms: int) -> None:
        """Remove the records from an offset on.

        Raises:
            ApiError: The offset lies below the high watermark.
            StorageError: The log is damaged or has failed.
            OSError: A file operation failed.
        """
        partition.log_dir.logs.truncate(partition.log, end_offset, now_ms)

    def begin_at(self, partition: Partition, offset: int, now_ms: int) -> None:
        """Remove all records, and begin an empty log at an offset.

        Raises:
            OSError: A file operation failed.
        """
        logs, name, log = partition.log_dir.logs, partition.topic_partition, partition.log
        spec = PartitionSpec(name, logs.topic_id(name), log.config, is_replicated=True)
        partition.log_dir.background.forget(log)
        partition.log = logs.truncate_fully_and_start_at(spec, offset, now_ms)
        partition.log.advance_high_watermark(offset)
        partition.log.on_dirty = None if partition.sync_interval_ms else logs.mark_dirty
