"""Checks of a batch that a client has produced, and the header fields that the broker may change in it."""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from headrace.core.log.append.keys import require_keys
from headrace.core.log.config import LogConfig
from headrace.errors import ApiError, ErrorCode
from headrace.records.batch import (
    BASE_TIMESTAMP,
    BATCH_LENGTH,
    COMPRESSION_MASK,
    CONTROL_FLAG,
    CRC,
    CRC_POSITION,
    CRC_START,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_BYTE,
    MAGIC_POSITION,
    MAX_RECORDS,
    MAX_TIMESTAMP,
    MAX_TIMESTAMP_POSITION,
    MIN_BATCH_LENGTH,
    MIN_RECORD_SIZE,
    TRANSACTIONAL_FLAG,
    HeaderFields,
    TimestampType,
    unpack_header,
)
from headrace.records.compression import Compression
from headrace.types import NO_TIMESTAMP, Buffer

_REFUSED_FLAGS: Final = CONTROL_FLAG | LOG_APPEND_TIME_FLAG
_LAST_CODEC: Final = max(Compression)
_UINT32: Final = struct.Struct(">I")
_INT64: Final = struct.Struct(">q")


def check_produced(records: Buffer, config: LogConfig, now_ms: int) -> HeaderFields:
    """Check a batch for a log with this configuration; see `validate_batch`.

    Raises:
        ApiError: The batch is refused.
    """
    fields = validate_batch(records, config.max_message_bytes, config.message_timestamp_type)
    if config.message_timestamp_type == TimestampType.CREATE_TIME:
        require_timely(fields, config, now_ms)
    if len(records) > config.segment_bytes:
        message = (
            f"the batch has {len(records)} bytes, more than segment.bytes ({config.segment_bytes})"
        )
        raise ApiError.for_code(ErrorCode.RECORD_LIST_TOO_LARGE, message)
    if config.compacts:
        require_keys(records)
    return fields


def validate_batch(
    records: Buffer, max_message_bytes: int, timestamp_type: TimestampType
) -> HeaderFields:
    """Check that the `records` field of a Produce request is exactly one sound batch that a client may write.

    The records themselves are not decoded.

    Returns:
        The header of the batch.

    Raises:
        ApiError: INVALID_RECORD, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE
            or INVALID_TIMESTAMP.
    """
    size = len(records)
    if size < HEADER_SIZE:
        raise _short(records)
    fields: HeaderFields = unpack_header(records)
    (
        base_offset,
        length,
        _,
        magic,
        crc,
        attributes,
        delta,
        _,
        _,
        producer_id,
        epoch,
        sequence,
        count,
    ) = fields
    if (
        # One expression, so that a sound batch is checked in one pass. Which check failed is found out afterwards.
        length + LOG_OVERHEAD == size <= max_message_bytes
        and magic == MAGIC
        and base_offset == 0
        and 0 <= delta == count - 1 < MAX_RECORDS
        and not attributes & _REFUSED_FLAGS
        and attributes & COMPRESSION_MASK <= _LAST_CODEC
        and (
            sequence >= 0 and epoch >= 0
            if producer_id >= 0
            else not attributes & TRANSACTIONAL_FLAG
        )
        and (count * MIN_RECORD_SIZE <= size - HEADER_SIZE or attributes & COMPRESSION_MASK)
        and crc32c(memoryview(records)[CRC_START:]) == crc
    ):
        return fields
    _refuse_layout(records, fields, max_message_bytes)
    _refuse_content(fields, size, timestamp_type)
    return fields


def require_timely(fields: HeaderFields, config: LogConfig, now_ms: int) -> None:
    """Refuse a batch whose timestamps are too far from the broker's clock.

    Only the header is checked: it has the largest timestamp, and the timestamp of the first record. A later record that
    is older than the first one is not found, because records are not decoded here. The timestamp -1 means none; it is
    allowed.

    Raises:
        ApiError: INVALID_TIMESTAMP.
    """
    first, newest = fields[BASE_TIMESTAMP], fields[MAX_TIMESTAMP]
    if newest - now_ms > config.message_timestamp_after_max_ms:
        message = (
            f"timestamp {newest} is {newest - now_ms} ms ahead of the broker's clock; "
            f"message.timestamp.after.max.ms is {config.message_timestamp_after_max_ms}"
        )
    elif NO_TIMESTAMP != first < now_ms - config.message_timestamp_before_max_ms:
        message = (
            f"timestamp {first} is {now_ms - first} ms behind the broker's clock; "
            f"message.timestamp.before.max.ms is {config.message_timestamp_before_max_ms}"
        )
    else:
        return
    raise ApiError.for_code(ErrorCode.INVALID_TIMESTAMP, message)


def with_log_append_time(records: Buffer, now_ms: int) -> bytearray:
    """Return a copy of a batch with the broker's time: the attributes, the max timestamp and the CRC change."""
    batch = bytearray(records)
    batch[CRC_START + 1] |= LOG_APPEND_TIME_FLAG
    _INT64.pack_into(batch, MAX_TIMESTAMP_POSITION, now_ms)
    _UINT32.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def _short(records: Buffer) -> ApiError:
    if len(records) > MAGIC_POSITION and records[MAGIC_POSITION] != MAGIC:
        return _wrong_magic(records[MAGIC_POSITION])
    return ApiError.for_code(
        ErrorCode.INVALID_RECORD, f"{len(records)} bytes are too few for a record batch"
    )


def _wrong_magic(magic: int) -> ApiError:
    message = f"message format {magic}; only format {MAGIC} is accepted"
    was_one = 0 <= magic < MAGIC
    return ApiError.for_code(
        ErrorCode.INVALID_RECORD if was_one else ErrorCode.CORRUPT_MESSAGE, message
    )


def _refuse_layout(records: Buffer, fields: HeaderFields, max_message_bytes: int) -> None:
    size, length, magic = len(records), fields[BATCH_LENGTH], fields[MAGIC_BYTE]
    if magic != MAGIC:
        raise _wrong_magic(magic)
    if length < MIN_BATCH_LENGTH:
        raise ApiError.for_code(ErrorCode.CORRUPT_MESSAGE, f"batch length {length}")
    if length + LOG_OVERHEAD > size:
        # Not CORRUPT_MESSAGE, upon which clients retry: a batch that the client cut short stays so.
        message = f"batch length {length} in {size} bytes"
        raise ApiError.for_code(ErrorCode.INVALID_RECORD, message)
    if length + LOG_OVERHEAD < size:
        raise ApiError.for_code(ErrorCode.INVALID_RECORD, "more than one batch for a partition")
    if size > max_message_bytes:
        message = f"the batch has {size} bytes, more than max.message.bytes ({max_message_bytes})"
        raise ApiError.for_code(ErrorCode.MESSAGE_TOO_LARGE, message)
    if crc32c(memoryview(records)[CRC_START:]) != fields[CRC]:
        raise ApiError.for_code(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match")


def _refuse_content(fields: HeaderFields, size: int, timestamp_type: TimestampType) -> None:
    base_offset, _, _, _, _, attributes, delta, _, _, producer_id, epoch, sequence, count = fields
    codec = attributes & COMPRESSION_MASK
    if attributes & CONTROL_FLAG:
        raise ApiError.for_code(ErrorCode.INVALID_RECORD, "clients must not write control batches")
    if attributes & TRANSACTIONAL_FLAG and producer_id < 0:
        message = "a transactional batch has no producer id"
        raise ApiError.for_code(ErrorCode.INVALID_RECORD, message)
    if base_offset != 0:
        message = f"base offset {base_offset} in a produced batch; it has to be 0"
        raise ApiError.for_code(ErrorCode.INVALID_RECORD, message)
    if count < 1 or delta != count - 1:
        message = f"{count} records with last offset delta {delta}"
        raise ApiError.for_code(ErrorCode.INVALID_RECORD, message)
    if codec > _LAST_CODEC:
        raise ApiError.for_code(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {codec}")
    if not codec and count * MIN_RECORD_SIZE > size - HEADER_SIZE:
        message = f"{count} records claimed in {size} bytes"
        raise ApiError.for_code(ErrorCode.INVALID_RECORD, message)
    if count > MAX_RECORDS:
        # Not INVALID_RECORD: upon MESSAGE_TOO_LARGE producers split a batch and send the parts.
        message = f"the batch has {count} records, at most {MAX_RECORDS} are allowed. Send smaller batches."
        raise ApiError.for_code(ErrorCode.MESSAGE_TOO_LARGE, message)
    if producer_id >= 0 and (sequence < 0 or epoch < 0):
        message = f"producer id {producer_id} with epoch {epoch} and sequence {sequence}"
        raise ApiError.for_code(ErrorCode.INVALID_RECORD, message)
    if attributes & LOG_APPEND_TIME_FLAG and timestamp_type == TimestampType.CREATE_TIME:
        message = (
            "the batch has append time, but the topic takes the producer's timestamps (CreateTime)"
        )
        raise ApiError.for_code(ErrorCode.INVALID_TIMESTAMP, message)
