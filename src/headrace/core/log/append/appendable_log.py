"""Appending to a partition's log.

The log assigns offsets and keeps batches opaque: an append writes a new base offset and leader epoch, and the rest of
the batch as the producer sent it. `log_files` decides which file takes the batch.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from headrace.core.log.append.replicated import check_replicated
from headrace.core.log.append.truncatable_files import TruncatableFiles
from headrace.core.log.append.validation import check_produced, with_log_append_time
from headrace.core.log.config import LogConfig
from headrace.core.log.control_batch import Marker, build_marker
from headrace.core.log.offsets import MAX_OFFSET_SPAN
from headrace.core.log.producers.producer_state import SEQUENCE_MASK
from headrace.core.log.producers.replay import is_marker, replay
from headrace.core.log.reading.readable_log import ReadableLog
from headrace.core.log.recovery.loaded import LoadedLog
from headrace.core.log.segments.segment import Segment
from headrace.core.log.segments.segments import Segments
from headrace.errors import ApiError, ErrorCode
from headrace.ports import FileSystem
from headrace.records.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_LENGTH,
    CONTROL_FLAG,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LOG_OVERHEAD,
    MAX_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    HeaderFields,
    TimestampType,
    unpack_header,
)
from headrace.records.expiry import NO_RECORDS, Expiry, expiry_at_append, expiry_of_batch
from headrace.types import NO_TIMESTAMP, Buffer, TopicPartition

_HEAD: Final = struct.Struct(">qii")
"""Base offset, batch length and leader epoch: the bytes of a batch that an append replaces."""


class AppendInfo(NamedTuple):
    """The result of an append.

    `log_append_time_ms` is the time that the log wrote into the batch, -1 if the batch keeps its own timestamps.
    `duplicate` is true if the batch repeats one that is in the log; then the offsets are those of the earlier batch.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    duplicate: bool


class AppendableLog(ReadableLog):
    """A log that takes batches."""

    __slots__ = ("_dirty", "_failure", "_log_files")

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
        """Begin with what recovery has loaded; for the arguments see `PartitionLog.open`."""
        segments = loaded.segments or [
            Segment(
                files,
                directory,
                loaded.log_start_offset,
                interval=config.index_interval_bytes,
                created_ms=now_ms,
            )
        ]
        super().__init__(
            config,
            Segments(segments, loaded.shared.open_segments),
            loaded.epochs,
            loaded.producers,
            topic_partition=topic_partition,
            log_start_offset=loaded.log_start_offset,
            high_watermark=loaded.high_watermark,
        )
        self._log_files = TruncatableFiles(
            files, directory, loaded, self.segments, metadata=metadata
        )
        self._dirty = False
        """Whether the log waits for the next group commit."""
        self._failure: OSError | None = None

    # Properties

    @property
    def directory(self) -> str:
        """The path of the log's directory in the file system."""
        return self._log_files.directory

    @property
    def owner(self) -> str:
        """The id of the log's topic in hexadecimal, "" if the log was opened without it."""
        return self._log_files.owner

    @property
    def failure(self) -> OSError | None:
        """The error after which the log takes no appends, None if it takes them."""
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
        """Append one batch, with a new base offset and leader epoch, and a new timestamp if the topic uses append time.

        Args:
            records: The batch. The log keeps no reference to it.
            leader_epoch: The current leader epoch, never lower than an earlier one.
            now_ms: The wall clock.
            validate: Whether to check the batch. False for batches that this broker built.
            in_sequence: Whether to check the sequence. False if the batch is known to be new, and gaps are allowed.

        Raises:
            ApiError: The batch is refused: INVALID_RECORD, OUT_OF_ORDER_SEQUENCE_NUMBER, ...; or the log has failed.
            OSError: The batch could not be written. The log is unchanged.
        """
        if self._failure is not None:
            raise self._failed()
        config = self.config
        fields = check_produced(records, config, now_ms) if validate else unpack_header(records)
        _, length, _, _, _, attributes, delta, _, newest, producer_id, epoch, sequence, _ = fields
        transactional = bool(attributes & TRANSACTIONAL_FLAG)
        append_time_ms = NO_TIMESTAMP
        tracked = producer_id >= 0 and (sequence >= 0 or transactional)
        if tracked and in_sequence:
            retried = self.producers.check(
                producer_id, epoch, sequence, delta, transactional=transactional
            )
            if retried is not None:
                return AppendInfo(*retried[2:], duplicate=True)
        if config.message_timestamp_type == TimestampType.LOG_APPEND_TIME:
            records = with_log_append_time(records, now_ms)
            append_time_ms = newest = now_ms
        expiry = expiry_at_append(records, validate=validate) if config.expires else NO_RECORDS
        offset = self._write(records, fields, newest, leader_epoch, now_ms)
        if config.expires:
            self._note_expiry(length + LOG_OVERHEAD, expiry)
        last_offset = offset + delta
        if tracked:
            last_sequence = (sequence + delta) & SEQUENCE_MASK
            batch = sequence, last_sequence, offset, last_offset, append_time_ms
            self.producers.update(producer_id, epoch, batch, now_ms, transactional=transactional)
        return AppendInfo(offset, last_offset, append_time_ms, duplicate=False)

    def append_marker(self, marker: Marker, *, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append the marker that ends a producer's transaction, whether or not a transaction is open; see `append`.

        Raises:
            ApiError: The marker is refused: INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED; or the log has
                failed.
            OSError: The marker could not be written. The log is unchanged.
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

    def append_replicated(self, records: Buffer, *, now_ms: int) -> int:
        """Append the batches that a follower has received from its leader, as they are.

        All batches are checked before the first one is written. The high watermark does not move.

        Args:
            records: Whole batches, one after the other. The log keeps no reference to them.
            now_ms: The wall clock. Each producer is kept for `producer.id.expiration.ms` from now on.

        Returns:
            The log end offset.

        Raises:
            CorruptMessageError: The bytes are damaged. The log is unchanged.
            InvalidRecordError: The batches do not continue the log: an offset does not rise, or a leader epoch falls.
                The log is unchanged.
            ApiError: KAFKA_STORAGE_ERROR; the log has failed.
            OSError: A batch could not be written. The batches before that batch are appended.
        """
        if self._failure is not None:
            raise self._failed()
        is_empty = len(self.segments) == 1 and not self.segments.active.loaded
        if self.log_end_offset > self.log_start_offset:
            # This replica may have led without a batch. The next leader may have batches of an epoch before that one.
            self.epochs.truncate_to_end(self.log_end_offset)
        for header, batch in check_replicated(
            records,
            self.log_end_offset,
            self.epochs.epoch_at(self.log_end_offset - 1),
            is_empty=is_empty,
        ):
            self._write_replicated(header, batch, now_ms)
        return self.log_end_offset

    def _write_replicated(self, header: HeaderFields, batch: Buffer, now_ms: int) -> None:
        """Write a batch where its header says, and update what is derived from batches."""
        base_offset, max_timestamp, size = header[BASE_OFFSET], header[MAX_TIMESTAMP], len(batch)
        last_offset = base_offset + header[LAST_OFFSET_DELTA]
        if is_marker(header) and self.producers.transactions.aborted.is_full:
            self.roll(now_ms)
        if base_offset < self.log_end_offset:
            self._log_files.begin_at(base_offset, self.config, now_ms)
        segment = self._log_files.prepare(self.config, size, max_timestamp, last_offset, now_ms)
        if base_offset > self.log_end_offset:
            self._log_files.allow_gaps()
        segment.append(
            (batch,),
            size,
            base_offset,
            last_offset + 1,
            max_timestamp,
            is_control=header[ATTRIBUTES] & CONTROL_FLAG,
        )
        if header[LEADER_EPOCH] < self.epochs.latest:  # of an empty log
            self.epochs.truncate_to_end(self.log_end_offset)
        self.log_end_offset = last_offset + 1
        self.epochs.assign(header[LEADER_EPOCH], base_offset)
        if self.config.expires:
            self._note_expiry(size, expiry_of_batch(BatchHeader._make(header), batch))
        replay(self.producers, header, lambda: batch, now_ms)
        if not self._dirty:
            self._mark_dirty()

    def _write(
        self,
        records: Buffer,
        fields: HeaderFields,
        max_timestamp: int,
        leader_epoch: int,
        now_ms: int,
    ) -> int:
        """Write a batch at the end of the log, and return its base offset."""
        config, offset, length = self.config, self.log_end_offset, fields[BATCH_LENGTH]
        last_offset = offset + fields[LAST_OFFSET_DELTA]
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
            is_control=fields[ATTRIBUTES] & CONTROL_FLAG,
        )
        self.log_end_offset = last_offset + 1
        if not self._dirty:
            self._mark_dirty()
        return offset

    def _note_expiry(self, size: int, expiry: Expiry) -> None:
        """Note when the records of the last batch expire. `size` is the size of the batch in bytes."""
        segment = self.segments.active
        segment.expiries.index(segment.size).note(segment.size - size, segment.size, expiry)

    def _mark_dirty(self) -> None:
        self._dirty = True

    def roll(self, now_ms: int) -> None:
        """Seal the active segment and begin the next one. An empty active segment stays.

        Raises:
            OSError: The next segment could not be created. The log is unchanged.
        """
        self._log_files.roll(self.config, now_ms)

    def become_leader(self, epoch: int) -> None:
        """Begin a leader epoch at the log end offset, unless it is the current one.

        The epoch becomes durable with the first batch that carries it.

        Raises:
            ValueError: A newer epoch is known: the caller has not fenced the older leader.
        """
        if epoch < self.epochs.latest:
            raise ValueError(f"leader epoch {epoch} after {self.epochs.latest}")
        self.epochs.assign(epoch, self.log_end_offset)

    def _failed(self) -> ApiError:
        return ApiError.for_code(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the log of {self.topic_partition} failed: {self._failure}",
        )
