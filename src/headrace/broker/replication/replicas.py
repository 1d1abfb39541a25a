"""The partitions of this broker as replicas: their roles, appends, and the high watermark.

The durability of a topic decides how far a replica is: with `fsync` its progress is the synced offset; with
`interval:<ms>` and `os` it is the log end offset, and the logs are synced in the background. Internal topics in real
files are always synced. The high watermark is the least progress of the in-sync replicas. If this broker has the only
one, its own progress is the high watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.broker.log_dirs.log_dir import LogDir
from headrace.broker.replication.log_store import LogStore
from headrace.broker.replication.partition import Partition
from headrace.broker.topic_names import schedule_of
from headrace.core.log import MARKER_SIZE, AppendInfo, Marker, PartitionLog
from headrace.core.replica.acks import AckQueues
from headrace.core.replica.progress import Progress, own_progress
from headrace.core.replica.role import Leadership, Role, next_role
from headrace.errors import ErrorCode
from headrace.types import Buffer, TopicPartition


class Replicas:
    """All partitions of this broker."""

    def __init__(self, store: LogStore, broker_id: int) -> None:
        """Begin without partitions; a `PartitionLoader` adds them."""
        self.broker_id = broker_id
        self.registration = 0
        """The broker epoch of this process."""
        self.store = store
        """The logs of the partitions."""
        store.on_failed = self._directory_failed
        self._partitions: dict[TopicPartition, Partition] = {}
        self.advanced: dict[Partition, None] = {}
        """Partitions whose high watermark has moved since the broker last settled."""
        self.on_role: Callable[[Partition], object] = lambda _: None
        """Called at once with a partition that this broker leads since now, or leads no longer."""
        self.on_offline: Callable[[Partition], object] = lambda _: None
        """Called at once with a partition that is not served any more, because its log directory has failed."""

    @property
    def partitions_count(self) -> int:
        """The number of partitions of this broker."""
        return len(self._partitions)

    def find(self, topic_partition: TopicPartition) -> Partition | None:
        """Return a partition; None if this broker does not serve it."""
        return self._partitions.get(topic_partition)

    def add(self, partition: Partition, newest: Leadership) -> None:
        """Add a partition, and give it its first role."""
        self._partitions[partition.topic_partition] = partition
        self._apply(partition, newest)

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

    # Roles

    def apply(self, partition: Partition, newest: Leadership) -> None:
        """Give a partition the role that follows from its newest state. A state with an older leader epoch is ignored.

        A partition that loses the role of the leader completes all waiting requests with NOT_LEADER_OR_FOLLOWER. Its
        schedule has the same role.
        """
        led = partition.role is Role.LEADER
        changed = self._apply(partition, newest)
        schedule = self._partitions.get(schedule_of(partition.topic_partition))
        if schedule is not None:
            self._apply(schedule, newest)
        if changed and (led or partition.role is Role.LEADER):
            self.on_role(partition)

    def _apply(self, partition: Partition, newest: Leadership) -> bool:
        """Change the role of one log. Return whether the role or its leader epoch has changed."""
        present_epoch, leader_epoch = partition.leader_epoch, newest.leader_epoch
        role = next_role(
            present_epoch, newest, broker_id=self.broker_id, registration=self.registration
        )
        if role is None:
            return False
        partition.newest = newest
        if role is partition.role and leader_epoch == present_epoch:
            if role is Role.LEADER:
                self._change_isr(partition, newest)
            return False
        if role is Role.LEADER:
            is_alone = newest.isr <= {self.broker_id}
            partition.lead(leader_epoch, None if is_alone else Progress(self.broker_id, newest.isr))
            self._progressed(partition)
        else:
            self.advanced.pop(partition, None)
            partition.resign(role, leader_epoch)
        return True

    def _change_isr(self, partition: Partition, newest: Leadership) -> None:
        if partition.acks is not None:
            partition.acks.progress.maximal_isr = newest.isr
        elif newest.isr > {self.broker_id}:
            partition.acks = AckQueues(Progress(self.broker_id, newest.isr))
        self._progressed(partition)

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
        if partition.refusal:
            raise partition.refused()
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
        if partition.refusal:
            raise partition.refused()
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
            if partition.acks is not None:
                self._progressed(partition)
            elif log.advance_high_watermark(log.log_end_offset):
                self.advanced[partition] = None

    # Progress

    def synced(self, logs: Iterable[PartitionLog]) -> None:
        """Move the high watermarks of partitions whose logs a group commit has synced."""
        for log in logs:
            partition = self._partitions.get(log.topic_partition)
            # The topic may have been deleted, and created again, while its log was synced.
            if partition is None or partition.log is not log or partition.refusal:
                continue
            if partition.acks is not None:
                self._progressed(partition)
            elif log.advance_high_watermark(log.synced_offset):
                self.advanced[partition] = None

    def _progressed(self, partition: Partition) -> None:
        """Move the high watermark after progress of the leader, or a change of the in-sync replicas."""
        log, acks = partition.log, partition.acks
        own = end = own_progress(
            log.log_end_offset, log.synced_offset, syncs_first=not partition.sync_interval_ms
        )
        if acks is not None:
            end = acks.progress.high_watermark(
                own, present=log.high_watermark, log_end_offset=log.log_end_offset
            )
        if log.advance_high_watermark(end):
            self.advanced[partition] = None
        if acks is not None:
            for waiter in acks.release(own, log.high_watermark):
                waiter(ErrorCode.NONE)

    def has(self, partition: Partition, acks: int, end_offset: int) -> bool:
        """Return whether the replicas that `acks` asks for have the records up to `end_offset`."""
        log, queues = partition.log, partition.acks
        if queues is None:
            return log.high_watermark >= end_offset
        own = own_progress(
            log.log_end_offset, log.synced_offset, syncs_first=not partition.sync_interval_ms
        )
        return queues.progress.acknowledged_end(acks, own, log.high_watermark) >= end_offset

    def configured(self, partition: Partition) -> None:
        """Move the high watermark after a change of the durability."""
        if not partition.refusal:
            self._progressed(partition)
