"""One partition's log: batches in, file ranges out, and every offset that matters.

The log assigns offsets, keeps batches opaque, and knows four positions: log start, high watermark, synced offset (known
to be on stable storage) and log end. It is single-threaded; only the `run` of a sync task may happen elsewhere.
How its files come and go, and which one takes the next batch, is the business of `log_files`.

What a crash may lose is what was appended after the last finished sync, and nothing else: see `recovery`.
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
from headrace.errors import OffsetOutOfRangeError
from headrace.ports import File, FileSystem, Journal
from headrace.types import TopicPartition


class PartitionLog(AppendableLog):
    """The log of one partition. Open it with `PartitionLog.open`; `config` may be replaced at any time."""

    __slots__ = (
        "keep_from",
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
        log_start_offset: int,
        metadata: bytes | None,
    ) -> None:
        """Take over what was loaded; callers use `open`."""
        super().__init__(
            files,
            directory,
            config,
            topic_partition=topic_partition,
            now_ms=now_ms,
            loaded=loaded,
            log_start_offset=log_start_offset,
            metadata=metadata,
        )
        self.keep_from = MAX_OFFSET
        """Nothing is deleted from this offset on: another log has yet to store what it needs of it."""
        self.recovery: RecoveryReport = loaded.report
        """What was repaired when the log was opened."""
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
        metadata: bytes | None = None,
        journal: Journal | None = None,
        sync: Callable[[SyncTask], object] = SyncTask.run,
        shared: Shared | None = None,
    ) -> PartitionLog:
        """Open a log, recovering it if need be. A directory that does not exist is created at the first append.

        Args:
            files: The file system that has the directory.
            directory: The partition's; if it exists, its name has been synced in the one above.
            config: The topic's settings.
            topic_partition: Whose log it is.
            now_ms: The wall clock.
            clean: Whether the log was closed in order, so that its caches can be trusted.
            recovery_point: Offset below which everything is known to have been synced.
            log_start_offset: The durable log start; None if that is not known.
            metadata: Content of `partition.metadata`, written with the first batch.
            journal: Told about repairs.
            sync: Called with what a recovery has to sync before the log may be used.
            shared: The bounds that it shares with other logs; None for bounds of its own.

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
            owner=owner_in(metadata),
            shared=shared,
        ).load()
        if loaded.unsynced is not None:
            sync(loaded.unsynced)
            repair_metadata(files, directory, metadata)
        loaded.log_repairs(journal, topic_partition)
        return cls(
            files,
            directory,
            config,
            topic_partition=topic_partition,
            now_ms=now_ms,
            loaded=loaded,
            log_start_offset=log_start_offset or 0,
            metadata=metadata,
        )

    def __repr__(self) -> str:
        return (
            f"PartitionLog({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset}, "
            f"high_watermark={self.high_watermark}, synced_offset={self.synced_offset})"
        )

    def maybe_roll(self, now_ms: int) -> bool:
        """Roll the active segment if it has had data for longer than `segment.ms`; returns whether it did."""
        segment = self.segments.active
        if not segment.size or now_ms - segment.created_ms <= self.config.segment_ms:
            return False
        self.roll(now_ms)
        return True

    def maybe_write_caches(self) -> None:
        """Write the caches if the active segment has grown by much since they were."""
        self._log_files.maybe_write_caches()

    # High watermark and durability

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark, at most to the log's end; returns whether it moved. It never goes back."""
        offset = min(offset, self.log_end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        if self.producers.transactions.decided:
            self.producers.transactions.high_watermark_moved(offset)
        return True

    def start_sync(self) -> SyncTask | None:
        """Return what has to be synced to make everything appended so far durable, None if nothing has.

        One task at a time: `finish_sync` (or `fail`) comes before the next. In between, appends go on.
        """
        self._dirty = False
        return self._log_files.start_sync()

    def unsynced_files(self) -> list[File]:
        """Return the files that a sync would sync now; whoever likes may write them out before."""
        return self._log_files.unsynced_files()

    def finish_sync(self, task: SyncTask) -> None:
        """Take note that a task has run without error."""
        self.synced_offset = max(self.synced_offset, task.end_offset)
        self._log_files.synced(self.synced_offset)

    def put_back(self, task: SyncTask) -> None:
        """Take note that a task has failed for a passing reason: the next one does what it was to do."""
        self._log_files.put_back(task)

    def fail(self, error: OSError) -> None:
        """Take no more appends and syncs: after a failed sync nobody knows what is on the disk."""
        if self._failure is None:
            self._failure = error

    # Compaction

    def install(self, replacement: Replacement) -> None:
        """Put a compacted segment in the place of those that it was made from; see `replacement`.

        Raises:
            OSError: It is half done; the log can be used again after a restart.
        """
        self._log_files.install(replacement, self.config.index_interval_bytes)
        self.producers.transactions.aborted.start_at(self.log_start_offset)

    def settle(self) -> None:
        """Take note that what was installed, if anything was, has its name."""
        if (segment := self.segments.settle()) is not None:
            self._log_files.write_aborted(segment)

    # Deletion

    def delete_old_segments(self, now_ms: int) -> list[int]:
        """Delete what retention allows and return the base offsets of the deleted segments.

        The log start offset moves at once; the files stay until `purge`, before which the caller makes the new start
        durable. When even the active segment has expired, a new one is begun first.
        """
        if self._failure is not None:
            return []
        count = count_deletable(
            self.segments.all,
            self.config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            limit=min(self.last_stable_offset, self.keep_from),
        )
        if not count:
            return []
        if count == len(self.segments):
            self.roll(now_ms)
        deleted = self._log_files.drop_oldest(count)
        self._start_at(self.segments.start_offset)
        return [segment.base_offset for segment in deleted]

    def purge(self) -> None:
        """Remove the files of deleted segments; ranges that readers hold stay readable.

        A crash before or in between leaves segments below the log start offset, which the next opening removes, if
        it is told that offset.
        """
        self._log_files.purge()

    def advance_log_start_offset(self, offset: int) -> None:
        """Delete the records below an offset: at once for readers, on disk when whole segments are below it.

        Raises:
            OffsetOutOfRangeError: The offset lies above the high watermark.
        """
        if offset > self.high_watermark:
            raise OffsetOutOfRangeError(f"offset {offset} is above {self.high_watermark}")
        self._start_at(offset)

    def _start_at(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_to_start(offset)
            self.producers.transactions.start_at(offset)

    # Producers

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers that have not written for `producer.id.expiration.ms`."""
        self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    # End

    def close(self, now_ms: int) -> None:
        """Sync everything, write the caches that make the next start fast, and drop the files.

        Raises:
            OSError: Not everything could be synced: the log is not closed clean.
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
        """Drop the files because the log is being deleted; a sync that runs meanwhile may fail as it likes."""
        self._log_files.abandon()
        self._failure = OSError("the log was deleted")
