"""A produced batch with delayed records, divided in two: what is appended now, and what waits in the schedule.

Which record waits is for its headers to say, never for the time: a retry is divided just like the first attempt. Both
parts have the producer's id, epoch and base sequence, and each log recognises a retry of its own part; so it does not
matter which of the two a power cut has left. Whether a batch was divided can be told from what the partition has of it,
as long as cleaning has not taken what would tell (`was_divided`).

What is appended now keeps its offsets as the producer counted them, with gaps where delayed records were. If all
records are delayed it is a control record that means nothing: clients pass over it, as over markers of transactions.
(Not a batch without records: librdkafka takes ten of those in a row for batches that are too large for it.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from headrace.core.delay.schedule_batch import Waiting, encode_waiting, sealed
from headrace.errors import ApiError, CorruptRecordError, ErrorCode, InvalidRecordError
from headrace.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    CRC_START,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from headrace.records.builder import Headers
from headrace.records.directives import DELAY_MS, DELIVER_AT_MS, TTL_MS, decode_ms
from headrace.records.raw import records_of
from headrace.records.reader import Record, decode_data
from headrace.records.refusal import InvalidRecordsError, require_few
from headrace.records.rewriting import placeholder_record, with_records
from headrace.records.varint import decode_varint
from headrace.types import Buffer

_COMMON: Final = b"headrace.del"
"""What the names of both headers begin with: a batch without it is not looked at any closer."""
_MOST_REPORTED: Final = 100


class Divided(NamedTuple):
    """The two parts of a batch."""

    now: Buffer
    later: bytes
    earliest_ms: int
    """When the first record of `later` is due."""


def may_be_delayed(records: Buffer) -> bool:
    """Whether a batch has to be looked at: it names a header that delays, or is compressed."""
    if len(records) < HEADER_SIZE:
        return False
    return bool(records[CRC_START + 1] & COMPRESSION_MASK) or _COMMON in bytes(records)


def divide(records: Buffer, *, now_ms: int, max_delay_ms: int | None) -> Divided | None:
    """Divide a sound batch; None if none of its records is delayed.

    Args:
        records: The batch.
        now_ms: The schedule's time: delays count from it, and what was due before is due then.
        max_delay_ms: The longest delay that is accepted; None accepts all, as of a batch that has been accepted before.

    Raises:
        ApiError: INVALID_RECORD; a header is not well-formed, or the delay too long, or the batch is transactional.
    """
    header = BatchHeader.parse(records)
    try:
        data = records_of(header, records)
        if _COMMON not in data:
            return None
        require_few(header)
        decoded = decode_data(header, data)
        dues = _dues(decoded, now_ms, max_delay_ms)
        if dues is None:
            return None
        if header.attributes & TRANSACTIONAL_FLAG:
            raise ApiError(
                ErrorCode.INVALID_RECORD,
                "a delayed record in a transaction: delayed delivery is not transactional",
            )
        waiting = [
            Waiting(max(due, now_ms), data[start:end])
            for due, (start, end) in zip(dues, _slices(data, len(dues)), strict=True)
            if due is not None
        ]
        now = _now_part(header, data, [due is None for due in dues], now_ms)
    except CorruptRecordError as error:
        raise InvalidRecordError(str(error)) from error
    later = encode_waiting(header, waiting, now_ms)
    return Divided(now, later, min(entry.due_ms for entry in waiting))


def delayed_of(header: BatchHeader, records: Buffer) -> list[Record]:
    """Return the delayed records of a sound batch.

    Raises:
        ApiError: MESSAGE_TOO_LARGE; they are more than are looked into.
        CorruptRecordError: They do not decode.
    """
    require_few(header)
    decoded = decode_data(header, records_of(header, records))
    return [each for each in decoded if not {DELIVER_AT_MS, DELAY_MS}.isdisjoint(_names(each))]


def was_divided(
    header: BatchHeader, delayed: list[Record], stored: Buffer, *, compacts: bool
) -> bool | None:
    """Return whether a stored batch is what division has left; None if cleaning may have left the same.

    Args:
        header: Of the batch as it is produced once more.
        delayed: Those of its records that are delayed.
        stored: What the partition has of it; not a control batch.
        compacts: Whether a record may have gone for a newer one of its key, besides for its time to live.

    Raises:
        CorruptRecordError: What is stored does not decode.
    """
    of_stored = BatchHeader.parse(stored)
    kept = decode_data(of_stored, records_of(of_stored, stored))
    there = {record.offset - of_stored.base_offset for record in kept}
    if any(record.offset - header.base_offset in there for record in delayed):
        return False
    gone = compacts or all(TTL_MS in _names(record) for record in delayed)
    return None if gone else True


def _names(record: Record) -> set[str]:
    return {name for name, _ in record.headers}


def _slices(data: bytes, count: int) -> Iterator[tuple[int, int]]:
    """Yield where the records lie that have been found to decode."""
    position = 0
    for _ in range(count):
        length, start = decode_varint(data, position)
        yield position, start + length
        position = start + length


def _dues(records: list[Record], now_ms: int, max_delay_ms: int | None) -> list[int | None] | None:
    """Return of each record when it is due, None if it is not delayed; None if none is."""
    dues: list[int | None] = []
    wrong: list[int] = []
    reason = ""
    for number, record in enumerate(records):
        try:
            dues.append(_due(record.headers, now_ms, max_delay_ms) if record.headers else None)
        except InvalidRecordError as error:
            reason = reason or error.message
            wrong.append(number)
    if wrong:
        raise InvalidRecordsError(reason, wrong[:_MOST_REPORTED], reason)
    return dues if any(due is not None for due in dues) else None


def _due(headers: Headers, now_ms: int, max_delay_ms: int | None) -> int | None:
    due: int | None = None
    for name, content in headers:
        if name in (DELIVER_AT_MS, DELAY_MS):
            if due is not None:
                raise InvalidRecordError(
                    f"a record has one header {DELIVER_AT_MS} or {DELAY_MS}, not several"
                )
            due = decode_ms(content, name) + (now_ms if name == DELAY_MS else 0)
    if due is not None and max_delay_ms is not None and due - now_ms > max_delay_ms:
        raise InvalidRecordError(
            f"a record is delayed by {due - now_ms} ms; headrace.delay.max.ms is {max_delay_ms}"
        )
    return due


def _now_part(header: BatchHeader, data: bytes, stays: list[bool], now_ms: int) -> Buffer:
    if any(stays):
        return with_records(header, data, stays)
    return sealed(
        header._replace(
            attributes=CONTROL_FLAG,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            records_count=1,
        ),
        placeholder_record(header.last_offset_delta),
    )
