"""One shard that a member reads: its fetched records, the records that were handed out, and its checkpoint."""

from __future__ import annotations

import asyncio
from collections import deque

from headrace.clients.consumer.records import LOG_APPEND_TIME
from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import Lease
from headrace.kinesis.group.readers import WatchedReader
from headrace.kinesis.reading.pacing import RECORD_OVERHEAD_BYTES
from headrace.kinesis.reading.reader import Fetched
from headrace.kinesis.reading.records import KinesisRecord
from headrace.stream_record import StreamRecord, offset_of, partition_of
from headrace.types import TopicPartition


class AssignedShard:
    """The records of one shard, from the reader to the checkpoint."""

    def __init__(self, lease: Lease, stream: str, reader: WatchedReader, limit_bytes: int) -> None:
        """Start behind the checkpoint of a lease.

        Args:
            lease: The lease.
            stream: The stream's name.
            reader: The reader of the shard.
            limit_bytes: The most bytes of unfinished records that are handed out, with the overhead per record. One
                record may exceed it.
        """
        self._limit_bytes = limit_bytes
        self.lease = lease
        self.key = lease.key
        self.name = TopicPartition(stream, partition_of(lease.key.shard))
        self.reader = reader
        self.finished: Checkpoint = lease.checkpoint
        """The checkpoint up to which all records are finished."""
        self.position: int | None = None
        """One past the last offset that was handed out; None before the first record."""
        self.paused = False
        self.is_read = True
        """Whether a reader reads the shard."""
        self.held_back = False
        """Whether further fetches of the shard are not accepted for now."""
        self.leaving: asyncio.Task[None] | None = None
        """The task that gives the shard up; None before. Nothing is handed out while the task runs."""
        self.end: Fetched | None = None
        """The last fetch of a closed shard; None before it."""
        self._waiting: deque[KinesisRecord] = deque()
        self._handed: deque[tuple[int, KinesisRecord]] = deque()
        """Offsets and records that were handed out and are not finished, or are behind an unfinished record."""
        self._handed_bytes = 0
        self._count = 0

    # Records

    def take_in(self, fetched: Fetched) -> None:
        """Accept the records of a fetch."""
        self._waiting.extend(fetched.records)
        self._count += len(fetched.records)
        if fetched.ended:
            self.end = fetched

    def hand_out(self, limit: int) -> list[StreamRecord]:
        """Return at most `limit` further records."""
        records: list[StreamRecord] = []
        while self._waiting and len(records) < limit and not self.is_full:
            records.append(self._next())
        return records

    def _next(self) -> StreamRecord:
        record = self._waiting.popleft()
        offset = offset_of(record.sequence_number, record.sub_sequence)
        self.position = offset + 1
        self._handed.append((offset, record))
        self._handed_bytes += _size(record)
        key = record.partition_key.encode()
        place = *self.name, offset, record.timestamp_ms
        epoch = self.lease.epoch
        return StreamRecord(*place, key, record.data, (), epoch, LOG_APPEND_TIME)

    @property
    def has_records(self) -> bool:
        """Whether `hand_out` would return a record."""
        return bool(self._waiting) and not self.paused and not self.is_full and not self.leaving

    @property
    def is_full(self) -> bool:
        """Whether the unfinished records that were handed out reach the limit of bytes."""
        return self._handed_bytes >= self._limit_bytes

    @property
    def wants_more(self) -> bool:
        """Whether the next fetch is to be accepted."""
        return not (self._waiting or self.paused or self.is_full)

    @property
    def in_flight(self) -> bool:
        """Whether records are handed out and not finished."""
        return bool(self._handed)

    @property
    def is_over(self) -> bool:
        """Whether the shard is closed and all its records were handed out."""
        return self.end is not None and not self._waiting

    @property
    def is_finished(self) -> bool:
        """Whether the shard is closed and all its records are finished."""
        return self.is_over and not self._handed

    def is_current(self, since: float) -> bool:
        """Whether a fetch since a moment found nothing new, and all earlier records were handed out."""
        read = self.reader.current_at >= since and self.reader.count == self._count
        return read and not self._waiting and self.end is None

    # Checkpoints

    def checkpoint_at(self, position: int) -> Checkpoint | None:
        """Return the checkpoint for a position, or None if it is not beyond the present checkpoint."""
        last = None
        for offset, record in self._handed:
            if offset >= position:
                break
            last = record
        return None if last is None else last.checkpoint

    def finish(self, position: int) -> None:
        """Mark all records before a position as finished."""
        while self._handed and self._handed[0][0] < position:
            record = self._handed.popleft()[1]
            self.finished = record.checkpoint
            self._handed_bytes -= _size(record)

    def oldest_ms(self, position: int | None) -> int | None:
        """Return the timestamp of the oldest unfinished record in milliseconds, or None if there is none.

        Args:
            position: The first unfinished offset. None: all records that were handed out are finished.
        """
        if position is not None:
            for offset, record in self._handed:
                if offset >= position:
                    return record.timestamp_ms
        return self._waiting[0].timestamp_ms if self._waiting else None

    def take_back(self, offset: int) -> None:
        """Take back the records from an offset on: they are handed out again."""
        while self._handed and self._handed[-1][0] >= offset:
            record = self._handed.pop()[1]
            self._handed_bytes -= _size(record)
            self._waiting.appendleft(record)
        self.position = offset

    def read_by(self, reader: WatchedReader) -> None:
        """Accept records of another reader, which starts at `read_to`."""
        self.reader = reader
        self._count = 0
        self.held_back = False

    @property
    def read_to(self) -> Checkpoint:
        """The checkpoint behind which a new reader has to start."""
        if self._waiting:
            return self._waiting[-1].checkpoint
        return self._handed[-1][1].checkpoint if self._handed else self.finished


def _size(record: KinesisRecord) -> int:
    # Many records may have no data and share one long key: each of them is handed out with a copy of the key.
    return len(record.data) + len(record.partition_key) + RECORD_OVERHEAD_BYTES
