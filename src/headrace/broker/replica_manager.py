"""The partitions of this broker as replicas: append, become durable, move the high watermark, tell who waits.

There is one replica of each partition. What "replicated" means is therefore what the topic's durability says: with
`fsync` the high watermark follows the synced offset; with `interval:<ms>` and `os` the log end offset, and syncs follow
in the background. The broker's own topics are always synced when they lie in real files.

The life of an append with `fsync`:

    1. `append` writes to the page cache; the produce waits on its partition
    2. `start_sync` takes all logs that were written to; the shell runs the batch in a thread, appends go on
    3. `finish_sync` moves the high watermarks; the broker answers produces, fetches and the group coordinator

After the first I/O error of a log directory nothing in it is acknowledged any more: the kernel may have dropped what
it could not write. Whoever waits is answered with KAFKA_STORAGE_ERROR, and so is who comes later. The partitions of the
other directories go on, unless it is the first one, which holds the broker's own topics and the metadata: then the
shell ends the process. A full disk is no such error: what did not fit was not written, and everything else is as it
was (`disk_space`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from headrace.broker.configs.log_configs import log_config, schedule_config
from headrace.broker.log_dirs.background_sync import OS_INTERVAL_MS
from headrace.broker.log_dirs.compactions import Compactions
from headrace.broker.log_dirs.group_commit import CommitPart, FailedSync, GroupCommit
from headrace.broker.log_dirs.log_dir import LogDir
from headrace.broker.log_dirs.log_dirs import LogDirs
from headrace.broker.partition import Partition
from headrace.broker.steps import ENTRY_COST, FIRST_BATCH_COST, Work
from headrace.broker.topic_names import schedule_of
from headrace.config.broker import BrokerConfig
from headrace.config.topic import TopicConfig, parse_topic_config
from headrace.core.log import (
    DESCRIPTORS,
    MARKER_SIZE,
    NO_SPACE,
    PROTECTED,
    AppendInfo,
    Marker,
    PartitionLog,
    PartitionSpec,
    Rewriting,
    could_not_open,
    is_passing,
)
from headrace.errors import ApiError, ErrorCode, StorageError, StorageUnavailableError
from headrace.ports import Journal
from headrace.types import Buffer, TopicPartition

MORE_FILES: Final = (
    "clients send it again; if this goes on, raise the limit on open files (ulimit -n, LimitNOFILE)"
)
OPEN_TO_BROKER: Final = (
    "let the user of the broker open its files, and look for free memory; clients send it again"
)


class ReplicaManager:
    """All partitions that this broker holds."""

    def __init__(self, config: BrokerConfig, dirs: LogDirs, journal: Journal) -> None:
        """Work with these log directories; `load` opens the logs."""
        self.dirs = dirs
        self.failure: OSError | None = None
        """What took the first log directory out of service, and the broker with it; None while it serves."""
        self._serving = list(dirs)
        """The directories that have not failed."""
        dirs.on_open = self._serving.append
        self._config = config
        self._journal = journal
        self._partitions: dict[TopicPartition, Partition] = {}
        self._commit: GroupCommit | None = None
        self._compactions = Compactions(dirs, self.fail)
        self._leader_epoch = 0
        self.advanced: dict[Partition, None] = {}
        """Partitions whose high watermark has moved since the broker last settled."""
        self.on_offline: Callable[[Partition], object] = lambda _: None
        """Told at once of a partition that is not served any more because its log directory has failed."""

    @property
    def partitions_count(self) -> int:
        """How many partitions there are."""
        return len(self._partitions)

    # Life of a partition

    def load(
        self,
        specs: Iterable[tuple[TopicPartition, bytes, TopicConfig, str]],
        leader_epoch: int,
        now_ms: int,
    ) -> None:
        """Open the logs of all partitions that the metadata know, recovering them if need be.

        Args:
            specs: Of each partition its name, topic id, configuration, and the id of its log directory.
            leader_epoch: The epoch in which they are led from now on.
            now_ms: The time.

        Raises:
            OSError: The first directory cannot be read, or the process may not open enough files.
        """
        self._leader_epoch = leader_epoch
        specs_of: dict[LogDir, list[PartitionSpec]] = {log_dir: [] for log_dir in self.dirs}
        names_of: dict[LogDir, frozenset[str]] = {}
        offline: Counter[str] = Counter()
        for topic_partition, topic_id, config, directory_id in specs:
            log_dir = self.dirs.find(directory_id)
            if log_dir is None:
                offline[directory_id] += 1
            else:
                spec = PartitionSpec(topic_partition, topic_id, log_config(config, self._config))
                specs_of.setdefault(log_dir, []).append(spec)
                if log_dir not in names_of:
                    names_of[log_dir] = frozenset(log_dir.files.list(""))
                schedule = schedule_of(topic_partition)
                if str(schedule) in names_of[log_dir]:
                    spec = PartitionSpec(schedule, topic_id, schedule_config(self._config))
                    specs_of[log_dir].append(spec)
        for directory_id, count in offline.items():
            self._journal.error(
                "partitions_offline",
                directory=self.dirs.name_of(directory_id),
                directory_id=directory_id,
                partitions=count,
            )
        for log_dir, of_this in specs_of.items():
            self._load(log_dir, of_this, now_ms)

    def _load(self, log_dir: LogDir, specs: Sequence[PartitionSpec], now_ms: int) -> None:
        try:
            log_dir.logs.load(specs, now_ms)
        except OSError as error:
            passing = is_passing(error) and error.errno not in PROTECTED
            if log_dir is self.dirs.first or passing:
                raise
            self.fail(log_dir, error)  # the other directories are served
        else:
            log_dir.space.check(now_ms)

    def add(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes,
        config: TopicConfig,
        *,
        is_internal: bool,
        now_ms: int,
        directory_id: str = "",
    ) -> Partition | None:
        """Lead a partition: one that was loaded, or a new one.

        Returns:
            The partition, or None when it cannot be served: its data is damaged, or its log directory out of service.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR; a file could not be opened now, for want of descriptors say.
        """
        log_dir = self.dirs.find(directory_id)
        if log_dir is None:
            return None
        if not log_dir.logs.loaded:  # a storage that no topic had until now
            self._load(log_dir, (), now_ms)
        log = log_dir.logs.get(topic_partition)
        if log is None:
            if topic_partition in log_dir.logs.failed:
                return None
            spec = PartitionSpec(topic_partition, topic_id, log_config(config, self._config))
            try:
                log = log_dir.logs.open_log(spec, now_ms)
            except (StorageError, OSError) as error:
                if isinstance(error, OSError) and is_passing(error):
                    raise self.refused(log_dir, error, None) from error
                self._journal.error(
                    "partition_not_served", partition=str(topic_partition), error=str(error)
                )
                return None
        return self._lead(topic_partition, log, log_dir, config, is_internal=is_internal)

    def _lead(
        self,
        topic_partition: TopicPartition,
        log: PartitionLog,
        log_dir: LogDir,
        config: TopicConfig,
        *,
        is_internal: bool,
    ) -> Partition:
        # The epoch never goes back for a topic id: should the metadata be older than the log, the log wins.
        leader_epoch = max(self._leader_epoch, log.leader_epoch)
        log.become_leader(leader_epoch)
        # What was recovered has been synced by the recovery; there is no other replica to wait for.
        log.advance_high_watermark(log.log_end_offset)
        partition = Partition(topic_partition, log, log_dir, leader_epoch, is_internal=is_internal)
        self._set_sync_interval(partition, self._sync_interval_ms(partition, config))
        partition.max_delay_ms = config.max_delay_ms
        self._partitions[topic_partition] = partition
        return partition

    def companion(self, partition: Partition, now_ms: int, *, create: bool) -> Partition | None:
        """Return the schedule of a partition as a partition of its own; None if there is none, or it is damaged."""
        name, log_dir = schedule_of(partition.topic_partition), partition.log_dir
        found = self._partitions.get(name)
        if found is not None:
            return found
        log = log_dir.logs.get(name)
        if log is None:
            if not create or name in log_dir.logs.failed:
                return None
            topic_id = log_dir.logs.topic_id(partition.topic_partition)
            try:
                log = log_dir.logs.open_log(
                    PartitionSpec(name, topic_id, schedule_config(self._config)), now_ms
                )
            except (StorageError, OSError) as error:
                if isinstance(error, OSError) and is_passing(error):
                    raise self.refused(log_dir, error, now_ms) from error
                self._journal.error("schedule_not_served", partition=str(name), error=str(error))
                return None
        config = parse_topic_config({}, self._config)
        companion = self._lead(name, log, log_dir, config, is_internal=True)
        companion.schedules = partition
        return companion

    def _sync_interval_ms(self, partition: Partition, config: TopicConfig) -> int:
        if partition.is_internal:
            # In memory a sync has nothing to do and only costs time, unless the broker is to behave as on a disk.
            if not partition.log_dir.in_memory:
                return 0
            config = parse_topic_config({}, self._config)
        interval_ms = config.sync_interval_ms
        return OS_INTERVAL_MS if interval_ms is None else interval_ms

    def _set_sync_interval(self, partition: Partition, interval_ms: int) -> None:
        log, log_dir = partition.log, partition.log_dir
        partition.sync_interval_ms = interval_ms
        log.on_dirty = None if interval_ms else log_dir.logs.mark_dirty
        log_dir.background.forget(log)
        if log.synced_offset < log.log_end_offset:
            # Written under the old setting: synced now, which is early enough for any.
            log_dir.logs.mark_dirty(log)
            if interval_ms and log.advance_high_watermark(log.log_end_offset):
                self.advanced[partition] = None

    def configure(self, partitions: Iterable[Partition | None], config: TopicConfig) -> None:
        """Let the logs of a topic work with another configuration from now on."""
        for_logs = log_config(config, self._config)
        for partition in partitions:
            if partition is not None:
                partition.log.config = for_logs
                partition.max_delay_ms = config.max_delay_ms
                interval_ms = self._sync_interval_ms(partition, config)
                if interval_ms != partition.sync_interval_ms:
                    self._set_sync_interval(partition, interval_ms)

    def broker_config_changed(self, config: BrokerConfig) -> None:
        """Use another configuration of the broker; logs get it by `configure`."""
        self._config = config
        for log_dir in self.dirs:
            log_dir.configure(config)

    def delete_records(self, offsets: Mapping[Partition, int], now_ms: int) -> set[Partition]:
        """Move the log start of partitions up to an offset each; that is durable when this returns.

        Returns:
            The partitions for which it is not: their disk is full, or their log directory has failed.
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
                self.refused(log_dir, error, now_ms)
                refused.update(partitions)
        for partition in offsets:
            partition.notify_watchers()
        return refused

    def delete(self, topic_partitions: Sequence[TopicPartition]) -> Work[bool]:
        """Delete partitions and their data durably, in steps; whoever waits for them is answered.

        Returns:
            Whether all is gone; otherwise some may lie in a directory that is out of service, or is deleted later.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR; a log directory has failed.
        """
        topic_partitions = _with_schedules(topic_partitions)
        for topic_partition in topic_partitions:
            yield ENTRY_COST // 4
            partition = self._partitions.pop(topic_partition, None)
            if partition is not None:
                self.advanced.pop(partition, None)
                partition.log_dir.background.forget(partition.log)
                partition.mark_gone(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        gone = self.dirs.complete
        for log_dir in list(self.dirs):
            for topic_partition in topic_partitions:
                serves = log_dir.failure is None or log_dir is self.dirs.first
                if serves and log_dir.logs.has(topic_partition):
                    gone &= self._delete(log_dir, log_dir.logs.delete_log, topic_partition)
                    yield FIRST_BATCH_COST
        return gone and self.dirs.complete

    def delete_left_over(
        self, topic_partitions: Sequence[TopicPartition], topic_id: bytes, *, name_is_free: bool
    ) -> bool:
        """Delete what an earlier life of the broker has left of a deleted topic; before `load`.

        Returns:
            Whether all is gone; otherwise some may lie in a directory that is missing.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR; a log directory has failed.
        """
        gone = self.dirs.complete
        for log_dir in self.dirs:
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
            raise self.refused(log_dir, error, None) from error

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
        """Append one batch; see `PartitionLog.append`. It is durable when the high watermark has passed it.

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
            raise self.refused(log_dir, error, now_ms, len(records)) from error
        self._appended(partition, len(records), now_ms)
        return info

    def append_marker(self, partition: Partition, marker: Marker, now_ms: int) -> AppendInfo:
        """Append the marker that ends a producer's transaction. It is durable when the high watermark has passed it.

        That is allowed when the disk has nearly run out of space, too: transactions that stay open hold up readers.

        Raises:
            ApiError: The marker is refused, or the log directory has failed.
        """
        log = partition.log
        try:
            info = log.append_marker(marker, leader_epoch=partition.leader_epoch, now_ms=now_ms)
        except OSError as error:
            raise self.refused(partition.log_dir, error, now_ms, MARKER_SIZE) from error
        self._appended(partition, MARKER_SIZE, now_ms)
        return info

    def _appended(self, partition: Partition, size: int, now_ms: int) -> None:
        log, log_dir = partition.log, partition.log_dir
        log_dir.space.appended(size, now_ms)
        if partition.sync_interval_ms:
            log_dir.background.written(log, partition.sync_interval_ms, now_ms)
            if log.advance_high_watermark(log.log_end_offset):
                self.advanced[partition] = None

    def refused(
        self, log_dir: LogDir, error: OSError, now_ms: int | None, size: int = 0
    ) -> ApiError:
        """Take note of an error of the file system, and return what a client is told.

        Args:
            log_dir: Where it happened. It goes out of service, unless the error is a passing one.
            error: The error.
            now_ms: The time, None if it was no append.
            size: How many bytes were to be written.
        """
        if not is_passing(error):
            self.fail(log_dir, error)
        elif error.errno not in NO_SPACE:
            # Nothing has changed. It may work the next time.
            crowded = error.errno in DESCRIPTORS
            event = "too_many_open_files" if crowded else "file_not_opened"
            self._journal.warning(
                event,
                directory=log_dir.name,
                error=str(error),
                remedy=MORE_FILES if crowded else OPEN_TO_BROKER,
            )
            if crowded and now_ms is not None:
                log_dir.relieve(now_ms)
        elif now_ms is not None:
            log_dir.space.ran_out(error, size, now_ms)
        return StorageUnavailableError(str(error))

    # Group commit

    @property
    def sync_due(self) -> bool:
        """Whether `start_sync` would return something."""
        if self.failure is not None:
            return True
        if self._commit is None:
            for log_dir in self._serving:  # asked after every request, hence spelled out
                if log_dir.logs.sync_due:
                    return True
        return False

    def start_sync(self) -> GroupCommit | FailedSync | None:
        """Return what has to be synced, None if nothing has or a sync is under way."""
        if self.failure is not None:
            return FailedSync(self.failure)
        if self._commit is not None:
            return None
        parts = [
            CommitPart(log_dir, batch)
            for log_dir in self._serving
            if (batch := log_dir.logs.start_sync()) is not None
        ]
        if parts:
            self._commit = GroupCommit(parts)
        return self._commit

    def finish_sync(
        self, commit: GroupCommit | FailedSync, error: OSError | None, now_ms: int
    ) -> None:
        """Take note of a sync's outcome: high watermarks move, or who waits for a directory that failed is told.

        Args:
            commit: What `start_sync` returned.
            error: Why it failed as a whole, if it did; what failed of one directory stands in its part.
            now_ms: The time.
        """
        if isinstance(commit, FailedSync):
            return
        self._commit = None
        for part in commit.parts:
            failure = error or part.error
            logs = part.log_dir.logs.finish_sync(part.batch, failure)
            if failure is not None:
                self._not_synced(part, failure, now_ms)
            for log in logs:
                partition = self._partitions.get(log.topic_partition)
                # The topic may have been deleted, and created again, while its log was synced.
                if (
                    partition is not None
                    and partition.log is log
                    and log.advance_high_watermark(log.synced_offset)
                ):
                    self.advanced[partition] = None

    def _not_synced(self, part: CommitPart, error: OSError, now_ms: int) -> None:
        """Take the directory out of service, or have the logs synced later if that could not begin."""
        log_dir = part.log_dir
        if not could_not_open(error):
            self.fail(log_dir, error)
            return
        self._journal.warning("sync_put_off", directory=log_dir.name, reason=str(error))
        for log, _ in part.batch.entries:
            if log_dir.logs.get(log.topic_partition) is log:
                log_dir.background.again(log, now_ms)

    def fail(self, log_dir: LogDir, error: OSError) -> None:
        """Take a log directory out of service: all produces to it that wait, and all that come, fail."""
        log_dir.logs.fail(error)
        if log_dir in self._serving:
            self._serving.remove(log_dir)
        if log_dir is self.dirs.first:  # the broker ends
            self.failure = log_dir.failure
            for partition in self._partitions.values():
                partition.fail_waiters(ErrorCode.KAFKA_STORAGE_ERROR)
            return
        for partition in [each for each in self._partitions.values() if each.log_dir is log_dir]:
            del self._partitions[partition.topic_partition]
            self.advanced.pop(partition, None)
            self.on_offline(partition)
            partition.mark_gone(ErrorCode.KAFKA_STORAGE_ERROR)

    # Compaction

    @property
    def compaction_due(self) -> bool:
        """Whether `start_compaction` would return something, to be run in a thread."""
        return self.failure is None and self._compactions.due

    def start_compaction(self) -> Rewriting | None:
        """Return a round of compaction of which a step is to be run, None if there is none."""
        return self._compactions.start() if self.failure is None else None

    def finish_compaction(self, task: Rewriting, error: Exception | None, now_ms: int) -> None:
        """Take note of a step's outcome: rewritten segments take the place of the old ones."""
        self._compactions.finish(task, error, now_ms)

    # Time

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do next."""
        if self.failure is not None:
            return None
        earliest: int | None = None
        for log_dir in self._serving:
            at = log_dir.next_deadline_ms
            if at is not None and (earliest is None or at < earliest):
                earliest = at
        return earliest

    def tick(self, now_ms: int) -> None:
        """Do what is due in each directory."""
        for log_dir in list(self._serving):
            try:
                log_dir.tick(now_ms)
            except OSError as error:
                self.refused(log_dir, error, now_ms)
            if log_dir.in_memory:
                self._compactions.step_in_memory(log_dir, now_ms)

    def close(self, now_ms: int) -> None:
        """Sync and close all logs, and mark the shutdown as clean in each directory that has not failed.

        Raises:
            OSError: The first directory could not be closed clean.
        """
        for log_dir in self.dirs:
            if log_dir is not self.dirs.first:
                try:
                    log_dir.logs.close(now_ms)
                except OSError as error:
                    self._journal.error(
                        "log_directory_not_closed_clean", directory=log_dir.name, error=str(error)
                    )
        self.dirs.first.logs.close(now_ms)


def _with_schedules(topic_partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    return [*topic_partitions, *map(schedule_of, topic_partitions)]
