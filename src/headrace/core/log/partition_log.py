"""The log of one partition.

A log has four offsets: the log start offset, the high watermark, the synced offset (the end of what is known to be on
stable storage) and the log end offset. It is used by one thread; only `SyncTask.run` may run in another.

`ReadableLog` reads, `AppendableLog` appends, and this class adds what happens to a log over time: opening, syncs,
compaction, deletion, closing. A crash can only lose what was appended after the last finished sync; see `recovery`.

The three are base classes of each other, and not parts that a log holds. The broker calls `append` once for each batch
and `read` once for each fetched partition: a log that consists of parts would add a call or an attribute lookup to
each. All three also change and read the same offsets.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.log.append.appendable_log import AppendableLog
from headrace.core.log.append.log_files import repair_metadata
from headrace.core.log.config import LogConfig
from headrace.core.log.files.partition_metadata import owner_in
from headrace.core.log.files.sync import SyncTask
from headrace.core.log.offsets import MAX_OFFSET
from headrace.core.log.recovery.loaded import LoadedLog, RecoveryReport
from headrace.core.log.recovery.loader import LogLoader
from headrace.core.log.segments.replacement import Replacement
from headrace.core.log.segments.retention import count_deletable
from headrace.core.log.shared import Shared
from headrace.core.log.truncation import Cut, find_cut
from headrace.errors import OffsetOutOfRangeError
from headrace.ports import File, FileSystem, Journal
from headrace.types import TopicPartition


class PartitionLog(AppendableLog):
    """The log of one partition. Open it with `PartitionLog.open`."""

    __slots__ = (
        "follows",
        "keep_from",
        "on_dirty",
        "recovery",
        "synced_offset",
    )

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        config: LogConfig,
        *,
        topic_partition: TopicPartition,
        now_ms: int,
        loaded: LoadedLog,
        metadata: bytes | None,
    ) -> None:
        """Begin with what recovery has loaded. Callers use `open`."""
        super().__init__(
            files,
            directory,
            config,
            topic_partition=topic_partition,
            now_ms=now_ms,
            loaded=loaded,
            metadata=metadata,
        )
        self.follows = loaded.high_watermark is not None
        """Whether the leader on another broker decides where the log begins, so that retention deletes nothing here.
        True for a log with other replicas until this broker leads it."""
        self.keep_from = MAX_OFFSET
        """The offset from which on nothing is deleted: another log has yet to store what it needs. `MAX_OFFSET` for no
        limit."""
        self.on_dirty: Callable[[PartitionLog], object] | None = None
        """Called at the first append after a sync has begun; None for no call."""
        self.recovery: RecoveryReport = loaded.report
        """Report of the recovery with which the log was opened."""
        self.synced_offset = self.log_end_offset
        """The end of what is known to be on stable storage."""
        self._log_files.synced(self.synced_offset)

    @classmethod
    def open(
        cls,
        files: FileSystem,
        directory: str,
        config: LogConfig,
        *,
        topic_partition: TopicPartition,
        now_ms: int,
        clean: bool,
        recovery_point: int = 0,
        log_start_offset: int | None = None,
        high_watermark: int | None = None,
        metadata: bytes | None = None,
        journal: Journal | None = None,
        sync: Callable[[SyncTask], object] = SyncTask.run,
        shared: Shared | None = None,
    ) -> PartitionLog:
        """Open a log, and recover it if it was not closed cleanly.

        Args:
            files: The file system that has the directory.
            directory: The partition's directory, whose name is synced. The first append creates a missing one.
            config: The topic's settings.
            topic_partition: The partition of the log.
            now_ms: The wall clock.
            clean: Whether the log was closed cleanly, so that its caches can be trusted.
            recovery_point: The offset below which everything is known to be synced.
            log_start_offset: The durable log start offset; None if it is not known.
            high_watermark: The end of what is known to be committed; None if everything in the log is.
            metadata: Content of `partition.metadata`, which is written with the first batch.
            journal: Logs repairs.
            sync: Called with the task that makes recovered data durable. It has to run before the log is used.
            shared: The bounds that this log shares with others; None for bounds of its own.

        Raises:
            StorageError: Data below the recovery point is missing or damaged.
        """
        loaded = LogLoader(
            files,
            directory,
            config,
            now_ms=now_ms,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            owner=owner_in(metadata),
            shared=shared,
        ).load()
        if loaded.unsynced is not None:
            sync(loaded.unsynced)
            repair_metadata(files, directory, metadata)
        loaded.log_repairs(journal, topic_partition)
        place = files, directory, config
        return cls(
            *place, topic_partition=topic_partition, now_ms=now_ms, loaded=loaded, metadata=metadata
        )

    def __repr__(self) -> str:
        return (
            f"PartitionLog({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset}, "
            f"high_watermark={self.high_watermark}, synced_offset={self.synced_offset})"
        )

    def _mark_dirty(self) -> None:
        self._dirty = True
        if self.on_dirty is not None:
            self.on_dirty(self)

    def maybe_roll(self, now_ms: int) -> bool:
        """Roll the active segment if it has had data for longer than `segment.ms`. Returns whether it was rolled."""
        segment = self.segments.active
        if not segment.size or now_ms - segment.created_ms <= self.config.segment_ms:
            return False
        self.roll(now_ms)
        return True

    def maybe_write_caches(self) -> None:
        """Write the caches if the active segment has grown by `CACHES_AFTER_BYTES` since they were written."""
        self._log_files.maybe_write_caches()

    # High watermark and durability

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark, at most to the log end offset; it never moves back. Returns whether it moved."""
        offset = min(offset, self.log_end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        if self.producers.transactions.decided:
            self.producers.transactions.high_watermark_moved(offset)
        return True

    def start_sync(self) -> SyncTask | None:
        """Return the task that makes everything appended so far durable, None if everything is durable.

        Only one task exists at a time: `finish_sync`, `put_back` or `fail` comes before the next `start_sync`. Appends
        may go on meanwhile.
        """
        self._dirty = False
        return self._log_files.start_sync()

    def unsynced_files(self) -> list[File]:
        """Return the files that a sync would sync now. They may be written out before that."""
        return self._log_files.unsynced_files()

    def finish_sync(self, task: SyncTask) -> None:
        """Raise the synced offset after a task has run without error."""
        self.synced_offset = max(self.synced_offset, task.end_offset)
        self._log_files.synced(self.synced_offset)

    def put_back(self, task: SyncTask) -> None:
        """Leave the work of a task that failed for a passing reason to the next task."""
        self._log_files.put_back(task)

    def fail(self, error: OSError) -> None:
        """Refuse appends and syncs from now on: after a failed sync the content of the disk is unknown."""
        if self._failure is None:
            self._failure = error

    # Compaction

    def install(self, replacement: Replacement) -> None:
        """Replace segments by the compacted segment that was made from them; see `replacement`.

        Raises:
            OSError: The replacement is incomplete. After a restart the log can be used again.
        """
        self._log_files.install(replacement, self.config.index_interval_bytes)

    def settle(self) -> None:
        """Note that the file of an installed segment, if there is one, has its final name."""
        if (segment := self.segments.settle()) is not None:
            self._log_files.write_aborted(segment)

    # Truncation

    def truncated_end(self, end_offset: int) -> int:
        """Return the log end offset that `truncate_to` would leave.

        Raises:
            OffsetOutOfRangeError: `truncate_to` would refuse the offset.
            ApiError: KAFKA_STORAGE_ERROR; the log has failed.
            StorageError: The segment with the offset is damaged.
        """
        if self._failure is not None:
            raise self._failed()
        if end_offset >= self.log_end_offset:
            return self.log_end_offset
        return max(self._find_cut(end_offset).end_offset, self.log_start_offset)

    def _find_cut(self, end_offset: int) -> Cut:
        if end_offset < self.log_start_offset:
            raise OffsetOutOfRangeError(
                f"{self.topic_partition} cannot be truncated to offset {end_offset}, below the log start offset "
                f"{self.log_start_offset}"
            )
        cut = find_cut(self.segments, end_offset)
        if max(cut.end_offset, self.log_start_offset) < self.high_watermark:
            raise OffsetOutOfRangeError(
                f"{self.topic_partition} cannot be truncated to offset {end_offset}: records below the high watermark "
                f"{self.high_watermark} are committed"
            )
        return cut

    def truncate_to(self, end_offset: int, *, now_ms: int) -> int:
        """Remove all batches that end above an offset; see `truncation`.

        Leader epochs without a batch are forgotten, also if no batch is removed. The caller has lowered durably what it
        knows of the log beyond `truncated_end`: `LogManager.truncate` does so.

        Args:
            end_offset: The offset. A batch that holds it is removed.
            now_ms: The wall clock.

        Returns:
            The new log end offset.

        Raises:
            OffsetOutOfRangeError: The offset lies below the log start offset, or records below the high watermark would
                be removed. The log is unchanged.
            ApiError: KAFKA_STORAGE_ERROR; the log has failed before.
            StorageError: A batch that is needed for the state of the producers is damaged. The log is unchanged.
            OSError: A file operation failed. If it was not the first one, the log has failed: a start recovers it.
        """
        if self._failure is not None:
            raise self._failed()
        if end_offset >= self.log_end_offset:
            self.epochs.truncate_to_end(self.log_end_offset)
            return self.log_end_offset
        cut = self._find_cut(end_offset)
        producers = self._log_files.producers_below(cut, self.config, now_ms)
        remaining = max(cut.end_offset, self.log_start_offset)
        self._log_files.save_epochs(remaining)
        producers.transactions.move_start(self.log_start_offset)
        producers.transactions.keep_decided(self.producers.transactions.decided, remaining)
        producers.keep_deleted(self.producers, remaining)
        self.producers.close()
        self.producers = producers
        self.log_end_offset = remaining
        self.synced_offset = min(self.synced_offset, remaining)
        self.epochs.truncate_to_end(remaining)
        try:
            self._log_files.truncate(cut, remaining, producers, self.config, now_ms)
        except OSError as error:
            self.fail(error)
            raise
        return remaining

    # Deletion

    def delete_old_segments(self, now_ms: int) -> list[int]:
        """Delete the segments that retention allows, and return their base offsets. A follower has no retention.

        The log start offset moves at once. The files stay until `purge`; before that the caller makes the new log start
        offset durable. If even the active segment has expired, a new one is begun first.
        """
        if self._failure is not None:
            return []
        count = count_deletable(
            self.segments.all,
            self.config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            limit=min(self.last_stable_offset, self.keep_from),
            follows=self.follows,
        )
        if not count:
            return []
        if count == len(self.segments):
            self.roll(now_ms)
        deleted = self._log_files.drop_oldest(count)
        self._start_at(self.segments.start_offset)
        return [segment.base_offset for segment in deleted]

    def purge(self) -> None:
        """Forget what lies below the log start offset, and remove the files. The offset is durable.

        Ranges that readers hold stay readable. After a crash before or during the removal, segments below the log start
        offset are left. The next opening removes them if it knows that offset.
        """
        self._log_files.purge()
        self.epochs.truncate_to_start(self.log_start_offset)
        self.producers.transactions.start_at(self.log_start_offset)

    def advance_log_start_offset(self, offset: int) -> None:
        """Delete the records below an offset, on disk when whole segments lie below it.

        Raises:
            OffsetOutOfRangeError: The offset lies above the high watermark.
        """
        if offset > self.high_watermark:
            raise OffsetOutOfRangeError(f"offset {offset} is above {self.high_watermark}")
        self._start_at(offset)

    def _start_at(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.producers.transactions.move_start(offset)

    # Producers

    def expire_producers(self, now_ms: int) -> None:
        """Forget the producers that have not written for `producer.id.expiration.ms`."""
        self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    # End

    def close(self, now_ms: int) -> None:
        """Sync everything, write the caches that make the next start fast, and close the files.

        Raises:
            OSError: Not everything could be synced, so the log is not closed cleanly.
        """
        self.expire_producers(now_ms)
        if self._failure is None and self.segments.active.loaded:
            if (task := self.start_sync()) is not None:
                task.run()
                self.finish_sync(task)
            if self._log_files.cached_end_offset != self.log_end_offset:
                self._log_files.write_caches(self.segments.active)
        self.segments.unload()
        if self._failure is not None:
            raise self._failure
        self._failure = OSError("the log is closed")

    def abandon(self) -> None:
        """Close the files because the log is being deleted. A sync that runs meanwhile may fail."""
        self._log_files.abandon()
        self._failure = OSError("the log was deleted")
