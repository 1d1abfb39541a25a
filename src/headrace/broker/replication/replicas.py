"""The partitions of this broker as replicas: their roles, appends, and the high watermark.

The durability of a topic decides how far a replica is: with `fsync` its progress is the synced offset; with
`interval:<ms>` and `os` it is the log end offset, and the logs are synced in the background. Internal topics in real
files are always synced. The high watermark is the least progress of the in-sync replicas. If this broker has the only
one, its own progress is the high watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.broker.context import LatestTime
from headrace.broker.log_dirs.log_dir import LogDir
from headrace.broker.replication.log_store import LogStore
from headrace.broker.replication.partition import Partition
from headrace.broker.topic_names import is_schedule
from headrace.config.broker import BrokerConfig
from headrace.core.log import MARKER_SIZE, AppendInfo, Marker, PartitionLog
from headrace.core.replica.isr import InSync, Isr, LagLimits
from headrace.core.replica.progress import own_progress
from headrace.core.replica.role import NO_REGISTRATION, Leadership, Role, next_role
from headrace.errors import ErrorCode
from headrace.types import Buffer, TopicPartition


class Replicas:
    """All partitions of this broker."""

    def __init__(self, store: LogStore, config: BrokerConfig, time: LatestTime) -> None:
        """Begin without partitions; a `PartitionLoader` adds them.

        Args:
            store: The logs of the partitions.
            config: The configuration of this broker.
            time: The time of the latest call of the broker.
        """
        self.broker_id = config.broker_id
        """The id of this broker."""
        self._time = time
        messages = config.replica_lag_max_messages
        self.lag_limits = LagLimits(
            config.replica_lag_time_max_ms, None if messages < 0 else messages
        )
        """The limits of the lag of an in-sync replica."""
        self.registration = NO_REGISTRATION
        """The broker epoch of this process; -1 while the broker is not registered."""
        self.store = store
        """The logs of the partitions."""
        store.on_failed = self._directory_failed
        self._partitions: dict[TopicPartition, Partition] = {}
        self.advanced: dict[Partition, None] = {}
        """Partitions whose high watermark has moved since the broker last settled."""
        self.on_role: Callable[[Partition], object] = lambda _: None
        """Called at once with a partition that this broker leads since now, or leads no longer."""
        self.on_follow: Callable[[Partition], object] = lambda _: None
        """Called at once with a partition of several replicas whose role or leader epoch has changed."""
        self.on_synced_follower: Callable[[Partition], object] = lambda _: None
        """Called with a partition that this broker follows, when its log was synced."""
        self.on_in_sync_change: Callable[[Partition], object] = lambda _: None
        """Called with a partition that this broker leads, when its in-sync replicas may have to change."""
        self.on_lead: Callable[[Partition], object] = lambda _: None
        """Called with a partition of several replicas that this broker leads since now."""
        self.is_suspect = False
        """Whether the lease of this broker's registration has ended, so that another broker may lead its partitions.
        Then requests of every `acks` wait until their records are committed, if the partition has several replicas.
        `trust` ends that.
        """
        self.replicated: dict[Partition, None] = {}
        """The partitions with several replicas that this broker leads."""
        self.open_schedule: Callable[[Partition, int], Partition | None] = lambda _, __: None
        """Called with a partition that this broker follows and the time. Opens the schedule of the partition, or begins
        one. Returns None if it is damaged."""
        self.on_offline: Callable[[Partition], object] = lambda _: None
        """Called at once with a partition that is not served any more, because its log directory has failed."""
        self.on_directory_failed: Callable[[], object] = lambda: None
        """Called when a log directory other than the first has failed, and its partitions are not served any more."""

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
            self._released(partition)
        return partition

    def _released(self, partition: Partition) -> None:
        self.replicated.pop(partition, None)
        if partition.role is Role.FOLLOWER:
            partition.role = Role.OFFLINE
            self.on_follow(partition)

    def _directory_failed(self, log_dir: LogDir) -> None:
        """Fail the requests that wait for the partitions of a failed directory, and serve them no longer."""
        if log_dir is self.store.dirs.first:  # the broker ends
            for partition in self._partitions.values():
                partition.fail_waiters(ErrorCode.KAFKA_STORAGE_ERROR)
            return
        for partition in [each for each in self._partitions.values() if each.log_dir is log_dir]:
            del self._partitions[partition.topic_partition]
            self.advanced.pop(partition, None)
            self._released(partition)
            self.on_offline(partition)
            partition.mark_gone(ErrorCode.KAFKA_STORAGE_ERROR)
        self.on_directory_failed()

    # Roles

    def apply(self, partition: Partition, newest: Leadership) -> None:
        """Give a partition the role that follows from its newest state. A state with an older leader epoch is ignored.

        A partition that loses the role of the leader completes all waiting requests with NOT_LEADER_OR_FOLLOWER. Its
        schedule has the same role.
        """
        led = partition.role is Role.LEADER
        changed = self._apply(partition, newest)
        if partition.companion is not None:
            self._apply(partition.companion, newest)
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
            partition.lead(leader_epoch, self._begin_isr(partition, newest))
            self._progressed(partition)
            if partition.isr is not None:
                self.on_follow(partition)
                if not is_schedule(partition.topic_partition):
                    self.replicated[partition] = None
                    self.on_lead(partition)
        else:
            self.advanced.pop(partition, None)
            self.replicated.pop(partition, None)
            partition.resign(role, leader_epoch)
            self.on_follow(partition)
        return True

    def _begin_isr(self, partition: Partition, newest: Leadership) -> Isr | None:
        """Return the in-sync replicas of a leader; None if this broker has the only replica."""
        assigned = newest.isr | {*newest.replicas}
        if assigned <= {self.broker_id}:
            return None
        if is_schedule(partition.topic_partition):
            isr = None if partition.schedules is None else partition.schedules.isr
            assert isr is not None, "a schedule has the role of its partition"
            return isr.begin_schedule(
                epoch_start_offset=partition.log.log_end_offset, now_ms=self._time.now_ms
            )
        return Isr(
            self.broker_id,
            assigned,
            InSync(newest.isr, newest.elr),
            min_insync_replicas=partition.min_insync_replicas,
            epoch_start_offset=partition.log.log_end_offset,
            limits=self.lag_limits,
            now_ms=self._time.now_ms,
        )

    def _change_isr(self, partition: Partition, newest: Leadership) -> None:
        if partition.isr is not None and not is_schedule(partition.topic_partition):
            partition.isr.newest(InSync(newest.isr, newest.elr))
            self.in_sync_changed(partition)
            self.on_in_sync_change(partition)

    def trust(self) -> None:
        """Respond to requests as their `acks` say: the lease of the broker's registration lasts again."""
        self.is_suspect = False
        for partition in self.replicated:
            self._progressed(partition)
            if partition.companion is not None:
                self._progressed(partition.companion)

    def in_sync_changed(self, partition: Partition) -> None:
        """Move the high watermark after a change of the in-sync replicas, and complete what cannot be acknowledged.

        The schedule of the partition has the same in-sync replicas.
        """
        self._progressed(partition)
        partition.fail_unreachable_waiters()
        if partition.companion is not None and partition.companion.isr is not None:
            self._progressed(partition.companion)
            partition.companion.fail_unreachable_waiters()

    def set_min_insync_replicas(self, partition: Partition, count: int) -> None:
        """Use another value of the topic's `min.insync.replicas`."""
        partition.min_insync_replicas = count
        if partition.isr is not None:
            partition.isr.set_min_insync_replicas(count)
            self.in_sync_changed(partition)
            self.on_in_sync_change(partition)  # with a smaller number the ELR may end

    def follower_fetched(
        self,
        partition: Partition,
        replica: int,
        end_offset: int,
        *,
        log_start_offset: int,
        broker_epoch: int,
    ) -> None:
        """Note the progress of a follower of a partition that this broker leads; see `Isr.fetched`."""
        isr, log = partition.isr, partition.log
        assert isr is not None, "only a partition with several replicas has followers"
        start_moved = isr.fetched(
            replica,
            end_offset,
            log_start_offset=log_start_offset,
            broker_epoch=broker_epoch,
            log_end_offset=log.log_end_offset,
            now_ms=self._time.now_ms,
        )
        if start_moved and partition.watchers:
            partition.notify_watchers()
        if end_offset > log.high_watermark or len(isr.progress.isr) < isr.replicas_count:
            self._progressed(partition)
            if replica not in isr.committed.isr:
                self.on_in_sync_change(partition)

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
        self._appended(partition, log, log_dir, len(records), now_ms)
        return info

    def append_marker(self, partition: Partition, marker: Marker, now_ms: int) -> AppendInfo:
        """Append the marker that ends a transaction. The marker is durable when the high watermark has passed it.

        Markers are also appended when the disk has nearly no space left, because open transactions stop readers.

        Raises:
            ApiError: The marker is refused, or the log directory has failed.
        """
        if partition.refusal:
            raise partition.refused()
        log, log_dir = partition.log, partition.log_dir
        try:
            info = log.append_marker(marker, leader_epoch=partition.leader_epoch, now_ms=now_ms)
        except OSError as error:
            raise self.store.refused(log_dir, error, now_ms, MARKER_SIZE) from error
        self._appended(partition, log, log_dir, MARKER_SIZE, now_ms)
        return info

    def _appended(
        self, partition: Partition, log: PartitionLog, log_dir: LogDir, size: int, now_ms: int
    ) -> None:
        log_dir.space.appended(size, now_ms)
        if partition.acks is not None:
            if partition.sync_interval_ms:
                log_dir.background.written(log, partition.sync_interval_ms, now_ms)
                self._progressed(partition)
            partition.notify_followers()
        elif partition.sync_interval_ms:
            log_dir.background.written(log, partition.sync_interval_ms, now_ms)
            if log.advance_high_watermark(log.log_end_offset):
                self.advanced[partition] = None

    # Progress

    def synced(self, logs: Iterable[PartitionLog]) -> None:
        """Move the high watermarks of partitions whose logs a group commit has synced."""
        for log in logs:
            partition = self._partitions.get(log.topic_partition)
            # The topic may have been deleted, and created again, while its log was synced.
            if partition is None or partition.log is not log or partition.refusal:
                if partition is not None and partition.role is Role.FOLLOWER:
                    self.on_synced_follower(partition)
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
            released = acks.release(own, log.high_watermark, only_committed=self.is_suspect)
            for waiter in released:
                waiter(ErrorCode.NONE)

    def has(self, partition: Partition, acks: int, end_offset: int) -> bool:
        """Return whether the replicas that `acks` asks for have the records up to `end_offset`."""
        log, queues = partition.log, partition.acks
        if log.high_watermark < end_offset and (queues is None or self.is_suspect):
            return False
        if queues is None:
            return True
        own = own_progress(
            log.log_end_offset, log.synced_offset, syncs_first=not partition.sync_interval_ms
        )
        acks = partition.effective_acks(acks)
        return queues.progress.acknowledged_end(acks, own, log.high_watermark) >= end_offset

    def configured(self, partition: Partition) -> None:
        """Move the high watermark after a change of the durability."""
        if not partition.refusal:
            self._progressed(partition)
