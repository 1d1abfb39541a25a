"""One partition's log: batches in, file ranges out, and every offset that matters.

The log assigns offsets, keeps batches opaque, and knows four positions: log start, high watermark, synced offset (known
to be on stable storage) and log end. It is single-threaded; only the `run` of a sync task may happen elsewhere.
How its files come and go, and which one takes the next batch, is the business of `log_files`.

What a crash may lose is what was appended after the last finished sync, and nothing else: see `recovery`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.core.log.config import LogConfig
from headrace.core.log.control_batch import Marker, build_marker
from headrace.core.log.leader_epochs import LeaderEpochCache
from headrace.core.log.log_files import MAX_OFFSET_SPAN, LogFiles, repair_metadata
from headrace.core.log.partition_metadata import owner_in
from headrace.core.log.producer_state import SEQUENCE_MASK, ProducerState
from headrace.core.log.recovery import LoadedLog, LogLoader, RecoveryReport
from headrace.core.log.replacement import Replacement
from headrace.core.log.retention import count_deletable
from headrace.core.log.segment import Segment
from headrace.core.log.segments import Segments
from headrace.core.log.shared import Shared
from headrace.core.log.sync import SyncTask
from headrace.core.log.time_lookup import TimestampOffset, at_once, find, find_newest
from headrace.core.log.transactions import NEVER
from headrace.core.log.validation import (
    HeaderFields,
    check_produced,
    with_log_append_time,
)
from headrace.errors import ApiError, ErrorCode, OffsetOutOfRangeError
from headrace.ports import File, FileSystem, Journal
from headrace.records.batch import (
    CONTROL_FLAG,
    LOG_OVERHEAD,
    TRANSACTIONAL_FLAG,
    TimestampType,
    unpack_header,
)
from headrace.records.expiry import NO_RECORDS, Expiry, expiry_at_append
from headrace.types import NO_TIMESTAMP, Buffer, FileRange, TopicPartition

_HEAD: Final = struct.Struct(">qii")
"""Base offset, batch length, leader epoch: what an append writes in place of the producer's."""


class AppendInfo(NamedTuple):
    """What became of a batch; `log_append_time_ms` is -1 when its own timestamps were kept."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    duplicate: bool


class PartitionLog:
    """The log of one partition. Open it with `PartitionLog.open`; `config` may be replaced at any time."""

    __slots__ = (
        "_dirty",
        "_failure",
        "_log_files",
        "config",
        "epochs",
        "high_watermark",
        "keep_from",
        "log_end_offset",
        "log_start_offset",
        "on_dirty",
        "producers",
        "recovery",
        "segments",
        "synced_offset",
        "topic_partition",
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
        self.config = config
        segments = loaded.segments or [
            Segment(
                files,
                directory,
                log_start_offset,
                interval=config.index_interval_bytes,
                created_ms=now_ms,
            )
        ]
        self.segments = Segments(segments, loaded.shared.open_segments)
        self.epochs: LeaderEpochCache = loaded.epochs
        self.producers: ProducerState = loaded.producers
        self._log_files = LogFiles(files, directory, loaded, self.segments, metadata=metadata)
        self._dirty = False
        self._failure: OSError | None = None
        self.topic_partition = topic_partition
        self.recovery: RecoveryReport = loaded.report
        self.log_end_offset = self.segments.active.end_offset
        self.log_start_offset = min(
            max(log_start_offset, self.segments.start_offset), self.log_end_offset
        )
        self.epochs.truncate_to_start(self.log_start_offset)
        self.producers.transactions.start_at(self.log_start_offset)
        self.synced_offset = self.log_end_offset
        self._log_files.synced(self.synced_offset)
        self.high_watermark = self.log_end_offset
        self.producers.transactions.high_watermark_moved(self.high_watermark)
        self.keep_from = NEVER
        """Nothing is deleted from this offset on: whoever wrote it has yet to make a note of it elsewhere."""
        self.on_dirty: Callable[[PartitionLog], object] | None = None

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
        loaded.tell(journal, topic_partition)
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

    # What it knows

    @property
    def directory(self) -> str:
        """The log's directory."""
        return self._log_files.directory

    @property
    def owner(self) -> str:
        """The id of the log's topic in hexadecimal, "" if the log was opened without it."""
        return self._log_files.owner

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch, -1 before the first."""
        return self.epochs.latest

    @property
    def last_stable_offset(self) -> int:
        """End of what `read_committed` consumers see: the first undecided transaction, or high watermark."""
        return min(self.producers.transactions.first_unstable_offset, self.high_watermark)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def segment_count(self) -> int:
        """How many segments there are, the active one included."""
        return len(self.segments)

    @property
    def producer_count(self) -> int:
        """How many idempotent producers are remembered."""
        return len(self.producers)

    @property
    def failure(self) -> OSError | None:
        """Why the log takes no more appends, None if it does."""
        return self._failure

    # Append

    def append(
        self,
        records: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        validate: bool = True,
        in_sequence: bool = True,
    ) -> AppendInfo:
        """Append one batch as a producer sent it; only base offset and leader epoch are set (and append time).

        Args:
            records: The batch. It is not kept.
            leader_epoch: The current leader's epoch, never lower than an earlier one.
            now_ms: The wall clock.
            validate: False for batches that this broker built itself.
            in_sequence: False if the caller has found that it repeats none, and sequences need not be without gaps.

        Raises:
            ApiError: The batch is refused: INVALID_RECORD, OUT_OF_ORDER_SEQUENCE_NUMBER, ...; or the log failed before.
            OSError: It could not be written; the log is as before.
        """
        if self._failure is not None:
            raise self._failed()
        config = self.config
        fields = check_produced(records, config, now_ms) if validate else unpack_header(records)
        delta, max_timestamp, producer_id = fields[6], fields[8], fields[9]
        transactional = bool(fields[5] & TRANSACTIONAL_FLAG)
        append_time_ms = NO_TIMESTAMP
        tracked = producer_id >= 0 and (fields[11] >= 0 or transactional)
        if tracked and in_sequence:
            retried = self.producers.check(
                producer_id, fields[10], fields[11], delta, transactional=transactional
            )
            if retried is not None:
                return AppendInfo(*retried[2:], duplicate=True)
        if config.message_timestamp_type == TimestampType.LOG_APPEND_TIME:
            records = with_log_append_time(records, now_ms)
            append_time_ms = max_timestamp = now_ms
        expiry = expiry_at_append(records, validate=validate) if config.expires else NO_RECORDS
        offset = self._write(records, fields, max_timestamp, leader_epoch, now_ms)
        if config.expires:
            self._note_expiry(fields[1] + LOG_OVERHEAD, expiry)
        last_offset = offset + delta
        if tracked:
            sequence = fields[11]
            last_sequence = (sequence + delta) & SEQUENCE_MASK
            batch = sequence, last_sequence, offset, last_offset, append_time_ms
            self.producers.update(
                producer_id, fields[10], batch, now_ms, transactional=transactional
            )
        return AppendInfo(offset, last_offset, append_time_ms, duplicate=False)

    def append_marker(self, marker: Marker, *, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append the marker that ends a producer's transaction here, whether or not one is open; see `append`.

        Raises:
            ApiError: It is refused, INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED; or the log failed before.
            OSError: It could not be written; the log is as before.
        """
        if self._failure is not None:
            raise self._failed()
        self.producers.check_marker(marker)
        if not marker.committed and self.producers.transactions.aborted.is_full:
            self.roll(now_ms)
        records: Buffer = build_marker(marker, now_ms)
        append_time_ms = NO_TIMESTAMP
        if self.config.message_timestamp_type == TimestampType.LOG_APPEND_TIME:
            records, append_time_ms = with_log_append_time(records, now_ms), now_ms
        offset = self._write(records, unpack_header(records), now_ms, leader_epoch, now_ms)
        if self.config.expires:
            self._note_expiry(len(records), NO_RECORDS)
        self.producers.end_transaction(marker, offset, now_ms)
        return AppendInfo(offset, offset, append_time_ms, duplicate=False)

    def _write(
        self,
        records: Buffer,
        fields: HeaderFields,
        max_timestamp: int,
        leader_epoch: int,
        now_ms: int,
    ) -> int:
        """Write a batch at the log's end and return its base offset."""
        config, offset, length = self.config, self.log_end_offset, fields[1]
        last_offset = offset + fields[6]
        size = length + LOG_OVERHEAD
        segment = self.segments.active
        if (
            segment.size + size > config.segment_bytes
            or segment.file is None
            or max_timestamp - segment.first_timestamp > config.segment_ms
            or last_offset - segment.base_offset > MAX_OFFSET_SPAN
        ):
            segment = self._log_files.prepare(config, size, max_timestamp, last_offset, now_ms)
        if leader_epoch != self.epochs.latest:
            self.become_leader(leader_epoch)
        head = _HEAD.pack(offset, length, leader_epoch)
        segment.append(
            (head, memoryview(records)[16:]),
            size,
            offset,
            last_offset + 1,
            max_timestamp,
            is_control=fields[5] & CONTROL_FLAG,
        )
        self.log_end_offset = last_offset + 1
        if not self._dirty:
            self._mark_dirty()
        return offset

    def _note_expiry(self, size: int, expiry: Expiry) -> None:
        """Note when the records expire of the batch that was written last, which has `size` bytes."""
        segment = self.segments.active
        segment.expiries.note(segment.size - size, segment.size, expiry)

    def _mark_dirty(self) -> None:
        self._dirty = True
        if self.on_dirty is not None:
            self.on_dirty(self)

    def roll(self, now_ms: int) -> None:
        """Seal the active segment and begin the next; nothing happens while it is empty.

        Raises:
            OSError: The next segment could not be created; the log is as before.
        """
        self._log_files.roll(self.config, now_ms)

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

    # Read

    def read(
        self, offset: int, *, max_bytes: int, up_to: int, minimum_one: bool
    ) -> FileRange | None:
        """Return whole batches as they lie in one segment, from the batch that holds `offset` on.

        The first batch may begin before `offset`; the reader skips. A batch that reaches `up_to` or beyond is left
        out. The range may be shorter than it could be, but is never empty. It begins with a batch that has records, if
        there is one: compaction leaves batches without.

        Args:
            offset: The first offset wanted.
            max_bytes: Most bytes.
            up_to: End offset: the high watermark, last stable offset, or log end offset.
            minimum_one: Return the first batch even if it alone exceeds `max_bytes`.

        Returns:
            The range, or None when there is nothing (yet).

        Raises:
            OffsetOutOfRangeError: `offset` lies before the log start or after the log end.
        """
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is outside {self.log_start_offset}..{self.log_end_offset}"
            )
        if offset == self.log_end_offset:
            self.segments.active.remember_end()  # the reader will be back for what comes next
            return None
        if offset >= up_to:
            return None
        if offset >= self.segments.active.base_offset:
            return self.segments.active.read(
                offset, max_bytes=max_bytes, up_to=up_to, minimum_one=minimum_one
            )
        return self.segments.read(offset, max_bytes=max_bytes, up_to=up_to, minimum_one=minimum_one)

    def offset_for_timestamp(
        self, timestamp: int, *, up_to: int | None = None
    ) -> TimestampOffset | None:
        """Return the first record whose timestamp is at least `timestamp`, exact to the record.

        Args:
            timestamp: In milliseconds.
            up_to: Records at or above this offset do not count; the log end by default.
        """
        limit = self.log_end_offset if up_to is None else up_to
        found = at_once(find(self.segments, timestamp, self.log_start_offset))
        return found if found is not None and found.offset < limit else None

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """Return the first record that has the largest timestamp of the log (KIP-734), None when there is none."""
        return at_once(find_newest(self.segments, self.log_start_offset))

    # Leader epochs

    def become_leader(self, epoch: int) -> None:
        """Begin a leader epoch at the log's end; nothing happens if it is the current one.

        It becomes durable with the first batch that carries it.

        Raises:
            ValueError: A newer epoch is known: the caller's fencing failed.
        """
        if epoch < self.epochs.latest:
            raise ValueError(f"leader epoch {epoch} after {self.epochs.latest}")
        self.epochs.assign(epoch, self.log_end_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) as OffsetForLeaderEpoch answers; see `LeaderEpochCache.end_offset_for`."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch that wrote an offset, -1 if unknown."""
        return self.epochs.epoch_at(offset)

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

    def _failed(self) -> ApiError:
        return ApiError.for_code(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the log of {self.topic_partition} failed: {self._failure}",
        )

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
