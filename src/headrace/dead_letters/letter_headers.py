"""The headers of dead letters and of records in retry topics: where a record came from, and why it failed.

The headers that name a record's origin have the format of Spring Kafka: text in UTF-8, numbers as big-endian integers
of four or eight bytes. The headers that only Headrace writes are text.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from headrace.clients.consumer.records import ConsumerRecord
from headrace.dead_letters.error_text import MAX_MESSAGE, message_of
from headrace.records.directives import DELAY_MS, DELIVER_AT_MS
from headrace.stream_record import StreamRecord
from headrace.types import MAX_INT64

Headers = tuple[tuple[str, bytes | None], ...]

DEAD_LETTER_PREFIX: Final = "dlq."
STREAM_PREFIX: Final = "kinesis."
"""Comes before the name of a Kinesis stream in the name of its dead-letter topic, `dlq.kinesis.<stream>`.

A topic may have the same name as a stream, and a dead letter of a stream has no topic to be sent back to."""
RETRY_PREFIX: Final = "retry."

FROM_LETTER: Final = "kafka_dlt-"
"""The prefix of all headers that Spring Kafka writes into a dead letter."""
LETTER: Final = "kafka_dlt-original-"
"""The prefix of the headers that name the origin of a dead letter."""
RETRIED: Final = "kafka_original-"
"""The prefix of the headers that name the origin of a record in a retry topic."""
ERROR_TYPE: Final = "dlq-error-type"
ERROR_MESSAGE: Final = "dlq-error-message"
TRACEBACK: Final = "kafka_dlt-exception-stacktrace"
"""The traceback, under the name that Spring Kafka uses."""
ATTEMPTS: Final = "dlq-error-attempts"
GROUP: Final = "dlq-error-group"
REDRIVES: Final = "dlq-redrives"
"""The number of times that the dead letter was sent back to its topic."""
ONLY_GROUP: Final = "headrace-only-group"
"""The only group whose workers handle the record. Workers of other groups skip it."""
RETRY_ATTEMPT: Final = "retry_topic-attempts"
RETRY_DUE: Final = "retry_topic-backoff-timestamp"

LEFT_OUT: Final = "dlq-left-out"
"""The parts that are missing from a dead letter that was too large, for example "value of 2000000 bytes"."""

SHARD: Final = "dlq-shard"
SEQUENCE_NUMBER: Final = "dlq-sequence-number"
"""The sequence number of a stream's record; of a record in an aggregate `<sequence number>:<number in it>`."""

INT: Final = struct.Struct(">i")
LONG: Final = struct.Struct(">q")
MAX_LONG: Final = MAX_INT64
MAX_DIGITS: Final = 200
"""The most digits of a number in a header that is read as a number. Sequence numbers of Kinesis have at most 128."""
NUMBERS: Final = {
    f"{prefix}{what}": layout
    for prefix in (LETTER, RETRIED)
    for what, layout in (("partition", INT), ("offset", LONG), ("timestamp", LONG))
} | {RETRY_ATTEMPT: INT, RETRY_DUE: LONG}
"""The binary format of each header that contains a number."""
_OWN: Final = {
    ERROR_TYPE,
    ERROR_MESSAGE,
    TRACEBACK,
    ATTEMPTS,
    GROUP,
    LEFT_OUT,
    ONLY_GROUP,
    RETRY_ATTEMPT,
    RETRY_DUE,
    SHARD,
    SEQUENCE_NUMBER,
}
_SHARD_OFFSET: Final = f"{LETTER}offset"
"""Contains text if the record came from a shard, because the offset does not fit into eight bytes."""
_SPENT: Final = {DELIVER_AT_MS, DELAY_MS}
"""Headers of scheduled delivery. The record was delivered already and must not be scheduled again."""


class RecordOrigin(NamedTuple):
    """The place where a record was read for the first time, before any retry topic or dead-letter topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class FailedRecord(NamedTuple):
    """The content of a record that is written to a dead-letter topic or a retry topic."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    left_out: str = ""
    """The parts of the original record that are missing, for the log. Empty if nothing is missing."""


def retry_topic(topic: str, seconds: float) -> str:
    """Return the name of the retry topic whose records wait for so many seconds."""
    return f"{RETRY_PREFIX}{seconds:g}.{topic}"


def header(record: ConsumerRecord, name: str) -> bytes | None:
    """Return the value of a header: of the last one, if several have this name."""
    for key, value in reversed(record.headers):
        if key == name:
            return value
    return None


def header_text(name: str, value: bytes | None) -> str:
    """Return a header's value as readable text; numbers become decimal digits."""
    if value is None:
        return ""
    layout = NUMBERS.get(name)
    if layout is not None and len(value) == layout.size:
        return str(layout.unpack(value)[0])
    return value.decode(errors="backslashreplace")


def origin_of(record: ConsumerRecord) -> RecordOrigin:
    """Return the origin of a record that was read from neither a retry topic nor a dead-letter topic."""
    return RecordOrigin(record.topic, record.partition, record.offset, record.timestamp_ms)


def origin_text(origin: RecordOrigin) -> str:
    """Return an origin as messages show it: "offset 7 of orders-3"."""
    return f"offset {origin.offset} of {origin.topic}-{origin.partition}"


def named_origin(record: ConsumerRecord, prefix: str) -> RecordOrigin | None:
    """Return the origin that a record's headers name, or None if the headers name no origin.

    The producer of the record chose these headers. Do not trust them unless you know that a worker wrote the record.
    """
    topic = header(record, f"{prefix}topic")
    partition, offset, timestamp_ms = (
        number(record, f"{prefix}{what}") for what in ("partition", "offset", "timestamp")
    )
    if topic is None or partition is None or offset is None or timestamp_ms is None:
        return None
    if partition < 0 or offset < 0:
        return None
    return RecordOrigin(topic.decode(errors="replace"), partition, offset, timestamp_ms)


def is_for(record: ConsumerRecord, group: str) -> bool:
    """Return whether workers of a group handle a record: false only if `ONLY_GROUP` names another group."""
    only = header(record, ONLY_GROUP) if record.headers else None
    return only is None or only == group.encode()


def retry_headers(
    record: ConsumerRecord,
    origin: RecordOrigin,
    group: str,
    attempt: int,
    due_ms: int,
    *,
    delayed: bool = False,
) -> Headers:
    """Return the headers of a record that waits in a retry topic.

    Args:
        record: The record.
        origin: Where the record was read for the first time.
        group: The group whose workers handle it.
        attempt: The number of the next attempt.
        due_ms: The time of the next attempt, in milliseconds since 1970.
        delayed: Whether to ask the broker to deliver the record only at that time.
    """
    return (
        *_foreign(record, RETRIED),
        *_origin_headers(RETRIED, origin),
        (RETRY_ATTEMPT, INT.pack(attempt)),
        (RETRY_DUE, LONG.pack(due_ms)),
        (ONLY_GROUP, group.encode()),
        *(((DELIVER_AT_MS, b"%d" % due_ms),) if delayed else ()),
    )


def dead_letter_headers(
    record: ConsumerRecord,
    origin: RecordOrigin,
    group: str,
    attempts: int,
    error: Exception,
    *,
    traceback: str = "",
) -> Headers:
    """Return the headers of a dead letter.

    Headers of the record that have a name of a dead letter's header are left out: the producer may have forged them.

    Args:
        record: The record.
        origin: Where the record was read for the first time.
        group: The group that could not handle the record.
        attempts: How many attempts failed.
        error: The exception of the last attempt.
        traceback: The exception's traceback; empty to leave it out.
    """
    traced = ((TRACEBACK, traceback.encode(errors="replace")),) if traceback else ()
    return (
        *_foreign(record, RETRIED, FROM_LETTER),
        *_origin_headers(LETTER, origin),
        *_shard_headers(record),
        (f"{LETTER}consumer-group", group.encode()),
        (ERROR_TYPE, type(error).__name__.encode()),
        (ERROR_MESSAGE, message_of(error)[:MAX_MESSAGE].encode(errors="replace")),
        (ATTEMPTS, str(attempts).encode()),
        (GROUP, group.encode()),
        *traced,
    )


def ever_smaller(record: ConsumerRecord, headers: Headers) -> Iterator[FailedRecord]:
    """Yield dead letters of a record, each smaller than the one before.

    The largest record that the dead-letter topic accepts is not known, so the caller tries one after another.

    Args:
        record: The record.
        headers: The headers of the complete dead letter.
    """
    yield FailedRecord(record.value, record.key, headers)
    headers = tuple(one for one in headers if one[0] != TRACEBACK)
    yield FailedRecord(record.value, record.key, headers)
    value = f"value of {len(record.value or b'')} bytes"
    yield _without(value, record.key, headers)
    own = tuple(one for one in headers if one[0] in _OWN or one[0].startswith((LETTER, RETRIED)))
    yield _without(f"{value}, its key and its own headers", None, own)


def _without(what: str, key: bytes | None, headers: Headers) -> FailedRecord:
    return FailedRecord(None, key, (*headers, (LEFT_OUT, what.encode())), what)


def redrive_headers(record: ConsumerRecord) -> Headers:
    """Return the headers of a dead letter that is sent back to its topic: for its group only, with a count."""
    group = header(record, GROUP)
    only = () if group is None else ((ONLY_GROUP, group),)
    count = str(redrives(record) + 1).encode()
    kept = tuple(one for one in _foreign(record, RETRIED, FROM_LETTER) if one[0] != REDRIVES)
    return (*kept, *only, (REDRIVES, count))


def redrives(record: ConsumerRecord) -> int:
    """Return how many times a dead letter was sent back to its topic."""
    return _digits(header(record, REDRIVES) or b"") or 0


def _foreign(record: ConsumerRecord, *prefixes: str) -> Headers:
    """Return the headers that the record's producer chose, and `REDRIVES`."""
    return tuple(
        one
        for one in record.headers
        if one[0] not in _OWN and one[0] not in _SPENT and not one[0].startswith(prefixes)
    )


def _origin_headers(prefix: str, origin: RecordOrigin) -> Headers:
    return (
        (f"{prefix}topic", origin.topic.encode()),
        (f"{prefix}partition", INT.pack(origin.partition)),
        (f"{prefix}offset", _offset(origin.offset)),
        (f"{prefix}timestamp", LONG.pack(origin.timestamp_ms)),
    )


def _shard_headers(record: ConsumerRecord) -> Headers:
    if not isinstance(record, StreamRecord):
        return ()
    return ((SHARD, record.shard.encode()), (SEQUENCE_NUMBER, record.place.encode()))


def _offset(offset: int) -> bytes:
    """Return an offset in Spring's format, eight bytes. Offsets of streams do not fit and become text."""
    return LONG.pack(offset) if offset <= MAX_LONG else b"%d" % offset


def number(record: ConsumerRecord, name: str) -> int | None:
    """Return the number in a header of `NUMBERS`; None if there is no such header, or it is not a number."""
    value = header(record, name)
    layout = NUMBERS[name]
    if value is None:
        return None
    if len(value) == layout.size:
        found: int = layout.unpack(value)[0]
        return found
    return _digits(value) if name == _SHARD_OFFSET else None


def _digits(text: bytes) -> int | None:
    """Return the number that a header's text contains; None for any other text or more than `MAX_DIGITS` digits."""
    return int(text) if len(text) <= MAX_DIGITS and text.isdigit() else None
