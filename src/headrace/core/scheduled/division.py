"""Dividing a produced batch with scheduled records into two: what is appended now, and what waits in the schedule.

Only the headers of a record decide whether it waits, never the time. So a retry is divided like the first attempt. Both
parts have the producer's id, epoch and base sequence, and each log recognises a retry of its own part. So it does not
matter which of the two parts a power cut has left. The stored part of a batch shows whether the batch was divided, as
long as cleaning has not removed the evidence (`was_divided`).

The part that is appended now keeps its offsets as the producer counted them, with gaps for the scheduled records. If
all records are scheduled, this part is a control record without a meaning, which clients skip like the markers of
transactions. (Not a batch without records: librdkafka takes ten of those in a row for batches that are too large.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.core.scheduled.schedule_batch import Waiting, encode_waiting, sealed
from headrace.errors import ApiError, CorruptRecordError, ErrorCode, InvalidRecordError
from headrace.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    CRC_START,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from headrace.records.compression import FAST
from headrace.records.directives import DELAY_MS, DELIVER_AT_MS, TTL_MS, decode_ms
from headrace.records.raw import RecordPlace, headers_in, record_places, records_of
from headrace.records.refusal import (
    LOOK_BYTES,
    MAX_DIRECTED,
    MAX_HEADERS,
    InvalidRecordsError,
    produced_records,
    require_few,
)
from headrace.records.rewriting import placeholder_record, with_records
from headrace.types import Buffer

_COMMON: Final = b"headrace.del"
"""The common beginning of both header names. A batch without these bytes has no scheduled record."""
_DELAYING: Final = {name.encode(): name for name in (DELIVER_AT_MS, DELAY_MS)}
_TTL: Final = TTL_MS.encode()
_MOST_REPORTED: Final = 100
MAX_SCHEDULED_BYTES: Final = 2 << 20
"""The largest size in bytes of the records of a batch with scheduled records: they are written to the schedule
unchanged."""


class Divided(NamedTuple):
    """The two parts of a batch."""

    now: Buffer
    later: bytes
    earliest_ms: int
    """The delivery time of the first record in `later`, in milliseconds since 1970."""


def may_be_scheduled(records: Buffer) -> bool:
    """Return whether a batch has to be decoded: it names a header of scheduled records, or is compressed."""
    if len(records) < HEADER_SIZE:
        return False
    return bool(records[CRC_START + 1] & COMPRESSION_MASK) or _COMMON in bytes(records)


def divide(
    records: Buffer, *, now_ms: int, max_delay_ms: int | None, data: bytes | None = None
) -> Divided | None:
    """Divide a sound batch. Returns None if none of its records is scheduled.

    Args:
        records: The batch.
        now_ms: The schedule's time. Delays count from it, and earlier delivery times become this time.
        max_delay_ms: The longest delay that is accepted. None accepts all, for a batch that was accepted before.
        data: The decompressed bytes of the records; None if they are not decompressed yet.

    Raises:
        ApiError: INVALID_RECORD; a header is malformed, the delay is too long, or the batch is transactional.
            MESSAGE_TOO_LARGE; there are more records, or more bytes of records, than the broker decodes.
    """
    header = BatchHeader.parse(records)
    if data is None:
        data = produced_records(header, records)
    if _COMMON not in data:
        return None
    require_few(header, MAX_DIRECTED, "with scheduled records")
    if len(data) > MAX_SCHEDULED_BYTES:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {len(data)} bytes of records; a batch with scheduled records has at most "
            f"{MAX_SCHEDULED_BYTES}. Send smaller batches.",
        )
    try:
        places = list(record_places(data, header.records_count))
        dues = _dues(data, places, now_ms, max_delay_ms)
        if dues is None:
            return None
        if header.attributes & TRANSACTIONAL_FLAG:
            raise ApiError(
                ErrorCode.INVALID_RECORD,
                "a transactional batch has a scheduled record: delayed delivery is not transactional. Send the record "
                "outside of the transaction.",
            )
        waiting = [
            Waiting(max(due, now_ms), data[start:end])
            for due, (start, end, *_) in zip(dues, places, strict=True)
            if due is not None
        ]
        now = _now_part(header, data, [due is None for due in dues], now_ms)
    except CorruptRecordError as error:
        raise InvalidRecordError(str(error)) from error
    later = encode_waiting(header, waiting, now_ms)
    return Divided(now, later, min(entry.due_ms for entry in waiting))


class ScheduledRecord(NamedTuple):
    """A scheduled record of a produced batch: its offset in the batch, and whether it has a time to live."""

    offset_delta: int
    has_ttl: bool


def scheduled_in(header: BatchHeader, records: Buffer) -> list[ScheduledRecord]:
    """Return the scheduled records of a sound batch.

    Raises:
        ApiError: MESSAGE_TOO_LARGE; there are more records, or more bytes of records, than the broker decodes.
        InvalidRecordError: The records cannot be decompressed.
        CorruptRecordError: The records cannot be decoded.
    """
    require_few(header, MAX_DIRECTED, "with scheduled records")
    data = produced_records(header, records)
    delayed: list[ScheduledRecord] = []
    headers_of = _Headers(data)
    for place in record_places(data, header.records_count):
        names = {name for name, _ in headers_of(place)}
        if names & _DELAYING.keys():
            delayed.append(ScheduledRecord(place[3], _TTL in names))
    return delayed


def was_divided(delayed: list[ScheduledRecord], stored: Buffer, *, compacts: bool) -> bool | None:
    """Return whether a stored batch is the rest of a divided batch, None if cleaning may have left the same.

    Args:
        delayed: The scheduled records of the batch, as it is produced once more.
        stored: The batch in the partition; not a control batch.
        compacts: Whether compaction may have removed records of the batch.

    Raises:
        CorruptRecordError: The stored batch cannot be decoded, or decompresses to more than the broker decodes.
    """
    header = BatchHeader.parse(stored)
    data = records_of(header, stored, LOOK_BYTES)
    there = {place[3] for place in record_places(data, header.records_count)}
    if any(record.offset_delta in there for record in delayed):
        return False
    gone = compacts or all(record.has_ttl for record in delayed)
    return None if gone else True


class _Headers:
    """Reads the headers of records that name a directive. For other records it returns no headers."""

    __slots__ = ("_data", "_left")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = MAX_HEADERS

    def __call__(self, place: RecordPlace) -> Sequence[tuple[bytes, bytes | None]]:
        section = self._data[place[4] : place[1]]
        if _COMMON not in section:
            return ()
        headers = headers_in(section, self._left)
        self._left -= len(headers)
        return headers


def _dues(
    data: bytes, places: Sequence[RecordPlace], now_ms: int, max_delay_ms: int | None
) -> list[int | None] | None:
    """Return the delivery time of each record, None for one that is not scheduled. None if no record is."""
    dues: list[int | None] = []
    wrong: list[int] = []
    reason = ""
    headers_of = _Headers(data)
    known: dict[bytes, int | None] = {}
    for number, place in enumerate(places):
        section = data[place[4] : place[1]]
        try:
            if section not in known:  # the records of a batch often have the same headers
                known[section] = _due(headers_of(place), now_ms, max_delay_ms)
            dues.append(known[section])
        except InvalidRecordError as error:
            reason = reason or error.message
            wrong.append(number)
    if wrong:
        raise InvalidRecordsError(reason, wrong[:_MOST_REPORTED], reason)
    return dues if any(due is not None for due in dues) else None


def _due(
    headers: Sequence[tuple[bytes, bytes | None]], now_ms: int, max_delay_ms: int | None
) -> int | None:
    due: int | None = None
    for name, content in headers:
        directive = _DELAYING.get(name)
        if directive is not None:
            if due is not None:
                raise InvalidRecordError(
                    f"a record has one header {DELIVER_AT_MS} or {DELAY_MS}, not several"
                )
            due = decode_ms(content, directive) + (now_ms if directive == DELAY_MS else 0)
    if due is not None and max_delay_ms is not None and due - now_ms > max_delay_ms:
        raise InvalidRecordError(
            f"a record is delayed by {due - now_ms} ms; headrace.delay.max.ms is {max_delay_ms}"
        )
    return due


def _now_part(header: BatchHeader, data: bytes, stays: list[bool], now_ms: int) -> Buffer:
    if any(stays):
        return with_records(header, data, stays, level=FAST)
    return sealed(
        header._replace(
            attributes=CONTROL_FLAG,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            records_count=1,
        ),
        placeholder_record(header.last_offset_delta),
    )
