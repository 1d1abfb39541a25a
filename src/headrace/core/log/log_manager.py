"""All partition logs of one data directory.

The manager knows what a single log cannot: whether the last shutdown was clean, how far each log was synced
(`log_offsets`), and which logs wait for the next group commit. `upkeep` does the periodic work on the logs.

A group commit, as the broker runs it:

1. Appends make logs dirty.
2. `start_sync` collects the dirty logs into a `SyncBatch`. Later appends belong to the next batch.
3. The shell runs `SyncBatch.run()`, in a thread if it has one.
4. `finish_sync` raises the `synced_offset` of each log, and the broker answers the requests that waited for it. The
   next batch may start.

After one failed sync all logs of the directory have failed: a later success may hide lost data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from headrace.core.log.files.checkpoints import decode_checkpoint, encode_checkpoint
from headrace.core.log.files.disk_errors import could_not_open, is_passing
from headrace.core.log.files.partition_metadata import (
    METADATA_FILE,
    decode_topic_id,
    encode_topic_id,
)
from headrace.core.log.files.sync import RunTasks, SyncTask, run_in_turn
from headrace.core.log.partition_log import PartitionLog
from headrace.core.log.partition_spec import PartitionSpec, checkpoint_key
from headrace.core.log.segments.open_segments import OpenSegments
from headrace.core.log.shared import Shared
from headrace.core.log.upkeep.deletions import Deletions
from headrace.core.log.upkeep.high_watermarks import HighWatermarks
from headrace.core.log.upkeep.log_offsets import LogOffsets
from headrace.core.log.upkeep.sync_batch import SyncBatch, collect
from headrace.core.log.upkeep.upkeep import Upkeep
from headrace.core.meta_properties import claim
from headrace.errors import StorageError
from headrace.ports import FileSystem, Journal
from headrace.types import TopicPartition

CLEAN_FILE: Final = "clean_shutdown"


class LogManager:
    """The logs of one data directory. Open it with `LogManager.open`, then `load` the partitions."""

    def __init__(
        self,
        files: FileSystem,
        journal: Journal,
        *,
        directory_id: str,
        clean: bool,
        run_tasks: RunTasks,
        shared: Shared | None = None,
    ) -> None:
        """Use a directory that `open` has checked."""
        self.directory_id = directory_id
        self._run_tasks = run_tasks
        self._files = files
        self._journal = journal
        self._clean = clean
        self._loaded = False
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._topic_ids: dict[TopicPartition, bytes] = {}
        self._failed: dict[TopicPartition, StorageError] = {}
        self._dirty: dict[PartitionLog, None] = {}
        self._batch: SyncBatch | None = None
        self._failure: OSError | None = None
        self._offsets = LogOffsets(files)
        self.shared = Shared(OpenSegments(journal=journal)) if shared is None else shared
        self.on_truncation: Callable[[PartitionLog, int], object] | None = None
        """Called before a log is truncated, with its new end: makes durable that the log is clean up to there at most.
        None for no call."""
        self.high_watermarks = HighWatermarks(files, self._logs, self._failed, journal)
        """The checkpoint of the high watermarks."""
        self.upkeep = Upkeep(self._logs, self.write_checkpoints, journal)
        self._deletions = Deletions(files, journal)

    @classmethod
    def open(
        cls,
        files: FileSystem,
        *,
        cluster_id: str,
        node_id: int,
        journal: Journal,
        run_tasks: RunTasks = run_in_turn,
        new_id: str = "",
        shared: Shared | None = None,
    ) -> LogManager:
        """Check that a data directory belongs to this broker, and remove the mark of its last clean shutdown.

        Args:
            files: The data directory.
            cluster_id: The cluster to which the directory has to belong.
            node_id: The broker to which the directory has to belong.
            journal: Logs repairs and failures.
            run_tasks: Runs the syncs of a recovery, two for each log. They take far less time in parallel.
            new_id: The id that the directory gets if it has none.
            shared: The bounds that the logs share with logs of other directories; None for bounds of their own.

        Raises:
            StorageError: The directory belongs to another cluster or broker, or has a newer format.
            OSError: A checkpoint cannot be read (nothing was changed), or the mark cannot be removed.
        """
        directory_id = claim(files, cluster_id=cluster_id, node_id=node_id, new_id=new_id)
        clean = decode_checkpoint(CLEAN_FILE, files.read_file(CLEAN_FILE)) is not None
        # First the checkpoints are read. Without recovery points, damage to safe data would look like a torn write.
        manager = cls(
            files,
            journal,
            directory_id=directory_id,
            clean=clean,
            run_tasks=run_tasks,
            shared=shared,
        )
        # The mark is removed before anything changes: after a crash from here on, the logs are recovered.
        files.remove(CLEAN_FILE)
        files.sync_directory("")
        return manager

    # Loading

    def load(self, partitions: Iterable[PartitionSpec], now_ms: int) -> None:
        """Open the logs of all partitions in the metadata, and recover them after a crash.

        A partition whose data is damaged is not served: it is in `failed`, and the others are served. Directories that
        are not in the metadata are left alone and logged.
        """
        self._deletions.finish()
        known: set[str] = set()
        unsynced: list[SyncTask] = []
        for spec in partitions:
            known.add(str(spec.topic_partition))
            try:
                self.open_log(spec, now_ms, unsynced.append)
            except StorageError as error:
                self._failed[spec.topic_partition] = error
                self._journal.error(
                    "partition_not_served", partition=str(spec.topic_partition), reason=str(error)
                )
        self._run_tasks(unsynced)
        for name in self._files.list(""):
            topic, separator, partition = name.rpartition("-")
            if topic and separator and partition.isdigit() and name not in known:
                self._journal.warning("unknown_directory_left_alone", directory=name)
        self._offsets.vouch_for_starts(self._by_key())
        self._loaded = True
        self._clean = False  # nothing is known of a log that is opened from now on
        self.upkeep.begin(now_ms)
        self.high_watermarks.moved(now_ms)

    def open_log(
        self,
        spec: PartitionSpec,
        now_ms: int,
        sync: Callable[[SyncTask], object] = SyncTask.run,
    ) -> PartitionLog:
        """Open a log, or begin a new one. Its directory is created with its first batch.

        Args:
            spec: The partition and its settings.
            now_ms: The wall clock.
            sync: Called with the task that makes recovered data durable. It has to run before the log is used.

        Raises:
            StorageError: The data is damaged.
        """
        partition, name = spec.topic_partition, str(spec.topic_partition)
        if spec.is_replicated:
            self.high_watermarks.begin()
        self._deletions.make_way(name, spec.topic_id)
        key = spec.checkpoint_key
        log = PartitionLog.open(
            self._files,
            name,
            spec.config,
            topic_partition=partition,
            now_ms=now_ms,
            clean=self._clean,
            recovery_point=self._offsets.recovery_point(key),
            log_start_offset=self._offsets.start_offset(key),
            high_watermark=self.high_watermarks.of(partition) if spec.is_replicated else None,
            metadata=encode_topic_id(spec.topic_id),
            journal=self._journal,
            sync=sync,
            shared=self.shared,
        )
        self.high_watermarks.opened(log)
        log.on_dirty = self.mark_dirty
        if self._failure is not None:
            log.fail(self._failure)
        self._logs[partition] = log
        self._topic_ids[partition] = spec.topic_id
        return log

    def mark_dirty(self, log: PartitionLog) -> None:
        """Include a log in the next group commit."""
        self._dirty[log] = None

    # Logs

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """All open logs, by partition."""
        return self._logs

    @property
    def loaded(self) -> bool:
        """Whether `load` has run."""
        return self._loaded

    @property
    def partitions_count(self) -> int:
        """The number of partitions in this directory, including those whose logs could not be opened."""
        return len(self._logs) + len(self._failed)

    @property
    def failed(self) -> Mapping[TopicPartition, StorageError]:
        """The partitions whose logs could not be opened, and the errors."""
        return self._failed

    @property
    def failure(self) -> OSError | None:
        """The error that took the whole directory out of service, None while it is in service."""
        return self._failure

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """Return a partition's log, None if it is not open."""
        return self._logs.get(topic_partition)

    def has(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition is in this directory, even if its log could not be opened."""
        return topic_partition in self._logs or topic_partition in self._failed

    def topic_id(self, topic_partition: TopicPartition) -> bytes:
        """Return the topic id of a partition of this directory whose log is open, or is to begin anew."""
        return self._topic_ids[topic_partition]

    def checkpoint_key(self, topic_partition: TopicPartition) -> str:
        """Return the name of an open log in checkpoints: topic, partition, topic id."""
        return checkpoint_key(topic_partition, self._topic_ids[topic_partition])

    def recovery_point(self, key: str) -> int:
        """Return the offset below which a log is known to be synced, by its `checkpoint_key`."""
        return self._offsets.recovery_point(key)

    def delete_log(self, topic_partition: TopicPartition) -> bool:
        """Delete a partition's log durably. Does nothing if there is none.

        Readers can finish the ranges that they hold. The next `load` finishes a deletion that a crash interrupted.

        Returns:
            Whether the log is deleted. If not, `deletions` tries again later.
        """
        log = self._logs.pop(topic_partition, None)
        self._failed.pop(topic_partition, None)
        topic_id = self._topic_ids.pop(topic_partition, b"")
        if log is not None:
            self._dirty.pop(log, None)
            self.upkeep.forget(log)
            log.abandon()
        self._offsets.forget(checkpoint_key(topic_partition, topic_id))
        return self._deletions.delete(str(topic_partition), topic_id.hex())

    def delete_left_over(
        self, topic_partition: TopicPartition, topic_id: bytes, *, name_is_free: bool
    ) -> bool:
        """Delete the log that a partition of a deleted topic left before a restart of the broker.

        If no new topic has the name (`name_is_free`), a directory that names no topic is deleted too.

        Returns:
            Whether the log is deleted; see `delete_log`.
        """
        content = self._files.read_file(f"{topic_partition}/{METADATA_FILE}")
        if decode_topic_id(content) in ({topic_id, None} if name_is_free else {topic_id}):
            return self.delete_log(topic_partition)
        return True

    # Truncation

    def truncate(self, log: PartitionLog, end_offset: int, now_ms: int) -> int:
        """Remove all batches of a log that end above an offset; see `PartitionLog.truncate_to` and `truncation`.

        Returns:
            The new log end offset.

        Raises:
            OffsetOutOfRangeError: The offset lies below the log start offset or the high watermark.
            StorageError: The log is damaged or has failed.
            OSError: A file operation failed. Unless the error is a passing one, the directory is out of service.
        """
        if self._failure is not None:
            raise self._failure
        remaining = log.truncated_end(end_offset)
        try:
            if remaining < log.log_end_offset:
                self._lower(log, remaining)
            log.truncate_to(end_offset, now_ms=now_ms)
            if log.segments.has_doomed:
                log.purge()
        except OSError as error:
            if not is_passing(error):
                self.fail(error)
            raise
        return remaining

    def _lower(self, log: PartitionLog, end_offset: int) -> None:
        """Make durable that nothing is known of a log beyond an offset."""
        if self.on_truncation is not None:
            self.on_truncation(log, end_offset)
        key = self.checkpoint_key(log.topic_partition)
        self._offsets.lower(key, end_offset, log.log_start_offset)

    def truncate_fully_and_start_at(
        self, spec: PartitionSpec, offset: int, now_ms: int
    ) -> PartitionLog:
        """Delete a log, and begin an empty one at an offset: the leader has deleted what the follower would need next.

        Readers can finish the ranges that they hold of the old log. The call can be repeated after an error.

        Args:
            spec: The partition and its settings.
            offset: The log start offset of the leader.
            now_ms: The wall clock.

        Returns:
            The new log.

        Raises:
            OSError: A file operation failed. Unless the error is a passing one, the directory is out of service.
        """
        if self._failure is not None:
            raise self._failure
        try:
            return self._begin_anew(spec, offset, now_ms)
        except OSError as error:
            if not is_passing(error):
                self.fail(error)
            raise

    def _begin_anew(self, spec: PartitionSpec, offset: int, now_ms: int) -> PartitionLog:
        partition, key = spec.topic_partition, spec.checkpoint_key
        log = self._logs.get(partition)
        if log is not None:
            self._lower(log, 0)
        self._offsets.lower(key, 0, self._offsets.start_offset(key) or 0)
        self.delete_log(partition)
        self._topic_ids[partition] = spec.topic_id  # the partition stays in this directory
        self._deletions.free(str(partition))
        self._offsets.lower(key, 0, offset)
        return self.open_log(spec, now_ms)

    def set_aside(self, spec: PartitionSpec, now_ms: int) -> PartitionLog:
        """Keep the damaged log of a partition under another name, and begin an empty one; see `Deletions.set_aside`.

        Raises:
            StorageError: The empty log cannot be opened.
            OSError: A file operation failed. Unless the error is a passing one, the directory is out of service.
        """
        if self._failure is not None:
            raise self._failure
        try:
            self._offsets.lower(spec.checkpoint_key, 0, 0)
            self._deletions.set_aside(str(spec.topic_partition), spec.topic_id.hex())
            log = self.open_log(spec, now_ms)
        except OSError as error:
            if not is_passing(error):
                self.fail(error)
            raise
        self._failed.pop(spec.topic_partition, None)
        return log

    # Group commit

    @property
    def sync_due(self) -> bool:
        """Whether `start_sync` would return a batch. This check is much cheaper."""
        return bool(self._dirty) and self._batch is None and self._failure is None

    def start_sync(self) -> SyncBatch | None:
        """Collect what has to be made durable.

        With thousands of dirty logs only the first ones are collected. The others follow in the next batches.

        Returns:
            The batch. None if nothing has to be synced, another batch is running, or the directory has failed.
        """
        if self._batch is not None or not self._dirty or self._failure is not None:
            return None
        self._batch = collect(self._dirty)
        return self._batch

    def finish_sync(self, batch: SyncBatch, error: OSError | None = None) -> list[PartitionLog]:
        """Note the outcome of a batch.

        After an error of the disk all logs have failed. After a passing error, for example too few descriptors, nothing
        is lost: the next batch has the same work again, once the caller has marked the logs dirty.

        Returns:
            The logs whose `synced_offset` the batch raised; none after an error.
        """
        self._batch = None
        if error is None:
            return batch.finish()
        batch.put_back()
        if not could_not_open(error):
            self.fail(error)
        return []

    def fail(self, error: OSError) -> None:
        """Take the whole directory out of service: after an error the content of the disk is unknown."""
        if self._failure is not None:
            return
        self._failure = error
        self._journal.error(
            "log_directory_failed", directory=self._files.describe().name, reason=str(error)
        )
        for log in self._logs.values():
            log.fail(error)

    # Time

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `tick` has something to do next, in milliseconds; None for never."""
        earliest, deletions = self.upkeep.next_deadline_ms, self._deletions.next_deadline_ms
        if deletions is not None and (earliest is None or deletions < earliest):
            earliest = deletions
        checkpoint = self.high_watermarks.next_ms
        if checkpoint is not None and (earliest is None or checkpoint < earliest):
            return checkpoint
        return earliest

    def tick(self, now_ms: int) -> None:
        """Apply retention, roll by age, expire producers, and write checkpoints, each when it is due.

        Raises:
            OSError: The disk failed, and the directory is out of service.
        """
        if self._failure is not None:
            return
        try:
            self.upkeep.tick(now_ms)
            self._deletions.tick(now_ms)
            self.high_watermarks.tick(now_ms)
        except OSError as error:
            self.fail(error)
            raise

    def delete_below_start(self, logs: Sequence[PartitionLog], now_ms: int) -> None:
        """Make raised log start offsets durable, then remove the segments below them.

        Raises:
            OSError: The log start offsets are not durable.
        """
        if self._failure is not None:
            raise self._failure
        self.upkeep.delete_below_start(logs, now_ms)

    def write_checkpoints(self) -> None:
        """Write how far the logs are synced and where they start, if that has changed."""
        self._offsets.write(self._by_key())

    def _by_key(self) -> Iterator[tuple[str, PartitionLog]]:
        return ((self.checkpoint_key(partition), log) for partition, log in self._logs.items())

    # End

    def close(self, now_ms: int) -> None:
        """Sync and close all logs, and last of all mark the shutdown as clean if nothing is in doubt.

        No batch may be running. After a failure the files are closed without the mark, and the next start recovers the
        logs.
        """
        assert self._batch is None, "finish the sync batch first"
        clean = self._loaded and not self._failed and self._failure is None
        for log in self._logs.values():
            try:
                log.close(now_ms)
            except OSError as error:
                clean = False
                if self._failure is None:  # else the failure of the directory has been logged
                    self._journal.error(
                        "log_not_closed_clean",
                        partition=str(log.topic_partition),
                        reason=str(error),
                    )
        if clean:
            self.write_checkpoints()
            self.high_watermarks.write_if_possible()
            self._files.write_file(CLEAN_FILE, encode_checkpoint(CLEAN_FILE, ()))
