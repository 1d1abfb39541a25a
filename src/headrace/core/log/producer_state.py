"""What idempotent producers have appended: the last five batches of each, to recognise retries (KIP-98, KIP-360).

And which of them have a transaction open: see `transactions`. Markers end it; one of an older producer epoch, or of an
older coordinator, does not. A producer is not forgotten before that.

A batch that repeats one of the five is answered with the offset it got the first time. Otherwise its sequence must
follow the last one; a new producer epoch starts at 0; an unknown producer id may start anywhere, because its state may
have expired. Five is what a client may have in flight.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.core.log.aborted_history import AbortedHistory
from headrace.core.log.control_batch import Marker
from headrace.core.log.transactions import Transactions
from headrace.errors import (
    ApiError,
    ErrorCode,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
)

BATCHES_KEPT: Final = 5
SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequences wrap from 2^31 - 1 to 0."""

_MAGIC: Final = b"HRPS"
_HEADER: Final = struct.Struct(">4sHHqI")
"""Magic, version, unused, offset, number of producers."""
_ABORTED: Final = struct.Struct(">q")
"""Of version 2: the offset of the first marker of an aborted transaction, -1 without one."""
_PRODUCER_1: Final = struct.Struct(">qhqB")
_PRODUCER: Final = struct.Struct(">qhqBiq")
"""Producer id, epoch, time of the last append, number of batches; of version 2 the epoch of the coordinator that wrote
its last marker, and the first offset of its open transaction, both -1 without one."""
_BATCH: Final = struct.Struct(">iiqqq")
_CRC: Final = struct.Struct(">I")
_VERSION: Final = 2
_STRICT_VERSION: Final = 2
"""From this transaction version on each transaction has an epoch of its own."""


class BatchEntry(NamedTuple):
    """One appended batch; `append_time_ms` is -1 when the topic keeps the producer's timestamps."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    append_time_ms: int


class ProducerEntry:
    """One producer's epoch and latest batches."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_append_ms")

    def __init__(self, epoch: int, last_append_ms: int, coordinator_epoch: int = -1) -> None:
        self.coordinator_epoch = coordinator_epoch
        """Of the coordinator that wrote its last marker, -1 before the first."""
        self.epoch = epoch
        self.last_append_ms = last_append_ms
        self.batches: deque[BatchEntry] = deque(maxlen=BATCHES_KEPT)


class ProducerState:
    """The producers of one log, at most `limit` but for those with an open transaction."""

    __slots__ = ("_entries", "_limit", "aborted_from", "transactions")

    def __init__(self, limit: int, aborted: AbortedHistory | None = None) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._limit = limit
        self.aborted_from = -1
        """What the restored snapshot knows of aborted transactions: where the first marker lies, -1 without one."""
        self.transactions = Transactions(aborted)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Return what is known of a producer."""
        return self._entries.get(producer_id)

    def items(self) -> Iterator[tuple[int, ProducerEntry]]:
        """Yield producer id and entry of each."""
        yield from self._entries.items()

    def repeated(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int
    ) -> BatchEntry | None:
        """Return the remembered batch that one with these sequences repeats."""
        entry = self._entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            return None
        sequences = (first_sequence, last_sequence)
        return next((batch for batch in entry.batches if batch[:2] == sequences), None)

    @property
    def last_offsets(self) -> set[int]:
        """The last offsets of all remembered batches: compaction keeps these batches, if only their headers."""
        return {batch.last_offset for entry in self._entries.values() for batch in entry.batches}

    def check(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        last_delta: int,
        *,
        transactional: bool = False,
    ) -> BatchEntry | None:
        """Decide about a batch before it is appended; one without a sequence (-1) is a coordinator's.

        Returns:
            The earlier batch if this one repeats it, or None if it is to be appended.

        Raises:
            InvalidProducerEpochError: A newer epoch of the producer has written.
            OutOfOrderSequenceError: The sequence does not follow.
            ApiError: INVALID_TXN_STATE; the producer has a transaction open, and the batch is not part of it.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return None
        expected = 0
        if epoch == entry.epoch:
            if batches := entry.batches:
                last_sequence = (sequence + last_delta) & SEQUENCE_MASK
                for batch in batches:
                    if batch.first_sequence == sequence and batch.last_sequence == last_sequence:
                        return batch
                expected = (batches[-1].last_sequence + 1) & SEQUENCE_MASK
        elif epoch < entry.epoch:
            raise _fenced(producer_id, entry.epoch, "batch", epoch)
        if sequence != expected and sequence >= 0:
            message = (
                f"producer {producer_id} epoch {epoch}: sequence {sequence}, expected {expected}"
            )
            raise OutOfOrderSequenceError(message)
        if not transactional and producer_id in self.transactions.open:
            message = f"producer {producer_id} has a transaction open, the batch is outside of it"
            raise ApiError(ErrorCode.INVALID_TXN_STATE, message)
        return None

    def update(
        self,
        producer_id: int,
        epoch: int,
        batch: BatchEntry,
        now_ms: int,
        *,
        transactional: bool = False,
    ) -> None:
        """Take note of an appended (or replayed) batch."""
        entry = self._entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = self._begin_epoch(producer_id, epoch, now_ms)
        if batch.first_sequence >= 0:
            entry.batches.append(batch)
        entry.last_append_ms = now_ms
        if transactional:
            self.transactions.begin(producer_id, batch.base_offset)

    def _begin_epoch(self, producer_id: int, epoch: int, now_ms: int) -> ProducerEntry:
        known = self._entries.get(producer_id)
        if known is None and len(self._entries) >= self._limit:
            self._forget_idlest()
        coordinator_epoch = -1 if known is None else known.coordinator_epoch
        entry = self._entries[producer_id] = ProducerEntry(epoch, now_ms, coordinator_epoch)
        return entry

    def check_marker(self, marker: Marker) -> None:
        """Decide about a marker before it is appended.

        Raises:
            InvalidProducerEpochError: It belongs to an earlier epoch of the producer, or transaction.
            ApiError: TRANSACTION_COORDINATOR_FENCED; a newer coordinator has written a marker.
        """
        entry = self._entries.get(marker.producer_id)
        if entry is None:
            return
        newest_fenced = entry.epoch - 1
        if marker.transaction_version >= _STRICT_VERSION:
            # The epoch was raised before the marker: a marker with that of the open transaction ended one before it.
            newest_fenced += marker.producer_id in self.transactions.open
        if marker.producer_epoch <= newest_fenced:
            raise _fenced(marker.producer_id, entry.epoch, "marker", marker.producer_epoch)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            message = (
                f"the coordinator of producer {marker.producer_id} has epoch "
                f"{entry.coordinator_epoch}, the marker {marker.coordinator_epoch}"
            )
            raise ApiError(ErrorCode.TRANSACTION_COORDINATOR_FENCED, message)

    def end_transaction(self, marker: Marker, offset: int, now_ms: int) -> None:
        """Take note of an appended (or replayed) marker."""
        producer_id, epoch = marker.producer_id, marker.producer_epoch
        entry = self._entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = self._begin_epoch(producer_id, epoch, now_ms)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_append_ms = now_ms
        self.transactions.end(producer_id, offset, committed=marker.committed)

    def _forget_idlest(self) -> None:
        # An eighth at once, so that a flood of producer ids costs little per append.
        idle = self._entries.keys() - self.transactions.open.keys()
        idlest = sorted(idle, key=lambda key: self._entries[key].last_append_ms)
        for producer_id in idlest[: max(1, self._limit // 8)]:
            del self._entries[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers whose last append is longer ago than `expiration_ms`, unless a transaction is open."""
        horizon, is_open = now_ms - expiration_ms, self.transactions.open
        expired = [
            key
            for key, entry in self._entries.items()
            if entry.last_append_ms < horizon and key not in is_open
        ]
        for producer_id in expired:
            del self._entries[producer_id]

    def encode(self, offset: int) -> bytes:
        """Return the snapshot file of the state after all batches below `offset`."""
        parts = [_HEADER.pack(_MAGIC, _VERSION, 0, offset, len(self._entries))]
        aborted, is_open = self.transactions.aborted, self.transactions.open
        parts.append(_ABORTED.pack(aborted.first_marker))
        for producer_id, entry in self._entries.items():
            count = len(entry.batches)
            fields = (producer_id, entry.epoch, entry.last_append_ms, count)
            first_offset = is_open.get(producer_id, -1)
            parts.append(_PRODUCER.pack(*fields, entry.coordinator_epoch, first_offset))
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
            snapshot_offset,
        ) != (_MAGIC, offset):
            return False
        if version == 1:  # of a log without transactions
            self._restore(body, _HEADER.size, count, _PRODUCER_1)
        elif version == _VERSION:
            self.aborted_from = _ABORTED.unpack_from(body, _HEADER.size)[0]
            self._restore(body, _HEADER.size + _ABORTED.size, count, _PRODUCER)
        return version in (1, _VERSION)

    def _restore(self, body: bytes, position: int, count: int, layout: struct.Struct) -> None:
        entries: dict[int, ProducerEntry] = {}
        is_open: list[tuple[int, int]] = []
        for _ in range(count):
            producer_id, epoch, last_append_ms, batches, *rest = layout.unpack_from(body, position)
            position += layout.size
            entry = entries[producer_id] = ProducerEntry(epoch, last_append_ms, *rest[:1])
            if rest and rest[1] >= 0:
                is_open.append((producer_id, rest[1]))
            for _ in range(batches):
                entry.batches.append(BatchEntry(*_BATCH.unpack_from(body, position)))
                position += _BATCH.size
        self._entries = entries
        self.transactions = Transactions(self.transactions.aborted)
        self.transactions.restore(is_open)


def _fenced(producer_id: int, epoch: int, what: str, found: int) -> InvalidProducerEpochError:
    message = f"producer {producer_id} has epoch {epoch}, the {what} {found}"
    return InvalidProducerEpochError(message)
