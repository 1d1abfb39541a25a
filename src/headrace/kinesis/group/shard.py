"""One shard that a member reads: what was taken over from its reader, and how far it is finished."""

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
        """Begin behind the checkpoint of a lease.

        Args:
            lease: The lease.
            stream: The stream's name.
            reader: Where records come from.
            limit_bytes: How much may be handed out that is not finished, with what records take besides their data; one
                record may go beyond it.
        """
        self._limit_bytes = limit_bytes
        self.lease = lease
        self.key = lease.key
        self.name = TopicPartition(stream, partition_of(lease.key.shard))
        self.reader = reader
        self.finished: Checkpoint = lease.checkpoint
        """Behind the last record that is finished with all before it."""
        self.position: int | None = None
        """One past the last record that was handed out."""
        self.paused = False
        self.is_read = True
        """Whether there is a reader at work."""
        self.held_back = False
        """Whether nothing is taken over from it for now."""
        self.leaving: asyncio.Task[None] | None = None
        """It goes, or has ended: nothing more is handed out, and this waits for what was."""
        self.end: Fetched | None = None
        """The last fetch of a closed shard."""
        self._waiting: deque[KinesisRecord] = deque()
        self._handed: deque[tuple[int, KinesisRecord]] = deque()
        """With their offsets; handed out and not finished, or behind one that is not."""
        self._handed_bytes = 0
        self._count = 0

    # Records in, records out

    def take_in(self, fetched: Fetched) -> None:
        """Take what a fetch brought."""
        self._waiting.extend(fetched.records)
        self._count += len(fetched.records)
        if fetched.ended:
            self.end = fetched

    def hand_out(self, limit: int) -> list[StreamRecord]:
        """Return the next records, at most so many."""
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
        """Whether there is something to hand out."""
        return bool(self._waiting) and not self.paused and not self.is_full and not self.leaving

    @property
    def is_full(self) -> bool:
        """Whether much was handed out that is not finished."""
        return self._handed_bytes >= self._limit_bytes

    @property
    def wants_more(self) -> bool:
        """Whether what was fetched next is to be taken over."""
        return not (self._waiting or self.paused or self.is_full)

    @property
    def in_flight(self) -> bool:
        """Whether something was handed out that is not finished."""
        return bool(self._handed)

    @property
    def is_over(self) -> bool:
        """Whether the shard has ended and all of it was handed out."""
        return self.end is not None and not self._waiting

    @property
    def is_finished(self) -> bool:
        """Whether all of it was handed out, and is finished."""
        return self.is_over and not self._handed

    def is_current(self, since: float) -> bool:
        """Whether a fetch that was begun since a moment found nothing new, and all before was handed out."""
        read = self.reader.current_at >= since and self.reader.count == self._count
        return read and not self._waiting and self.end is None

    # How far it is finished

    def checkpoint_at(self, position: int) -> Checkpoint | None:
        """Return the checkpoint that a position is, if that is news."""
        last = None
        for offset, record in self._handed:
            if offset >= position:
                break
            last = record
        return None if last is None else last.checkpoint

    def finish(self, position: int) -> None:
        """Take that everything before a position is finished."""
        while self._handed and self._handed[0][0] < position:
            record = self._handed.popleft()[1]
            self.finished = record.checkpoint
            self._handed_bytes -= _size(record)

    def oldest_ms(self, position: int | None) -> int | None:
        """Return the time of the first record that is not finished; None if there is none.

        Args:
            position: Where who handles them has got to; None: everything that was handed out is finished.
        """
        if position is not None:
            for offset, record in self._handed:
                if offset >= position:
                    return record.timestamp_ms
        return self._waiting[0].timestamp_ms if self._waiting else None

    def take_back(self, offset: int) -> None:
        """Take back what was handed out from an offset on: it is handed out again."""
        while self._handed and self._handed[-1][0] >= offset:
            record = self._handed.pop()[1]
            self._handed_bytes -= _size(record)
            self._waiting.appendleft(record)
        self.position = offset

    def read_by(self, reader: WatchedReader) -> None:
        """Take records from another reader, which begins at `read_to`."""
        self.reader = reader
        self._count = 0
        self.held_back = False

    @property
    def read_to(self) -> Checkpoint:
        """Behind what reading goes on."""
        if self._waiting:
            return self._waiting[-1].checkpoint
        return self._handed[-1][1].checkpoint if self._handed else self.finished


def _size(record: KinesisRecord) -> int:
    # Many may have no data at all, and all share one long key that each is handed out with.
    return len(record.data) + len(record.partition_key) + RECORD_OVERHEAD_BYTES
