"""Checks of the batches that a follower has received from its leader.

The leader has checked the records, and the CRC covers them. So only headers are decoded here. Base offset and leader
epoch lie outside the CRC: offsets have to rise and epochs must not fall, within the call and against the log. A gap
between two offsets is legal, because the leader may have compacted what lay there.
"""

from __future__ import annotations

from crc32c import crc32c

from headrace.core.log.control_batch import read_marker
from headrace.core.log.offsets import MAX_OFFSET_SPAN
from headrace.core.log.producers.replay import is_marker
from headrace.core.log.recovery.segment_scan import header_fault
from headrace.errors import CorruptMessageError, CorruptRecordError, InvalidRecordError
from headrace.records.batch import (
    BASE_OFFSET,
    BATCH_LENGTH,
    CRC,
    CRC_START,
    HEADER_SIZE,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LOG_OVERHEAD,
    RECORDS_COUNT,
    HeaderFields,
    unpack_header,
)
from headrace.types import Buffer


def check_replicated(
    records: Buffer, end_offset: int, epoch: int, *, is_empty: bool
) -> list[tuple[HeaderFields, memoryview]]:
    """Check that bytes are whole, sound batches that continue a log.

    Args:
        records: The batches, one after the other. They may come from a stranger.
        end_offset: The log end offset.
        epoch: The newest leader epoch of the log, -1 without one.
        is_empty: Whether the log has no batch. The first batch of such a log may begin below the end offset and hold
            it: DeleteRecords can move the leader's log start offset into a batch.

    Returns:
        (header, bytes) of each batch.

    Raises:
        CorruptMessageError: The bytes are damaged.
        InvalidRecordError: The batches are sound, and do not continue the log.
    """
    checked: list[tuple[HeaderFields, memoryview]] = []
    view, position = memoryview(records), 0
    while position < len(view):
        header, batch = _sound_batch(view, position)
        base_offset, last_offset = (
            header[BASE_OFFSET],
            header[BASE_OFFSET] + header[LAST_OFFSET_DELTA],
        )
        holds_start = is_empty and not checked and base_offset >= 0 and last_offset >= end_offset
        if base_offset < end_offset and not holds_start:
            raise InvalidRecordError(f"base offset {base_offset} below the log end {end_offset}")
        if last_offset - end_offset > MAX_OFFSET_SPAN:
            raise InvalidRecordError(
                f"last offset {last_offset} far above the log end {end_offset}"
            )
        if header[LEADER_EPOCH] < epoch:
            raise InvalidRecordError(f"leader epoch {header[LEADER_EPOCH]} after {epoch}")
        end_offset, epoch = last_offset + 1, header[LEADER_EPOCH]
        checked.append((header, batch))
        position += len(batch)
    return checked


def _sound_batch(view: memoryview, position: int) -> tuple[HeaderFields, memoryview]:
    if position + HEADER_SIZE > len(view):
        raise CorruptMessageError(f"no whole batch header at byte {position} of {len(view)}")
    header: HeaderFields = unpack_header(view, position)
    if fault := header_fault(header, len(view) - position):
        raise CorruptMessageError(f"{fault} at byte {position} of {len(view)}")
    if not 0 <= header[RECORDS_COUNT] <= header[LAST_OFFSET_DELTA] + 1:
        raise CorruptMessageError(
            f"{header[RECORDS_COUNT]} records with last offset delta {header[LAST_OFFSET_DELTA]}"
        )
    batch = view[position : position + LOG_OVERHEAD + header[BATCH_LENGTH]]
    if crc32c(batch[CRC_START:]) != header[CRC]:
        raise CorruptMessageError(
            f"the CRC of the batch at offset {header[BASE_OFFSET]} does not match"
        )
    if is_marker(header):
        try:
            read_marker(batch)
        except CorruptRecordError as error:
            raise CorruptMessageError(f"marker at offset {header[BASE_OFFSET]}: {error}") from error
    return header, batch
