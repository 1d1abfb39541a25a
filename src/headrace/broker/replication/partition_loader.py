"""Opens the logs of partitions, and makes this broker the leader of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from headrace.broker.configs.log_configs import log_config, schedule_config
from headrace.broker.log_dirs.background_sync import OS_INTERVAL_MS
from headrace.broker.log_dirs.log_dir import LogDir
from headrace.broker.replication.partition import Partition
from headrace.broker.replication.replicas import Replicas
from headrace.broker.topic_names import schedule_of
from headrace.config.broker import BrokerConfig
from headrace.config.topic import TopicConfig
from headrace.config.topic_parsing import parse_topic_config
from headrace.core.log import PROTECTED, PartitionSpec, is_passing
from headrace.core.replica.role import Leadership
from headrace.errors import ApiError, StorageError
from headrace.ports import Journal
from headrace.types import TopicPartition


class OpeningSpec(NamedTuple):
    """A partition in the metadata store of which this broker has a replica.

    Attributes:
        topic_partition: The partition.
        topic_id: The id of its topic.
        config: The configuration of its topic.
        directory_id: The id of its log directory; "" for the first one.
        is_replicated: Whether other brokers have replicas.
    """

    topic_partition: TopicPartition
    topic_id: bytes
    config: TopicConfig
    directory_id: str = ""
    is_replicated: bool = False


class PartitionLoader:
    """Opens partitions, and applies the configuration of their topics to them."""

    __slots__ = ("_config", "_journal", "_replicas", "_store", "dirs")

    def __init__(self, config: BrokerConfig, replicas: Replicas, journal: Journal) -> None:
        self._config = config
        self._replicas = replicas
        self._store = replicas.store
        self.dirs = replicas.store.dirs
        """The log directories of this broker."""
        self._journal = journal

    def load(
        self,
        specs: Iterable[OpeningSpec],
        now_ms: int,
    ) -> None:
        """Open the logs of all partitions in the metadata store, and recover them if necessary.

        Args:
            specs: The partitions.
            now_ms: The time.

        Raises:
            OSError: The first directory cannot be read, or the process may not open enough files.
        """
        specs_of: dict[LogDir, list[PartitionSpec]] = {log_dir: [] for log_dir in self.dirs}
        names_of: dict[LogDir, frozenset[str]] = {}
        offline: Counter[str] = Counter()
        for spec in specs:
            log_dir = self.dirs.find(spec.directory_id)
            if log_dir is None:
                offline[spec.directory_id] += 1
                continue
            specs_of.setdefault(log_dir, []).append(self._spec_of_log(spec))
            if log_dir not in names_of:
                names_of[log_dir] = frozenset(log_dir.files.list(""))
            schedule = schedule_of(spec.topic_partition)
            if str(schedule) in names_of[log_dir]:
                of_schedule = PartitionSpec(
                    schedule,
                    spec.topic_id,
                    schedule_config(self._config),
                    is_replicated=spec.is_replicated,
                )
                specs_of[log_dir].append(of_schedule)
        for directory_id, count in offline.items():
            self._journal.error(
                "partitions_offline",
                directory=self.dirs.name_of(directory_id),
                directory_id=directory_id,
                partitions=count,
            )
        for log_dir, of_this in specs_of.items():
            self._load(log_dir, of_this, now_ms)

    def _spec_of_log(self, spec: OpeningSpec) -> PartitionSpec:
        return PartitionSpec(
            spec.topic_partition,
            spec.topic_id,
            log_config(spec.config, self._config),
            is_replicated=spec.is_replicated,
        )

    def _load(self, log_dir: LogDir, specs: Sequence[PartitionSpec], now_ms: int) -> None:
        try:
            log_dir.logs.load(specs, now_ms)
        except OSError as error:
            passing = is_passing(error) and error.errno not in PROTECTED
            if log_dir is self.dirs.first or passing:
                raise
            self._store.fail(log_dir, error)  # the other directories are served
        else:
            log_dir.space.check(now_ms)

    def add(
        self, spec: OpeningSpec, newest: Leadership, *, is_internal: bool, now_ms: int
    ) -> Partition | None:
        """Open a partition, loaded or new, and give it the role that follows from its newest state.

        The leader epoch never decreases for a topic id: if this broker leads, and the log has a higher leader epoch,
        that one counts.

        Returns:
            The partition, or None when it cannot be served: its data is damaged, or its log directory out of service.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR: a file cannot be opened now, for example for want of descriptors.
        """
        log_dir, topic_partition = self.dirs.find(spec.directory_id), spec.topic_partition
        if log_dir is None:
            return None
        if not log_dir.logs.loaded:  # a storage that no topic had until now
            self._load(log_dir, (), now_ms)
        log = log_dir.logs.get(topic_partition)
        if log is None:
            if topic_partition in log_dir.logs.failed:
                return None
            try:
                log = log_dir.logs.open_log(self._spec_of_log(spec), now_ms)
            except (StorageError, OSError) as error:
                if isinstance(error, OSError) and is_passing(error):
                    raise self._store.refused(log_dir, error, None) from error
                self._journal.error(
                    "partition_not_served", partition=str(topic_partition), error=str(error)
                )
                return None
        partition = Partition(topic_partition, log, log_dir, is_internal=is_internal)
        return self._add(partition, spec.config, spec.topic_id, newest)

    def begin_anew(
        self, spec: OpeningSpec, newest: Leadership, *, is_internal: bool, now_ms: int
    ) -> Partition | None:
        """Set the log of a damaged replica aside, and open an empty one, which the leader fills.

        Returns:
            The partition; None if its log directory is out of service.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR: a file operation failed.
            StorageError: The empty log cannot be opened.
        """
        log_dir = self.dirs.find(spec.directory_id)
        if log_dir is None:
            return None
        try:
            log = log_dir.logs.set_aside(self._spec_of_log(spec), now_ms)
        except OSError as error:
            raise self._store.refused(log_dir, error, None) from error
        partition = Partition(spec.topic_partition, log, log_dir, is_internal=is_internal)
        return self._add(partition, spec.config, spec.topic_id, newest)

    def _add(
        self, partition: Partition, config: TopicConfig, topic_id: bytes, newest: Leadership
    ) -> Partition:
        log = partition.log
        self._set_sync_interval(partition, self._sync_interval_ms(partition, config), topic_id)
        partition.max_delay_ms = config.max_delay_ms
        partition.min_insync_replicas = config.min_insync_replicas
        partition.least_acks = config.headrace_acks
        if newest.leader_epoch < log.leader_epoch and newest.leader == self._replicas.broker_id:
            newest = newest._replace(leader_epoch=log.leader_epoch)
        self._replicas.add(partition, newest)
        return partition

    def companion(self, partition: Partition, now_ms: int, *, create: bool) -> Partition | None:
        """Return the schedule of a partition, which is a partition too; None if there is none, or it is damaged."""
        name, log_dir = schedule_of(partition.topic_partition), partition.log_dir
        found = self._replicas.find(name)
        if found is not None and found.schedules is partition:
            return found
        log = log_dir.logs.get(name)
        if log is None:
            if not create or name in log_dir.logs.failed:
                return None
            try:
                log = log_dir.logs.open_log(self._spec_of_schedule(partition), now_ms)
            except (StorageError, OSError) as error:
                if isinstance(error, OSError) and is_passing(error):
                    raise self._store.refused(log_dir, error, now_ms) from error
                self._journal.error("schedule_not_served", partition=str(name), error=str(error))
                return None
        config = parse_topic_config({}, self._config)
        companion = Partition(name, log, log_dir, is_internal=True)
        companion.schedules, partition.companion = partition, companion
        self._add(companion, config, log_dir.logs.topic_id(name), partition.newest)
        companion.least_acks = partition.least_acks
        partition.notify_followers()  # they do not know of it
        return companion

    def begin_schedule_anew(self, partition: Partition, now_ms: int) -> None:
        """Set the damaged schedule of a partition that this broker follows aside, and fetch it from the leader.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR: a file operation failed.
            StorageError: The empty log cannot be opened.
        """
        log_dir = partition.log_dir
        try:
            log_dir.logs.set_aside(self._spec_of_schedule(partition), now_ms)
        except OSError as error:
            raise self._store.refused(log_dir, error, None) from error
        self._replicas.on_follow(partition)  # the leader says again that it has a schedule

    def _spec_of_schedule(self, partition: Partition) -> PartitionSpec:
        topic_id = partition.log_dir.logs.topic_id(partition.topic_partition)
        return PartitionSpec(
            schedule_of(partition.topic_partition),
            topic_id,
            schedule_config(self._config),
            is_replicated=len(partition.newest.replicas) > 1,
        )

    def _sync_interval_ms(self, partition: Partition, config: TopicConfig) -> int:
        if partition.is_internal:
            # A sync in memory has no effect and takes time; the setting of the broker can ask for it nevertheless.
            if not partition.log_dir.in_memory:
                return 0
            config = parse_topic_config({}, self._config)
        interval_ms = config.sync_interval_ms
        return OS_INTERVAL_MS if interval_ms is None else interval_ms

    def _set_sync_interval(self, partition: Partition, interval_ms: int, topic_id: bytes) -> None:
        """Sync the records of a partition in an interval, or before they are acknowledged.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR: the log directory cannot note that a power cut may lose records from now on.
                Nothing is changed.
        """
        log, log_dir = partition.log, partition.log_dir
        if interval_ms and log_dir.unsynced is not None:
            try:
                log_dir.unsynced.add(topic_id)
            except OSError as error:
                raise self._store.refused(log_dir, error, None) from error
        partition.sync_interval_ms = interval_ms
        log.on_dirty = None if interval_ms else log_dir.logs.mark_dirty
        log_dir.background.forget(log)
        if log.synced_offset < log.log_end_offset:
            # Written under the old setting: synced now, which is early enough for any.
            log_dir.logs.mark_dirty(log)
            self._replicas.configured(partition)

    def configure(self, partitions: Iterable[Partition | None], config: TopicConfig) -> None:
        """Apply another configuration of a topic to its partitions."""
        for_logs = log_config(config, self._config)
        for partition in partitions:
            if partition is not None:
                partition.log.config = for_logs
                partition.max_delay_ms = config.max_delay_ms
                partition.least_acks = config.headrace_acks
                if partition.companion is not None:
                    partition.companion.least_acks = config.headrace_acks
                if partition.min_insync_replicas != config.min_insync_replicas:
                    self._replicas.set_min_insync_replicas(partition, config.min_insync_replicas)
                interval_ms = self._sync_interval_ms(partition, config)
                if interval_ms != partition.sync_interval_ms:
                    self._configure_sync(partition, interval_ms)

    def _configure_sync(self, partition: Partition, interval_ms: int) -> None:
        topic_id = partition.log_dir.logs.topic_id(partition.topic_partition)
        # If the directory cannot note the change, its records are synced as before. The log has the error.
        with suppress(ApiError):
            self._set_sync_interval(partition, interval_ms, topic_id)

    def apply(self, partition: Partition, newest: Leadership) -> None:
        """Give a partition that was opened the role that follows from a newer state."""
        self._replicas.apply(partition, newest)

    def broker_config_changed(self, config: BrokerConfig) -> None:
        """Use another configuration of the broker. `configure` applies it to the partitions."""
        self._config = config
        for log_dir in self.dirs:
            log_dir.configure(config)
