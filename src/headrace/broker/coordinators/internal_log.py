"""An internal topic as its coordinator sees it: partitions that it appends to and loads."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from headrace.broker.partitions.local_partitions import LocalPartitions
from headrace.broker.partitions.topics import Topics
from headrace.broker.replication.partition import Partition
from headrace.broker.replication.replicas import Replicas
from headrace.core.log import read_marker
from headrace.errors import (
    ApiError,
    CorruptRecordError,
    ErrorCode,
    StorageError,
    StorageUnavailableError,
    UnknownTopicOrPartitionError,
)
from headrace.records.batch import LOG_OVERHEAD, MIN_BATCH_LENGTH, BatchHeader
from headrace.types import Buffer

_PIECE_BYTES: Final = 4 << 20
"""The size of the pieces in bytes. In a larger piece more records are replaced by later ones, and are not decoded."""
_READ_BYTES: Final = 512 << 10
"""The number of bytes that are read without a pause."""
_BATCHES_AT_ONCE: Final = 4_000
"""The number of batches that are passed over without a pause."""
_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8


class InternalLog:
    """Implements `headrace.core.coordinator.runtime.CoordinatorLog` with the broker's partitions."""

    __slots__ = ("_name", "_partitions", "_replicas", "_topics")

    def __init__(
        self, name: str, topics: Topics, partitions: LocalPartitions, replicas: Replicas
    ) -> None:
        self._name = name
        self._topics = topics
        self._partitions = partitions
        self._replicas = replicas

    @property
    def partitions_count(self) -> int:
        """The number of partitions of the topic; 0 while it does not exist."""
        topic = self._topics.get(self._name)
        return 0 if topic is None else topic.partitions_count

    def append(self, partition: int, batch: bytes, now_ms: int) -> int:
        """Append one record batch, or the marker of a transaction, and return the log end offset after it.

        Raises:
            ApiError: Nothing was appended.
        """
        marker = read_marker(batch) if BatchHeader.parse(batch).is_control else None
        replica = self._partition(partition)
        if replica.isr is not None and replica.isr.is_below_min:
            raise ApiError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{replica.topic_partition} has too few replicas in sync",
            )
        try:
            info = (
                self._replicas.append(replica, batch, now_ms)
                if marker is None
                else self._replicas.append_marker(replica, marker, now_ms)
            )
        except StorageUnavailableError as error:
            if self._replicas.store.failure is not None:
                raise
            # The disk may be full. The broker stays the coordinator, because a later append may succeed.
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
        return info.last_offset + 1

    def high_watermark(self, partition: int) -> int:
        """Return the offset up to which records survive a crash."""
        return self._partition(partition).high_watermark

    def is_suspect(self, partition: int) -> bool:
        """Return whether the lease of this broker has ended, so that another replica may be the leader by now."""
        if not self._replicas.is_suspect:
            return False
        replica = self._partitions.find(self._name, partition)
        return replica is not None and replica.isr is not None

    def read_from_start(self, partition: int) -> Iterator[Buffer]:
        """Yield all record batches of the partition, in order, in pieces of whole batches; an empty piece is a pause.

        The pieces end at the log end offset. An earlier coordinator wrote the batches above the high watermark, and
        they may still become committed. A coordinator that ignored them would contradict its own log.

        Raises:
            StorageError: A part of the log cannot be read.
        """
        replica = self._partition(partition)
        offset, end = replica.log_start_offset, replica.log.log_end_offset
        while offset < end:
            found = replica.read(offset, max_bytes=_PIECE_BYTES, up_to=end, minimum_one=True)
            if found is None:
                raise StorageError(
                    f"{replica.topic_partition} cannot be read from offset {offset} on"
                )
            parts: list[Buffer] = []
            for start in range(0, len(found), _READ_BYTES):
                size = min(_READ_BYTES, len(found) - start)
                parts += found.file.buffers(found.position + start, size)
                yield b""
            data = b"".join(parts)
            last = 0
            for number, position in enumerate(_positions(data)):
                last = position
                if number % _BATCHES_AT_ONCE == _BATCHES_AT_ONCE - 1:
                    yield b""
            offset = BatchHeader.parse(data, last).next_offset
            yield data

    def _partition(self, index: int) -> Partition:
        try:
            return self._partitions.require(self._name, index)
        except UnknownTopicOrPartitionError as error:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error


def _positions(data: Buffer) -> Iterator[int]:
    """Yield the positions of batches. Their headers are not decoded, which would take most of the time.

    Raises:
        CorruptRecordError: A batch length is smaller than a header.
    """
    position, end = 0, len(data)
    while position < end:
        yield position
        (length,) = _LENGTH.unpack_from(data, position + _LENGTH_AT)
        if length < MIN_BATCH_LENGTH:
            raise CorruptRecordError(f"batch length {length} at byte {position}")
        position += LOG_OVERHEAD + length
