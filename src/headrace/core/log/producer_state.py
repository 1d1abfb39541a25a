"""What idempotent producers have appended: the last five batches of each, to recognise retries (KIP-98, KIP-360).

A batch that repeats one of the five is answered with the offset it got the first time. Otherwise its sequence must
follow the last one; a new producer epoch starts at 0; an unknown producer id may start anywhere, because its state may
have expired. Five is what a client may have in flight.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.errors import InvalidProducerEpochError, OutOfOrderSequenceError

BATCHES_KEPT: Final = 5
SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequences wrap from 2^31 - 1 to 0."""

_MAGIC: Final = b"HRPS"
_HEADER: Final = struct.Struct(">4sHHqI")
"""Magic, version, unused, offset, number of producers."""
_PRODUCER: Final = struct.Struct(">qhqB")
"""Producer id, epoch, time of the last append, number of batches."""
_BATCH: Final = struct.Struct(">iiqqq")
_CRC: Final = struct.Struct(">I")
_VERSION: Final = 1


class BatchEntry(NamedTuple):
    """One appended batch; `append_time_ms` is -1 when the topic keeps the producer's timestamps."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    append_time_ms: int


class ProducerEntry:
    """One producer's epoch and latest batches."""

    __slots__ = ("batches", "epoch", "last_append_ms")

    def __init__(self, epoch: int, last_append_ms: int) -> None:
        self.epoch = epoch
        self.last_append_ms = last_append_ms
        self.batches: deque[BatchEntry] = deque(maxlen=BATCHES_KEPT)


class ProducerState:
    """The producers of one log, at most `limit`."""

    __slots__ = ("_entries", "_limit")

    def __init__(self, limit: int) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._limit = limit

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Return what is known of a producer."""
        return self._entries.get(producer_id)

    @property
    def last_offsets(self) -> set[int]:
        """The last offsets of all remembered batches: compaction keeps these batches, if only their headers."""
        return {batch.last_offset for entry in self._entries.values() for batch in entry.batches}

    def check(
        self, producer_id: int, epoch: int, sequence: int, last_delta: int
    ) -> BatchEntry | None:
        """Decide about a batch before it is appended.

        Returns:
            The earlier batch if this one repeats it, or None if it is to be appended.

        Raises:
            InvalidProducerEpochError: A newer epoch of the producer has written.
            OutOfOrderSequenceError: The sequence does not follow.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return None
        if epoch == entry.epoch:
            last_sequence = (sequence + last_delta) & SEQUENCE_MASK
            for batch in entry.batches:
                if batch.first_sequence == sequence and batch.last_sequence == last_sequence:
                    return batch
            expected = (entry.batches[-1].last_sequence + 1) & SEQUENCE_MASK
        elif epoch < entry.epoch:
            message = f"producer {producer_id} has epoch {entry.epoch}, the batch {epoch}"
            raise InvalidProducerEpochError(message)
        else:
            expected = 0
        if sequence != expected:
            message = (
                f"producer {producer_id} epoch {epoch}: sequence {sequence}, expected {expected}"
            )
            raise OutOfOrderSequenceError(message)
        return None

    def update(self, producer_id: int, epoch: int, batch: BatchEntry, now_ms: int) -> None:
        """Take note of an appended (or replayed) batch."""
        entry = self._entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            if entry is None and len(self._entries) >= self._limit:
                self._forget_idlest()
            entry = self._entries[producer_id] = ProducerEntry(epoch, now_ms)
        entry.batches.append(batch)
        entry.last_append_ms = now_ms

    def _forget_idlest(self) -> None:
        # An eighth at once, so that a flood of producer ids costs little per append.
        idlest = sorted(self._entries, key=lambda key: self._entries[key].last_append_ms)
        for producer_id in idlest[: max(1, self._limit // 8)]:
            del self._entries[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers whose last append is longer ago than `expiration_ms`."""
        horizon = now_ms - expiration_ms
        expired = [key for key, entry in self._entries.items() if entry.last_append_ms < horizon]
        for producer_id in expired:
            del self._entries[producer_id]

    def encode(self, offset: int) -> bytes:
        """Return the snapshot file of the state after all batches below `offset`."""
        parts = [_HEADER.pack(_MAGIC, _VERSION, 0, offset, len(self._entries))]
        for producer_id, entry in self._entries.items():
            count = len(entry.batches)
            parts.append(_PRODUCER.pack(producer_id, entry.epoch, entry.last_append_ms, count))
            parts += (_BATCH.pack(*batch) for batch in entry.batches)
        content = b"".join(parts)
        return content + _CRC.pack(crc32c(content))

    def restore(self, content: bytes | None, offset: int) -> bool:
        """Replace the state by a snapshot of `offset`; false, and nothing changed, unless the file is sound."""
        if content is None or len(content) < _HEADER.size + _CRC.size:
            return False
        body = content[: -_CRC.size]
        magic, version, _, snapshot_offset, count = _HEADER.unpack_from(body)
        if _CRC.unpack_from(content, len(body))[0] != crc32c(body) or (
            magic,
            version,
            snapshot_offset,
        ) != (_MAGIC, _VERSION, offset):
            return False
        entries: dict[int, ProducerEntry] = {}
        position = _HEADER.size
        for _ in range(count):
            producer_id, epoch, last_append_ms, batches = _PRODUCER.unpack_from(body, position)
            position += _PRODUCER.size
            entry = entries[producer_id] = ProducerEntry(epoch, last_append_ms)
            for _ in range(batches):
                entry.batches.append(BatchEntry(*_BATCH.unpack_from(body, position)))
                position += _BATCH.size
        self._entries = entries
        return True
