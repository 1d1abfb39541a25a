"""The state of one producer as a few bytes: there may be hundreds of thousands.

Bytes have no references to other objects, so the garbage collector does not visit them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

BATCHES_KEPT: Final = 5
BATCH_BYTES: Final = 32

_COORDINATOR: Final = struct.Struct(">i")
"""The beginning of an entry: the epoch of the coordinator. The batches follow."""
_BATCH: Final = struct.Struct(">iiqqq")
_END: Final = struct.Struct(">hq")
"""The end of an entry: producer epoch, time of the last append in milliseconds."""
_LAST: Final = struct.Struct(">iiqqqhq")
"""The last batch of an entry, and the end of the entry."""
_COORDINATOR_BYTES: Final = _COORDINATOR.size
STATE_BYTES: Final = _LAST.size
END_BYTES: Final = _END.size
EMPTY_BYTES: Final = _COORDINATOR.size + _END.size
"""The size in bytes of an entry without batches."""
_FULL_BYTES: Final = EMPTY_BYTES + BATCHES_KEPT * BATCH_BYTES
_AFTER_FIRST: Final = _COORDINATOR.size + BATCH_BYTES
_pack_last: Final = _LAST.pack
unpack_state: Final = struct.Struct(">4xi24xh8x").unpack_from
"""Return the last sequence and the epoch from the last `STATE_BYTES` of an entry that has a batch."""
unpack_epoch: Final = struct.Struct(">h8x").unpack_from
"""Return the epoch from the last `END_BYTES` of an entry."""

BatchFields = tuple[int, int, int, int, int]
"""The fields of a `BatchEntry` as a plain tuple, which is cheaper to make."""


class BatchEntry(NamedTuple):
    """One appended batch. `append_time_ms` is -1 when the topic keeps the producer's timestamps."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    append_time_ms: int


class ProducerEntry(NamedTuple):
    """The state of one producer. `coordinator_epoch` is the epoch in its last marker, -1 before the first marker."""

    epoch: int
    last_append_ms: int
    coordinator_epoch: int
    packed_batches: bytes = b""
    """The last five batches in the format of a snapshot, big-endian."""

    @classmethod
    def decode(cls, known: bytes) -> ProducerEntry:
        """Return the state from the bytes of an entry."""
        end = len(known) - _END.size
        (coordinator_epoch,) = _COORDINATOR.unpack_from(known)
        epoch, time_ms = _END.unpack_from(known, end)
        return cls(epoch, time_ms, coordinator_epoch, known[_COORDINATOR.size : end])

    def encode(self) -> bytes:
        """Return the bytes of an entry."""
        coordinator_epoch = _COORDINATOR.pack(self.coordinator_epoch)
        end = _END.pack(self.epoch, self.last_append_ms)
        return coordinator_epoch + self.packed_batches + end

    @property
    def batches(self) -> Sequence[BatchEntry]:
        """The last five batches, the newest last."""
        return [BatchEntry._make(fields) for fields in _BATCH.iter_unpack(self.packed_batches)]

    @property
    def last_sequence(self) -> int:
        """The last sequence of the last batch, -1 before the first."""
        return self.batches[-1].last_sequence if self.packed_batches else -1


def with_batch(known: bytes, epoch: int, now_ms: int, batch: BatchFields) -> bytes:
    """Return an entry with one more batch of its epoch. It keeps the five newest batches."""
    if len(known) == _FULL_BYTES:
        return (
            known[:_COORDINATOR_BYTES]
            + known[_AFTER_FIRST:-END_BYTES]
            + _pack_last(*batch, epoch, now_ms)
        )
    return known[:-END_BYTES] + _pack_last(*batch, epoch, now_ms)


def with_time(known: bytes, epoch: int, now_ms: int) -> bytes:
    """Return an entry after an append without a sequence."""
    return known[: -_END.size] + _END.pack(epoch, now_ms)


def without_batches(known: bytes) -> bytes:
    """Return an entry at the beginning of the next epoch."""
    return known[: _COORDINATOR.size] + known[-_END.size :]


def packed_batches(known: bytes) -> bytes:
    """Return the batches of an entry in the format of a snapshot."""
    return known[_COORDINATOR.size : -_END.size]


def last_append_ms(known: bytes) -> int:
    """Return the time of the last append of an entry's producer, in milliseconds."""
    time_ms: int = _END.unpack_from(known, len(known) - _END.size)[1]
    return time_ms


def may_be_passing(known: bytes) -> bool:
    """Return whether an entry has one batch at most, and no coordinator knows its producer."""
    return len(known) <= EMPTY_BYTES + BATCH_BYTES and _COORDINATOR.unpack_from(known)[0] < 0
