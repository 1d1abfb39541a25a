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
"""What the names of both headers begin with: a batch without it is not looked at any closer."""
_DELAYING: Final = {name.encode(): name for name in (DELIVER_AT_MS, DELAY_MS)}
_TTL: Final = TTL_MS.encode()
_MOST_REPORTED: Final = 100
MAX_DELAYED_BYTES: Final = 2 << 20
"""Most bytes of the records of a batch of which some wait: they are written to the schedule as they are."""


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


def divide(
    records: Buffer, *, now_ms: int, max_delay_ms: int | None, data: bytes | None = None
) -> Divided | None:
    """Divide a sound batch; None if none of its records is delayed.

    Args:
        records: The batch.
        now_ms: The schedule's time: delays count from it, and what was due before is due then.
        max_delay_ms: The longest delay that is accepted; None accepts all, as of a batch that has been accepted before.
        data: The bytes of its records, decompressed; None if they have yet to be.

    Raises:
        ApiError: INVALID_RECORD; a header is not well-formed, or the delay too long, or the batch is transactional.
            MESSAGE_TOO_LARGE; there are more records, or more bytes of them, than are looked into.
    """
    header = BatchHeader.parse(records)
    if data is None:
        data = produced_records(header, records)
    if _COMMON not in data:
        return None
    require_few(header, MAX_DIRECTED, "where records wait")
    if len(data) > MAX_DELAYED_BYTES:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {len(data)} bytes of records; {MAX_DELAYED_BYTES} are the most where records wait",
        )
    try:
        places = list(record_places(data, header.records_count))
        dues = _dues(data, places, now_ms, max_delay_ms)
        if dues is None:
            return None
        if header.attributes & TRANSACTIONAL_FLAG:
            raise ApiError(
                ErrorCode.INVALID_RECORD,
                "a delayed record in a transaction: delayed delivery is not transactional",
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


class Delayed(NamedTuple):
    """A delayed record of a produced batch: its offset in the batch, and whether it may expire."""

    offset_delta: int
    has_ttl: bool


def delayed_of(header: BatchHeader, records: Buffer) -> list[Delayed]:
    """Return the delayed records of a sound batch.

    Raises:
        ApiError: MESSAGE_TOO_LARGE; there are more records, or more bytes of them, than are looked into.
        InvalidRecordError: They do not decompress.
        CorruptRecordError: They do not decode.
    """
    require_few(header, MAX_DIRECTED, "where records wait")
    data = produced_records(header, records)
    delayed: list[Delayed] = []
    headers_of = _Headers(data)
    for place in record_places(data, header.records_count):
        names = {name for name, _ in headers_of(place)}
        if names & _DELAYING.keys():
            delayed.append(Delayed(place[3], _TTL in names))
    return delayed


def was_divided(delayed: list[Delayed], stored: Buffer, *, compacts: bool) -> bool | None:
    """Return whether a stored batch is what division has left; None if cleaning may have left the same.

    Args:
        delayed: The delayed records of the batch as it is produced once more.
        stored: What the partition has of it; not a control batch.
        compacts: Whether a record may have gone for a newer one of its key, besides for its time to live.

    Raises:
        CorruptRecordError: What is stored does not decode, or decompresses to more than is looked into.
    """
    header = BatchHeader.parse(stored)
    data = records_of(header, stored, LOOK_BYTES)
    there = {place[3] for place in record_places(data, header.records_count)}
    if any(record.offset_delta in there for record in delayed):
        return False
    gone = compacts or all(record.has_ttl for record in delayed)
    return None if gone else True


class _Headers:
    """Reads the headers of records that name a directive; those of all others count as none."""

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
    """Return of each record when it is due, None if it is not delayed; None if none is."""
    dues: list[int | None] = []
    wrong: list[int] = []
    reason = ""
    headers_of = _Headers(data)
    known: dict[bytes, int | None] = {}
    for number, place in enumerate(places):
        section = data[place[4] : place[1]]
        try:
            if section not in known:  # all records of a batch often say the same
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
