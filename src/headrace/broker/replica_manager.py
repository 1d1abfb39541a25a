"""The partitions of this broker as replicas: append, become durable, move the high watermark, tell who waits.

There is one replica of each partition. What "replicated" means is therefore what the topic's durability says: with
`fsync` the high watermark follows the synced offset; with `interval:<ms>` and `os` the log end offset, and syncs follow
in the background. The broker's own topics are always synced when they lie in real files.

The life of an append with `fsync`:

    1. `append` writes to the page cache; the produce waits on its partition
    2. `start_sync` takes all logs that were written to; the shell runs the batch in a thread, appends go on
    3. `finish_sync` moves the high watermarks; the broker answers produces, fetches and the group coordinator

After the first I/O error nothing is acknowledged any more: the kernel may have dropped what it could not write.
Whoever waits is answered with KAFKA_STORAGE_ERROR and the shell ends the process. A full disk is no such error: what
did not fit was not written, and everything else is as it was (`disk_space`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.broker.background_sync import OS_INTERVAL_MS, BackgroundSync
from headrace.broker.disk_space import DiskSpace
from headrace.broker.partition import Partition
from headrace.config.broker import BrokerConfig
from headrace.config.topic import TopicConfig, parse_topic_config
from headrace.core.log.cleaner import LogCleaner
from headrace.core.log.compaction import Compaction
from headrace.core.log.config import LogConfig
from headrace.core.log.disk_errors import NO_SPACE, is_passing
from headrace.core.log.log_manager import LogManager, PartitionSpec, SyncBatch
from headrace.core.log.partition_log import AppendInfo, PartitionLog
from headrace.core.log.sync import RunTasks, run_in_turn
from headrace.errors import ApiError, ErrorCode, StorageError, StorageUnavailableError
from headrace.ports import FileSystem, Journal, LogDirectory
from headrace.records.batch import TimestampType
from headrace.types import Buffer, TopicPartition


class FailedSync:
    """Stands for a sync after the data directory has failed, so that the shell learns of it in the usual way."""

    __slots__ = ("error",)

    def __init__(self, error: OSError) -> None:
        self.error = error

    @property
    def tasks(self) -> list[FailedSync]:
        """Itself, for a shell that runs the tasks of a batch one by one."""
        return [self]

    def run(self) -> None:
        """Raise the error that made the directory fail."""
        raise self.error


def log_config(config: TopicConfig, broker_config: BrokerConfig) -> LogConfig:
    """Translate a topic's configuration for its logs."""
    policy = config.cleanup_policy.split(",")
    deletes, compacts = "delete" in policy, "compact" in policy
    segment_ms = config.segment_ms
    if compacts:  # only what lies in a sealed segment is ever compacted
        segment_ms = min(segment_ms, config.max_compaction_lag_ms)
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=segment_ms,
        retention_ms=config.retention_ms if deletes else -1,
        retention_bytes=config.retention_bytes if deletes else -1,
        max_message_bytes=config.max_message_bytes,
        message_timestamp_type=TimestampType.LOG_APPEND_TIME
        if config.message_timestamp_type == "LogAppendTime"
        else TimestampType.CREATE_TIME,
        index_interval_bytes=config.index_interval_bytes,
        producer_id_expiration_ms=broker_config.producer_id_expiration_ms,
        compacts=compacts,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        delete_retention_ms=config.delete_retention_ms,
    )


class ReplicaManager:
    """All partitions that this broker holds."""

    def __init__(
        self,
        config: BrokerConfig,
        files: FileSystem,
        journal: Journal,
        *,
        cluster_id: str,
        run_tasks: RunTasks = run_in_turn,
    ) -> None:
        """Claim the data directory; `load` opens the logs.

        Raises:
            StorageError: It belongs to another broker.
        """
        self._config = config
        self._files = files
        self._journal = journal
        self._logs = LogManager.open(
            files,
            cluster_id=cluster_id,
            node_id=config.broker_id,
            journal=journal,
            run_tasks=run_tasks,
        )
        self._logs.upkeep.retention_interval_ms = config.log_retention_check_interval_ms
        self._cleaner = LogCleaner(
            self._logs, files, journal, backoff_ms=config.log_cleaner_backoff_ms
        )
        self._partitions: dict[TopicPartition, Partition] = {}
        self._in_memory = files.describe().in_memory
        self._background = BackgroundSync()
        self._space = DiskSpace(files, config.headrace_log_dir_min_free_bytes, journal)
        self._leader_epoch = 0
        self.advanced: dict[Partition, None] = {}
        """Partitions whose high watermark has moved since the broker last settled."""

    @property
    def partitions_count(self) -> int:
        """How many partitions there are."""
        return len(self._partitions)

    @property
    def failure(self) -> OSError | None:
        """What took the data directory out of service, None while it serves."""
        return self._logs.failure

    @property
    def log_directory(self) -> LogDirectory:
        """The data directory, and the space in it."""
        return self._files.describe()

    # Life of a partition

    def load(
        self,
        specs: Iterable[tuple[TopicPartition, bytes, TopicConfig]],
        leader_epoch: int,
        now_ms: int,
    ) -> None:
        """Open the logs of all partitions that the metadata know, recovering them if need be."""
        self._leader_epoch = leader_epoch
        self._logs.load(
            [
                PartitionSpec(partition, topic_id, log_config(config, self._config))
                for partition, topic_id, config in specs
            ],
            now_ms,
        )
        self._space.check(now_ms)

    def add(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes,
        config: TopicConfig,
        *,
        is_internal: bool,
        now_ms: int,
    ) -> Partition | None:
        """Lead a partition: one that was loaded, or a new one.

        Returns:
            The partition, or None when its data is damaged and it cannot be served.
        """
        log = self._logs.get(topic_partition)
        if log is None:
            if topic_partition in self._logs.failed:
                return None
            spec = PartitionSpec(topic_partition, topic_id, log_config(config, self._config))
            try:
                log = self._logs.open_log(spec, now_ms)
            except (StorageError, OSError) as error:
                self._journal.error(
                    "partition_not_served", partition=str(topic_partition), error=str(error)
                )
                return None
        return self._lead(topic_partition, log, config, is_internal=is_internal)

    def _lead(
        self,
        topic_partition: TopicPartition,
        log: PartitionLog,
        config: TopicConfig,
        *,
        is_internal: bool,
    ) -> Partition:
        # The epoch never goes back for a topic id: should the metadata be older than the log, the log wins.
        leader_epoch = max(self._leader_epoch, log.leader_epoch)
        log.become_leader(leader_epoch)
        # What was recovered has been synced by the recovery; there is no other replica to wait for.
        log.advance_high_watermark(log.log_end_offset)
        partition = Partition(topic_partition, log, leader_epoch, is_internal=is_internal)
        self._set_sync_interval(partition, self._sync_interval_ms(config, is_internal=is_internal))
        self._partitions[topic_partition] = partition
        return partition

    def _sync_interval_ms(self, config: TopicConfig, *, is_internal: bool) -> int:
        if is_internal:
            # In memory a sync has nothing to do and only costs time, unless the broker is to behave as on a disk.
            if not self._in_memory:
                return 0
            config = parse_topic_config({}, self._config)
        interval_ms = config.sync_interval_ms
        return OS_INTERVAL_MS if interval_ms is None else interval_ms

    def _set_sync_interval(self, partition: Partition, interval_ms: int) -> None:
        log = partition.log
        partition.sync_interval_ms = interval_ms
        log.on_dirty = None if interval_ms else self._logs.mark_dirty
        self._background.forget(log)
        if log.synced_offset < log.log_end_offset:
            # Written under the old setting: synced now, which is early enough for any.
            self._logs.mark_dirty(log)
            if interval_ms and log.advance_high_watermark(log.log_end_offset):
                self.advanced[partition] = None

    def configure(self, partitions: Iterable[Partition | None], config: TopicConfig) -> None:
        """Let the logs of a topic work with another configuration from now on."""
        for_logs = log_config(config, self._config)
        for partition in partitions:
            if partition is not None:
                partition.log.config = for_logs
                interval_ms = self._sync_interval_ms(config, is_internal=partition.is_internal)
                if interval_ms != partition.sync_interval_ms:
                    self._set_sync_interval(partition, interval_ms)

    def broker_config_changed(self, config: BrokerConfig) -> None:
        """Use another configuration of the broker; logs get it by `configure`."""
        self._config = config
        self._cleaner.backoff_ms = config.log_cleaner_backoff_ms
        self._space.minimum_bytes = config.headrace_log_dir_min_free_bytes
        if self._space.next_check_ms is None:
            self._space.next_check_ms = 0

    def delete_records(self, offsets: Mapping[Partition, int], now_ms: int) -> None:
        """Move the log start of partitions up to an offset each; that is durable when this returns.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR; the data directory has failed.
        """
        for partition, offset in offsets.items():
            partition.log.advance_log_start_offset(offset)
        try:
            self._logs.delete_below_start([partition.log for partition in offsets], now_ms)
        except OSError as error:
            raise self._failed(error, now_ms) from error
        for partition in offsets:
            partition.notify_watchers()

    def delete(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """Delete partitions and their data durably; whoever waits for them is answered.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR; the data directory has failed.
        """
        for topic_partition in topic_partitions:
            partition = self._partitions.pop(topic_partition, None)
            if partition is not None:
                self.advanced.pop(partition, None)
                self._background.forget(partition.log)
                partition.mark_deleted()
        for topic_partition in topic_partitions:
            self.delete_log(topic_partition)

    def delete_log(self, topic_partition: TopicPartition) -> None:
        """Delete what is on disk of a partition; no error if there is nothing.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR; the data directory has failed.
        """
        try:
            self._logs.delete_log(topic_partition)
        except OSError as error:
            raise self._failed(error, None) from error

    # Appends

    def append(self, partition: Partition, records: Buffer, now_ms: int) -> AppendInfo:
        """Append one batch. It is durable when the high watermark has passed it.

        Raises:
            ApiError: The batch is refused, or the data directory has failed.
        """
        log = partition.log
        if not partition.is_internal:
            self._space.require()
        try:
            info = log.append(
                records,
                leader_epoch=partition.leader_epoch,
                now_ms=now_ms,
                validate=not partition.is_internal,
            )
        except OSError as error:
            raise self._failed(error, now_ms, len(records)) from error
        self._space.appended(len(records), now_ms)
        if partition.sync_interval_ms:
            self._background.written(log, partition.sync_interval_ms, now_ms)
            if log.advance_high_watermark(log.log_end_offset):
                self.advanced[partition] = None
        return info

    def _failed(self, error: OSError, now_ms: int | None, size: int = 0) -> ApiError:
        if not is_passing(error):
            self.fail(error)
        elif error.errno not in NO_SPACE:
            # A segment could not be created, and the log is as it was. It may work the next time.
            self._journal.error("too_many_open_files", error=str(error))
        elif now_ms is not None:
            self._space.ran_out(error, size, now_ms)
        return StorageUnavailableError(str(error))

    # Group commit

    @property
    def sync_due(self) -> bool:
        """Whether `start_sync` would return something."""
        return self._logs.sync_due or self.failure is not None

    def start_sync(self) -> SyncBatch | FailedSync | None:
        """Return what has to be synced, None if nothing has or a sync is under way."""
        if self.failure is not None:
            return FailedSync(self.failure)
        return self._logs.start_sync()

    def finish_sync(self, batch: SyncBatch | FailedSync, error: OSError | None) -> None:
        """Take note of a sync's outcome: high watermarks move, or everybody who waits fails."""
        if isinstance(batch, FailedSync):
            return
        logs = self._logs.finish_sync(batch, error)
        if error is not None:
            self.fail(error)
        for log in logs:
            partition = self._partitions.get(log.topic_partition)
            # The topic may have been deleted, and created again, while its log was synced.
            if (
                partition is not None
                and partition.log is log
                and log.advance_high_watermark(log.synced_offset)
            ):
                self.advanced[partition] = None

    def fail(self, error: OSError) -> None:
        """Take the data directory out of service: all produces that wait, and all that come, fail."""
        self._logs.fail(error)
        for partition in self._partitions.values():
            partition.fail_waiters(ErrorCode.KAFKA_STORAGE_ERROR)

    # Compaction

    @property
    def compaction_due(self) -> bool:
        """Whether `start_compaction` would return something, to be run in a thread."""
        return self._cleaner.due and not self._in_memory and self.failure is None

    def start_compaction(self) -> Compaction | None:
        """Return a round of compaction of which a step is to be run, None if there is none."""
        return self._cleaner.start() if self.compaction_due else None

    def finish_compaction(self, task: Compaction, error: Exception | None, now_ms: int) -> None:
        """Take note of a step's outcome: rewritten segments take the place of the old ones."""
        try:
            self._cleaner.finish(task, error, now_ms)
        except OSError as failure:
            self.fail(failure)

    def _compact_in_memory(self, now_ms: int) -> None:
        """Run one step at once: with files in memory it waits for nothing, and they are not for two threads."""
        task = self._cleaner.start()
        if task is None:
            return
        error: Exception | None = None
        try:
            task.run()
        except (OSError, StorageError) as raised:
            error = raised
        self.finish_compaction(task, error, now_ms)

    # Time

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do next."""
        if self.failure is not None:
            return None
        deadlines = (
            self._logs.upkeep.next_deadline_ms,
            self._background.next_deadline_ms,
            self._space.next_check_ms,
            self._cleaner.next_deadline_ms,
            # With files in memory a step of compaction is done by the tick itself.
            0 if self._in_memory and self._cleaner.due else None,
        )
        return min((at for at in deadlines if at is not None), default=None)

    def tick(self, now_ms: int) -> None:
        """Apply retention, write checkpoints, sync, look at the space and what to compact; each when it is due."""
        try:
            self._logs.tick(now_ms)
            self._cleaner.tick(now_ms)
        except OSError as error:
            self.fail(error)
        self._space.tick(now_ms)
        if self._in_memory:
            self._compact_in_memory(now_ms)
        for log in self._background.due(now_ms):
            self._logs.mark_dirty(log)

    def close(self, now_ms: int) -> None:
        """Sync and close all logs, and mark the shutdown as clean unless the directory has failed."""
        self._logs.close(now_ms)
