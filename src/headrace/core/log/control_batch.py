"""Markers: control batches with one record, with which a coordinator ends a transaction in a partition.

The record is big-endian (Kafka's EndTransactionMarker and ControlRecordType). Key: int16 version 0, int16 type, 0 for
abort and 1 for commit. Value: int16 version 0, int32 epoch of the coordinator. The batch has the producer's id and
epoch, no sequence, and bits 4 and 5 of the attributes.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from headrace.records.batch import HEADER_SIZE, BatchHeader
from headrace.records.builder import BatchBuilder
from headrace.records.reader import decode_batch
from headrace.types import Buffer

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_ABORT: Final = 0
_COMMIT: Final = 1
MARKER_SIZE: Final = HEADER_SIZE + 17
"""The size of a marker's batch in bytes."""


class Marker(NamedTuple):
    """The end of a producer's transaction in one partition.

    Attributes:
        producer_id: The producer whose transaction ends.
        producer_epoch: The producer's epoch from here on.
        coordinator_epoch: The epoch of the coordinator that writes the marker.
        committed: Whether the transaction is committed; otherwise it is aborted.
        transaction_version: 2 when the epoch is raised with every transaction (KIP-890). Not part of the batch.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int = 0


def build_marker(marker: Marker, now_ms: int) -> bytes:
    """Return the batch of a marker."""
    builder = BatchBuilder(transactional=True, control=True)
    builder.append(
        _KEY.pack(0, _COMMIT if marker.committed else _ABORT),
        _VALUE.pack(0, marker.coordinator_epoch),
        (),
        now_ms,
    )
    return builder.build(marker.producer_id, marker.producer_epoch)


def read_marker(batch: Buffer) -> Marker | None:
    """Return the marker in a control batch.

    Returns:
        None if the control batch is of another kind, or compaction has left only its header.

    Raises:
        CorruptRecordError: The record cannot be decoded.
    """
    header = BatchHeader.parse(batch)
    if not header.records_count or len(batch) <= HEADER_SIZE:
        return None
    record = decode_batch(header, batch, 0)[0]
    key, value = record.key or b"", record.value or b""
    if len(key) < _KEY.size or len(value) < _VALUE.size:
        return None
    kind = _KEY.unpack_from(key)[1]
    if kind not in (_ABORT, _COMMIT):
        return None
    epoch = _VALUE.unpack_from(value)[1]
    return Marker(header.producer_id, header.producer_epoch, epoch, kind == _COMMIT)
