"""The records that a consumer returns, and their decoding from fetched batches."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Generic, Literal, NamedTuple

from headrace.clients.flows.fetch import FetchedPartition
from headrace.errors import CorruptRecordError
from headrace.records.batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    MAGIC,
    MIN_BATCH_LENGTH,
    BatchHeader,
    check_batch,
)
from headrace.records.directives import TAG
from headrace.records.reader import BatchSlices, first_record, first_slice
from headrace.records.tags import TagFilter
from headrace.types import Buffer, TopicPartition, V_co

TimestampName = Literal["CreateTime", "LogAppendTime"]
CREATE_TIME: Final = "CreateTime"
LOG_APPEND_TIME: Final = "LogAppendTime"

ABORT_MARKER: Final = 0
_ABORT_CODE: Final = ABORT_MARKER.to_bytes(2, "big")
BATCH_COST: Final = 16
"""The cost of a batch without its records, in records: reading its header and computing its checksum."""
BYTES_PER_COST: Final = 1024
"""The number of bytes whose decompression costs as much as one record."""


class ConsumerRecord(NamedTuple, Generic[V_co]):
    """A record with its topic, partition and offset. `ConsumerRecord[Order]` is a record whose value is an `Order`."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """The record's time in milliseconds since 1970; `timestamp_type` says who set it."""
    key: Any
    """The key as bytes, or as the key's serde has decoded it; None if the record has no key."""
    value: V_co
    """The value as bytes, or as the serde has decoded it; None if the record has no value."""
    headers: tuple[tuple[str, bytes | None], ...]
    """Pairs of name and value, in the order of the producer."""
    leader_epoch: int
    """The epoch of the leader that wrote the record's batch."""
    timestamp_type: TimestampName = CREATE_TIME
    """`CreateTime` if the producer set the time, `LogAppendTime` if the broker did (`message.timestamp.type`)."""
    decoded_bytes: int = -1
    """The stored size of key and value in bytes, if a serde has decoded one of them; -1 if none was decoded."""

    @property
    def size(self) -> int:
        """The stored size of key, value and headers in bytes, before compression."""
        size = self.decoded_bytes
        if size < 0:
            size = _length(self.key) + _length(self.value)
        for name, content in self.headers:
            size += len(name.encode("utf-8", "surrogateescape")) + _length(content)
        return size

    @property
    def tags(self) -> tuple[str, ...]:
        """The record's tags, in the order of its headers. U+FFFD replaces bytes that are not UTF-8."""
        return tuple(
            content.decode("utf-8", "replace")
            for name, content in self.headers
            if name == TAG and content is not None
        )


def decoded_record(
    record: ConsumerRecord, key: Any, value: Any, new: Any = tuple.__new__
) -> ConsumerRecord:
    """Return a record with a decoded key and value; `decoded_bytes` is their stored size."""
    topic, partition, offset, timestamp_ms, old_key, old_value, headers, epoch, kind, _ = record
    size = (0 if old_key is None else len(old_key)) + (0 if old_value is None else len(old_value))
    fields = topic, partition, offset, timestamp_ms, key, value, headers, epoch, kind, size
    made: ConsumerRecord = new(ConsumerRecord, fields)  # a third of the cost of calling the class
    return made


def _length(content: object) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return len(content.encode())
    if isinstance(content, bytes | bytearray | memoryview):
        return len(content)
    raise TypeError(f"a record that was made with a {type(content).__name__} has no size")


class Slice(NamedTuple):
    """Some consecutive records of one batch."""

    records: list[ConsumerRecord]
    """The records. Empty for a transaction marker, for a batch of an aborted transaction, and without matching tags."""
    end_offset: int
    """The position after the records."""
    leader_epoch: int
    """The epoch of the leader that wrote the batch."""
    cost: int
    """The cost of decoding, in records; see `BATCH_COST` and `BYTES_PER_COST`."""


class FetchedBatches:
    """The batches of one partition in a response to a fetch, decoded in slices."""

    __slots__ = (
        "_aborted",
        "_active_aborts",
        "_buffer",
        "_check_crcs",
        "_header",
        "_name",
        "_open",
        "_position",
        "_tags",
    )

    def __init__(
        self,
        name: TopicPartition,
        data: FetchedPartition,
        *,
        check_crcs: bool,
        tags: TagFilter | None = None,
    ) -> None:
        """Prepare to decode the batches of a partition.

        Args:
            name: The partition.
            data: The part of the response for the partition.
            check_crcs: Whether to check the checksum of each batch.
            tags: The tags of which a record must have one. None returns all records.
        """
        self._name = tuple(name)
        self._buffer: Buffer = data.records
        self._position = 0
        self._check_crcs = check_crcs
        self._tags = tags
        self._aborted = deque(sorted(data.aborted_transactions, key=lambda entry: entry[1]))
        self._active_aborts: set[int] = set()
        self._open: BatchSlices[ConsumerRecord] | None = None
        """The batch that is partly decoded; None if there is none."""
        self._header: BatchHeader | None = None
        """The header of the partly decoded batch; None if there is none."""

    @property
    def exhausted(self) -> bool:
        """Whether no batch is left."""
        return self._open is None and len(self._buffer) - self._position < HEADER_SIZE

    @property
    def held(self) -> int:
        """The bytes of decompressed records in memory."""
        return 0 if self._open is None else self._open.held

    @property
    def batch_end(self) -> int:
        """The offset after the next batch, by its header; -1 if no batch is left."""
        header = self._header
        if header is None:
            if len(self._buffer) - self._position < HEADER_SIZE:
                return -1
            header = BatchHeader.parse(self._buffer, self._position)
        return header.last_offset + 1

    def release(self) -> None:
        """Free the decompressed records. The next slice decompresses them again."""
        if self._open is not None:
            self._open.release()

    def next_slice(self) -> Slice | None:
        """Return the next records; None if no batch is left.

        Raises:
            CorruptRecordError: A batch is damaged. It stays the next batch.
        """
        if self._open is not None:
            return self._more(self._open)
        header = self._next_header()
        if header is None:
            return None
        start = self._position
        while self._aborted and self._aborted[0][1] <= header.last_offset:
            self._active_aborts.add(self._aborted.popleft()[0])
        records: list[ConsumerRecord] = []
        rest: BatchSlices[ConsumerRecord] | None = None
        epoch = header.partition_leader_epoch
        if header.is_control:
            self._end_transaction(header, start)
        elif not (header.is_transactional and header.producer_id in self._active_aborts):
            by_broker = header.attributes & LOG_APPEND_TIME_FLAG
            # Text and numbers alone: records that hold nothing else are not tracked by the garbage collector.
            after = epoch, LOG_APPEND_TIME if by_broker else CREATE_TIME, -1
            records, rest = first_slice(
                ConsumerRecord, header, self._buffer, start, self._name, after
            )
        self._position = start + header.size
        if rest is None:
            cost = BATCH_COST + len(records)
            return Slice(self._wanted(records), header.last_offset + 1, epoch, cost)
        self._open, self._header = rest, header
        cost = BATCH_COST + len(records) + rest.held // BYTES_PER_COST
        return Slice(self._wanted(records), _behind(records, header), epoch, cost)

    def _more(self, batch: BatchSlices[ConsumerRecord]) -> Slice:
        header = self._header
        assert header is not None, "it comes and goes with its batch"
        records = batch.next_slice()
        end_offset = _behind(records, header)
        if not batch.left:
            self._open = self._header = None
            end_offset = header.last_offset + 1
        wanted = self._wanted(records)
        return Slice(wanted, end_offset, header.partition_leader_epoch, len(records))

    def _wanted(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        if self._tags is None or not records:
            return records
        accepts = self._tags.accepts  # the broker may not have done it
        return [record for record in records if accepts(record.headers)]

    def _next_header(self) -> BatchHeader | None:
        """Return the header of the next whole batch; None at the end."""
        remaining = len(self._buffer) - self._position
        if remaining < HEADER_SIZE:
            return None
        header = BatchHeader.parse(self._buffer, self._position)
        if header.size > remaining and header.batch_length > 0:
            return None  # brokers may cut the last batch off
        if self._check_crcs:
            return check_batch(self._buffer, self._position)
        if header.batch_length < MIN_BATCH_LENGTH or header.magic != MAGIC:
            raise CorruptRecordError(
                f"batch length {header.batch_length} and magic {header.magic} at byte {self._position}"
            )
        return header

    def _end_transaction(self, header: BatchHeader, start: int) -> None:
        if header.producer_id not in self._active_aborts:
            return
        marker = first_record(header, self._buffer, start)
        if marker is not None and marker.key is not None and marker.key[2:4] == _ABORT_CODE:
            self._active_aborts.discard(header.producer_id)


def _behind(records: list[ConsumerRecord], header: BatchHeader) -> int:
    """Return the position after some records of a batch."""
    return min(records[-1].offset, header.last_offset) + 1
