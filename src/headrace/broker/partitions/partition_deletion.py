"""Deletes partitions with their data, and the oldest records of partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from headrace.broker.log_dirs.log_dir import LogDir
from headrace.broker.replication.partition import Partition
from headrace.broker.replication.replicas import Replicas
from headrace.broker.topic_names import schedule_of
from headrace.broker.waiting.steps import ENTRY_COST, FIRST_BATCH_COST, Work
from headrace.errors import ErrorCode
from headrace.types import TopicPartition


class PartitionDeletion:
    """Deletes partitions and records. A deletion is durable when it returns."""

    __slots__ = ("_dirs", "_replicas", "_store")

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._store = replicas.store
        self._dirs = replicas.store.dirs

    def delete_records(self, offsets: Mapping[Partition, int], now_ms: int) -> set[Partition]:
        """Move the log start offset of partitions forward. The move is durable on return.

        Returns:
            The partitions for which it is not durable: their disk is full, or their log directory has failed.
        """
        by_dir: dict[LogDir, list[Partition]] = {}
        for partition, offset in offsets.items():
            log = partition.log
            log.advance_log_start_offset(min(offset, max(log.keep_from, log.log_start_offset)))
            by_dir.setdefault(partition.log_dir, []).append(partition)
        refused: set[Partition] = set()
        for log_dir, partitions in by_dir.items():
            try:
                log_dir.logs.delete_below_start([each.log for each in partitions], now_ms)
            except OSError as error:
                self._store.refused(log_dir, error, now_ms)
                refused.update(partitions)
        for partition in offsets:
            partition.notify_watchers()
        return refused

    def delete(self, topic_partitions: Sequence[TopicPartition]) -> Work[bool]:
        """Delete partitions and their data durably, in steps. Requests that wait for them are answered.

        Returns:
            Whether all files are removed. Otherwise some may be in a directory that is out of service, or removed
            later.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR; a log directory has failed.
        """
        yield from self.release(topic_partitions)
        topic_partitions = _with_schedules(topic_partitions)
        gone = self._dirs.complete
        for log_dir in list(self._dirs):
            for topic_partition in topic_partitions:
                serves = log_dir.failure is None or log_dir is self._dirs.first
                if serves and log_dir.logs.has(topic_partition):
                    gone &= self._delete(log_dir, log_dir.logs.delete_log, topic_partition)
                    yield FIRST_BATCH_COST
        return gone and self._dirs.complete

    def release(self, topic_partitions: Sequence[TopicPartition]) -> Work[None]:
        """Serve partitions no longer, in steps. Requests that wait for them are answered; their files stay."""
        for topic_partition in _with_schedules(topic_partitions):
            yield ENTRY_COST // 4
            partition = self._replicas.release(topic_partition)
            if partition is not None:
                partition.log_dir.background.forget(partition.log)
                partition.mark_gone(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def delete_left_over(
        self, topic_partitions: Sequence[TopicPartition], topic_id: bytes, *, name_is_free: bool
    ) -> bool:
        """Delete the files of a deleted topic that an earlier process has left; called before the logs are loaded.

        Returns:
            Whether all files are removed. Otherwise some may be in a directory that is missing.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR; a log directory has failed.
        """
        gone = self._dirs.complete
        for log_dir in self._dirs:
            remove = partial(
                log_dir.logs.delete_left_over, topic_id=topic_id, name_is_free=name_is_free
            )
            for topic_partition in _with_schedules(topic_partitions):
                gone &= self._delete(log_dir, remove, topic_partition)
        return gone

    def _delete(
        self,
        log_dir: LogDir,
        remove: Callable[[TopicPartition], bool],
        topic_partition: TopicPartition,
    ) -> bool:
        try:
            return remove(topic_partition)
        except OSError as error:
            raise self._store.refused(log_dir, error, None) from error


def _with_schedules(topic_partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    return [*topic_partitions, *map(schedule_of, topic_partitions)]
