"""The state of the idempotent and transactional producers of one log (KIP-98, KIP-360).

The log keeps the last five batches of each producer to recognise retries: a client may have five batches in flight. A
batch that repeats one of them is answered with the offset of the first attempt. Otherwise its sequence must follow the
last one. A new producer epoch starts at sequence 0. An unknown producer id may start with any sequence, because its
state may have expired.

The log also keeps which producers have an open transaction: see `transactions`. A marker ends the transaction, unless
it has an older producer epoch or comes from an older coordinator. A producer with an open transaction is not forgotten.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Collection, Iterator
from itertools import islice, takewhile
from typing import Final

from crc32c import crc32c

from headrace.core.log.control_batch import Marker
from headrace.core.log.producers.aborted_history import AbortedHistory
from headrace.core.log.producers.producer_bound import ProducerBound
from headrace.core.log.producers.producer_entry import (
    BATCH_BYTES,
    BATCHES_KEPT,
    EMPTY_BYTES,
    END_BYTES,
    STATE_BYTES,
    BatchEntry,
    BatchFields,
    ProducerEntry,
    last_append_ms,
    may_be_passing,
    packed_batches,
    unpack_epoch,
    unpack_state,
    with_batch,
    with_time,
    without_batches,
)
from headrace.core.log.producers.transactions import LogTransactions
from headrace.errors import (
    ApiError,
    ErrorCode,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
)

_WORDS, _LAST_OFFSET = 4, 2
"""The number of int64 words of a batch in an entry, and the index of the word with the last offset."""
_NOTHING: Final = ProducerEntry(-1, -1, -1).encode()
SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequences wrap from 2^31 - 1 to 0: the largest sequence, as a bit mask."""

_MAGIC: Final = b"HRPS"
_HEADER: Final = struct.Struct(">4sHHqI")
"""Magic, version, unused, offset, number of producers."""
_ABORTED: Final = struct.Struct(">q")
"""The offset of the first marker of an aborted transaction, -1 without one. Since version 2."""
_PRODUCER_1: Final = struct.Struct(">qhqB")
_PRODUCER: Final = struct.Struct(">qhqBiq")
"""One producer of a snapshot, before its batches.

Producer id, epoch, time of the last append, number of batches. Since version 2 also the epoch of the coordinator that
wrote the producer's last marker, and the first offset of the producer's open transaction, both -1 without one.
"""
_PRODUCER_BYTES: Final = _PRODUCER.size + BATCHES_KEPT * BATCH_BYTES
_CRC: Final = struct.Struct(">I")
_VERSION: Final = 2
_STRICT_VERSION: Final = 2
"""The first transaction version in which each transaction has an epoch of its own (KIP-890)."""


class ProducerStates:
    """The producers of one log: at most `limit`, without those that have an open transaction."""

    __slots__ = ("_bound", "_entries", "_limit", "aborted_from", "transactions")

    def __init__(
        self,
        limit: int,
        aborted: AbortedHistory | None = None,
        bound: ProducerBound | None = None,
    ) -> None:
        """Begin without producers.

        Args:
            limit: The largest number of producers of this log.
            aborted: The aborted transactions of the log; None for none.
            bound: The bound that this log shares with others; None for a bound of its own.
        """
        self._bound = ProducerBound() if bound is None else bound
        self._bound.add(self)
        self._entries: dict[int, bytes] = {}
        """The entries by producer id, the longest idle producer first."""
        self._limit = limit
        self.aborted_from = -1
        """The offset of the first marker of an aborted transaction when the restored snapshot was written, -1 without
        one."""
        self.transactions = LogTransactions(aborted)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Return the state of a producer, None if it is unknown."""
        known = self._entries.get(producer_id)
        return None if known is None else ProducerEntry.decode(known)

    def items(self) -> Iterator[tuple[int, ProducerEntry]]:
        """Yield the id and the state of each producer."""
        for producer_id, known in self._entries.items():
            yield producer_id, ProducerEntry.decode(known)

    def repeated(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int
    ) -> BatchEntry | None:
        """Return the earlier batch of a producer with the same sequences, None if there is none."""
        entry = self.get(producer_id)
        if entry is None or entry.epoch != epoch:
            return None
        sequences = (first_sequence, last_sequence)
        return next((batch for batch in entry.batches if batch[:2] == sequences), None)

    @property
    def last_offsets(self) -> set[int]:
        """The last offsets of all batches in the state. Compaction keeps these batches, if only their headers."""
        fields = array("q", b"".join(packed_batches(known) for known in self._entries.values()))
        if sys.byteorder == "little":
            fields.byteswap()
        return set(fields[_LAST_OFFSET::_WORDS])

    def check(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        last_delta: int,
        *,
        transactional: bool = False,
    ) -> BatchEntry | None:
        """Check a batch before it is appended. A batch without a sequence (-1) comes from a coordinator.

        Returns:
            The earlier batch if this one repeats it, or None if it is to be appended.

        Raises:
            InvalidProducerEpochError: A newer epoch of the producer has written.
            OutOfOrderSequenceError: The sequence does not follow the last one.
            ApiError: INVALID_TXN_STATE; the producer has an open transaction, and the batch is not part of it.
        """
        known = self._entries.get(producer_id)
        if known is None:
            return None
        expected = 0
        if len(known) > EMPTY_BYTES:
            last_sequence, known_epoch = unpack_state(known, len(known) - STATE_BYTES)
        else:
            last_sequence, known_epoch = -1, unpack_epoch(known, len(known) - END_BYTES)[0]
        if epoch == known_epoch:
            # Before the first batch of an epoch the expected sequence is 0.
            expected = (last_sequence + 1) & SEQUENCE_MASK
            if sequence != expected:
                end_sequence = (sequence + last_delta) & SEQUENCE_MASK
                repeated = self.repeated(producer_id, epoch, sequence, end_sequence)
                if repeated is not None:
                    return repeated
        elif epoch < known_epoch:
            raise _fenced(producer_id, known_epoch, "batch", epoch)
        if sequence != expected and sequence >= 0:
            message = (
                f"producer {producer_id} epoch {epoch}: sequence {sequence}, expected {expected}"
            )
            raise OutOfOrderSequenceError(message)
        if not transactional and producer_id in self.transactions.open:
            message = (
                f"producer {producer_id} has an open transaction, and the batch is not part of it"
            )
            raise ApiError(ErrorCode.INVALID_TXN_STATE, message)
        return None

    def update(
        self,
        producer_id: int,
        epoch: int,
        batch: BatchFields,
        now_ms: int,
        *,
        transactional: bool = False,
    ) -> None:
        """Update the state of a producer after one of its batches was appended or replayed."""
        known = self._entries.pop(producer_id, None)
        if known is None or unpack_epoch(known, len(known) - END_BYTES)[0] != epoch:
            known = self._begin_epoch(known)
        # At the end of the dictionary: the longest idle producers come first.
        self._entries[producer_id] = (
            with_batch(known, epoch, now_ms, batch)
            if batch[0] >= 0
            else with_time(known, epoch, now_ms)
        )
        if transactional:
            self.transactions.begin(producer_id, batch[2])

    def _begin_epoch(self, known: bytes | None) -> bytes:
        """Return the entry of a producer at the beginning of an epoch. For a new producer others may be forgotten."""
        if known is not None:
            return without_batches(known)
        if len(self._entries) >= self._limit:
            self.forget_some()
        self._bound.make_space()
        self._bound.count += 1
        return _NOTHING

    def check_marker(self, marker: Marker) -> None:
        """Check a marker before it is appended.

        Raises:
            InvalidProducerEpochError: The marker belongs to an earlier epoch of the producer, or an earlier
                transaction.
            ApiError: TRANSACTION_COORDINATOR_FENCED; a newer coordinator has written a marker.
        """
        entry = self.get(marker.producer_id)
        if entry is None:
            return
        newest_fenced = entry.epoch - 1
        if marker.transaction_version >= _STRICT_VERSION:
            # The epoch was raised before the marker: a marker with the epoch of the open transaction belongs to an
            # earlier one.
            newest_fenced += marker.producer_id in self.transactions.open
        if marker.producer_epoch <= newest_fenced:
            raise _fenced(marker.producer_id, entry.epoch, "marker", marker.producer_epoch)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            message = (
                f"the coordinator of producer {marker.producer_id} has epoch "
                f"{entry.coordinator_epoch}; the marker has the older epoch {marker.coordinator_epoch}"
            )
            raise ApiError(ErrorCode.TRANSACTION_COORDINATOR_FENCED, message)

    def end_transaction(self, marker: Marker, offset: int, now_ms: int) -> None:
        """Update the state of a producer after a marker was appended or replayed."""
        producer_id, epoch = marker.producer_id, marker.producer_epoch
        known = self._entries.pop(producer_id, None)
        if known is None or unpack_epoch(known, len(known) - END_BYTES)[0] != epoch:
            known = self._begin_epoch(known)
        entry = ProducerEntry(epoch, now_ms, marker.coordinator_epoch, packed_batches(known))
        self._entries[producer_id] = entry.encode()
        self.transactions.end(producer_id, offset, committed=marker.committed)

    def forget_some(self) -> int:
        """Forget an eighth of the producers, none with an open transaction. Returns how many.

        The longest idle producers are forgotten, and first those that have appended one batch only: invented producer
        ids look like that. So they do not push out the state of a producer that goes on writing.
        """
        # An eighth at a time, so that many new producer ids cost little per append.
        wanted, is_open = max(1, len(self._entries) // 8), self.transactions.open
        idle = [item for item in self._entries.items() if item[0] not in is_open]
        chosen = list(islice((key for key, known in idle if may_be_passing(known)), wanted))
        if len(chosen) < wanted:
            others = (key for key, known in idle if not may_be_passing(known))
            chosen += islice(others, wanted - len(chosen))
        self._forget(chosen)
        return len(chosen)

    def _forget(self, producer_ids: Collection[int]) -> None:
        for producer_id in producer_ids:
            del self._entries[producer_id]
        self._bound.count -= len(producer_ids)

    def close(self) -> None:
        """Release what the log holds of the shared bounds."""
        self._bound.remove(self)
        self._bound = ProducerBound()
        self.transactions.aborted.close()

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget the producers whose last append is older than `expiration_ms`, unless a transaction is open."""
        horizon, is_open = now_ms - expiration_ms, self.transactions.open
        idle = (item for item in self._entries.items() if item[0] not in is_open)
        # The longest idle producers come first.
        expired = takewhile(lambda item: last_append_ms(item[1]) < horizon, idle)
        self._forget([producer_id for producer_id, _ in expired])

    @property
    def snapshot_size(self) -> int:
        """The largest size in bytes that a snapshot file could have now."""
        return _PRODUCER_BYTES * len(self._entries)

    def keep_deleted(self, known: ProducerStates, end_offset: int) -> None:
        """Add what only the state before a truncation knows: batches of producers that are deleted.

        Args:
            known: The state before the truncation.
            end_offset: The new log end offset. Batches above it are left out.
        """
        absent: dict[int, bytes] = {}
        for producer_id, entry in known.items():
            count = sum(batch.last_offset < end_offset for batch in entry.batches)
            packed, present = entry.packed_batches[: count * BATCH_BYTES], self.get(producer_id)
            if present is None:
                if count:
                    absent[producer_id] = entry._replace(packed_batches=packed).encode()
            elif present.epoch == entry.epoch and len(present.packed_batches) < len(packed):
                # Both end with the same batch, or all batches of the producer are deleted.
                self._entries[producer_id] = present._replace(packed_batches=packed).encode()
        self._entries = absent | self._entries  # the longest idle producers come first
        self._bound.count += len(absent)

    def encode(self, offset: int) -> bytes:
        """Return the snapshot file of the state after all batches below `offset`."""
        parts = [_HEADER.pack(_MAGIC, _VERSION, 0, offset, len(self._entries))]
        aborted, is_open = self.transactions.aborted, self.transactions.open
        parts.append(_ABORTED.pack(aborted.first_marker))
        for producer_id, entry in self.items():
            count = len(entry.packed_batches) // BATCH_BYTES
            fields = (producer_id, entry.epoch, entry.last_append_ms, count)
            first_offset = is_open.get(producer_id, -1)
            parts.append(_PRODUCER.pack(*fields, entry.coordinator_epoch, first_offset))
            parts.append(entry.packed_batches)
        content = b"".join(parts)
        return content + _CRC.pack(crc32c(content))

    def restore(self, content: bytes | None, offset: int) -> bool:
        """Replace the state by a snapshot of `offset`. Returns false, without a change, unless the file is sound."""
        if content is None or len(content) < _HEADER.size + _CRC.size:
            return False
        body = content[: -_CRC.size]
        magic, version, _, snapshot_offset, count = _HEADER.unpack_from(body)
        if _CRC.unpack_from(content, len(body))[0] != crc32c(body) or (
            magic,
            snapshot_offset,
        ) != (_MAGIC, offset):
            return False
        if version == 1:  # written by a version without transactions
            self._restore(body, _HEADER.size, count, _PRODUCER_1)
        elif version == _VERSION:
            self.aborted_from = _ABORTED.unpack_from(body, _HEADER.size)[0]
            self._restore(body, _HEADER.size + _ABORTED.size, count, _PRODUCER)
        return version in (1, _VERSION)

    def _restore(self, body: bytes, position: int, count: int, layout: struct.Struct) -> None:
        entries: dict[int, bytes] = {}
        is_open: list[tuple[int, int]] = []
        for _ in range(count):
            producer_id, epoch, time_ms, batches, *rest = layout.unpack_from(body, position)
            position += layout.size
            coordinator_epoch = rest[0] if rest else -1
            if rest and rest[1] >= 0:
                is_open.append((producer_id, rest[1]))
            end = position + batches * BATCH_BYTES
            entry = ProducerEntry(epoch, time_ms, coordinator_epoch, body[position:end])
            entries[producer_id] = entry.encode()
            position = end
        self._bound.count += len(entries) - len(self._entries)
        self._entries = entries
        self.transactions = LogTransactions(self.transactions.aborted)
        self.transactions.restore(is_open)


def _fenced(producer_id: int, epoch: int, what: str, found: int) -> InvalidProducerEpochError:
    message = f"producer {producer_id} has epoch {epoch}; the {what} has epoch {found}"
    return InvalidProducerEpochError(message)
