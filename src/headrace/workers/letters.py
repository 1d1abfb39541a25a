"""The headers of dead letters and of records in retry topics: where a record came from, and why it is there.

Where a record came from is written as Spring's tools write and read it: text in UTF-8, numbers as big-endian integers
of four or eight bytes. What is Headrace's own is text.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from headrace.clients.consumer.records import ConsumerRecord
from headrace.kinesis.records import StreamRecord
from headrace.records.directives import DELAY_MS, DELIVER_AT_MS
from headrace.workers.outcomes import message_of

Headers = tuple[tuple[str, bytes | None], ...]

DEAD_LETTER_PREFIX: Final = "dlq."
STREAM_PREFIX: Final = "kinesis."
"""Before the name of a stream, which may be a topic's too: letters of a stream have no topic to go back to."""
RETRY_PREFIX: Final = "retry."

LETTER: Final = "kafka_dlt-original-"
RETRIED: Final = "kafka_original-"
ERROR_TYPE: Final = "dlq-error-type"
ERROR_MESSAGE: Final = "dlq-error-message"
TRACEBACK: Final = "kafka_dlt-exception-stacktrace"
"""As Spring's tools name it."""
ATTEMPTS: Final = "dlq-error-attempts"
GROUP: Final = "dlq-error-group"
REDRIVES: Final = "dlq-redrives"
"""How often a dead letter was sent back to its topic."""
ONLY_GROUP: Final = "headrace-only-group"
"""The group whose workers a record is for; those of others pass over it."""
RETRY_ATTEMPT: Final = "retry_topic-attempts"
RETRY_DUE: Final = "retry_topic-backoff-timestamp"

LEFT_OUT: Final = "dlq-left-out"
"""What a letter is without, as its topic takes no letter of that size: "value of 2000000 bytes"."""

SHARD: Final = "dlq-shard"
SEQUENCE_NUMBER: Final = "dlq-sequence-number"
"""In its shard, with the number of the user record behind a colon where several share it; of records of streams."""

MAX_MESSAGE: Final = 1_000
"""Characters of an error's text that are kept: the letter must not outgrow the record much."""

INT: Final = struct.Struct(">i")
LONG: Final = struct.Struct(">q")
MAX_LONG: Final = (1 << 63) - 1
NUMBERS: Final = {
    f"{prefix}{what}": layout
    for prefix in (LETTER, RETRIED)
    for what, layout in (("partition", INT), ("offset", LONG), ("timestamp", LONG))
} | {RETRY_ATTEMPT: INT, RETRY_DUE: LONG}
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
_SPENT: Final = {DELIVER_AT_MS, DELAY_MS}
"""What said when the record was to come: it has, and is not to be delayed once more."""


class Place(NamedTuple):
    """Where a record was first."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Letter(NamedTuple):
    """What is written of a record."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    left_out: str = ""
    """What of the record is not in it, for people."""


class RetryNote(NamedTuple):
    """What a record in a retry topic says of itself."""

    attempt: int
    due_ms: int


def retry_topic(topic: str, seconds: float) -> str:
    """Return the name of the topic in which a topic's records wait so long."""
    return f"{RETRY_PREFIX}{seconds:g}.{topic}"


def header(record: ConsumerRecord, name: str) -> bytes | None:
    """Return the value of a header, the last if there are several."""
    for key, value in reversed(record.headers):
        if key == name:
            return value
    return None


def header_text(name: str, value: bytes | None) -> str:
    """Return a header's value for people, numbers as digits."""
    if value is None:
        return ""
    layout = NUMBERS.get(name)
    if layout is not None and len(value) == layout.size:
        return str(layout.unpack(value)[0])
    return value.decode(errors="backslashreplace")


def place_of(record: ConsumerRecord, prefix: str = RETRIED) -> Place:
    """Return where a record was first: what its headers say, or where it is."""
    if any(name.startswith(prefix) for name, _ in record.headers):
        topic = header(record, f"{prefix}topic")
        numbers = [
            _number(record, f"{prefix}{what}") for what in ("partition", "offset", "timestamp")
        ]
        if topic is not None and None not in numbers:
            return Place(topic.decode(errors="replace"), *(number or 0 for number in numbers))
    return Place(record.topic, record.partition, record.offset, record.timestamp_ms)


def home_of(record: ConsumerRecord) -> str:
    """Return what the dead-letter topic of a record is called after: its topic, or kinesis.<stream>."""
    topic = place_of(record).topic
    return f"{STREAM_PREFIX}{topic}" if isinstance(record, StreamRecord) else topic


def place_text(record: ConsumerRecord) -> str:
    """Return where a record was first, for people."""
    if isinstance(record, StreamRecord):
        return f"{record.place} of {record.shard} of {record.topic}"
    place = place_of(record)
    return f"offset {place.offset} of {place.topic}-{place.partition}"


def retry_note(record: ConsumerRecord) -> RetryNote:
    """Return when a record in a retry topic is due; a foreign one is at once."""
    return RetryNote(_number(record, RETRY_ATTEMPT) or 1, _number(record, RETRY_DUE) or 0)


def is_for(record: ConsumerRecord, group: str) -> bool:
    """Whether a record concerns a group: all do, but those sent again for another one."""
    only = header(record, ONLY_GROUP) if record.headers else None
    return only is None or only == group.encode()


def retry_headers(
    record: ConsumerRecord, group: str, attempt: int, due_ms: int, *, delayed: bool = False
) -> Headers:
    """Return the headers of a record that waits for its next attempt; in the broker, if it can be `delayed` there."""
    return (
        *_foreign(record, RETRIED),
        *_place_headers(RETRIED, place_of(record)),
        (RETRY_ATTEMPT, INT.pack(attempt)),
        (RETRY_DUE, LONG.pack(due_ms)),
        (ONLY_GROUP, group.encode()),
        *(((DELIVER_AT_MS, b"%d" % due_ms),) if delayed else ()),
    )


def dead_letter_headers(
    record: ConsumerRecord, group: str, attempts: int, error: Exception, traceback: str = ""
) -> Headers:
    """Return the headers of a dead letter."""
    traced = ((TRACEBACK, traceback.encode(errors="replace")),) if traceback else ()
    return (
        *_foreign(record, RETRIED, LETTER),
        *_place_headers(LETTER, place_of(record)),
        *_shard_headers(record),
        (f"{LETTER}consumer-group", group.encode()),
        (ERROR_TYPE, type(error).__name__.encode()),
        (ERROR_MESSAGE, message_of(error)[:MAX_MESSAGE].encode(errors="replace")),
        (ATTEMPTS, str(attempts).encode()),
        (GROUP, group.encode()),
        *traced,
    )


def ever_smaller(record: ConsumerRecord, headers: Headers) -> Iterator[Letter]:
    """Yield dead letters of a record, each with less in it than the one before: what a topic takes is not known.

    Args:
        record: The record.
        headers: The headers of the whole letter.
    """
    yield Letter(record.value, record.key, headers)
    headers = tuple(one for one in headers if one[0] != TRACEBACK)
    yield Letter(record.value, record.key, headers)
    value = f"value of {len(record.value or b'')} bytes"
    yield _without(value, record.key, headers)
    own = tuple(one for one in headers if one[0] in _OWN or one[0].startswith((LETTER, RETRIED)))
    yield _without(f"{value}, its key and its own headers", None, own)


def _without(what: str, key: bytes | None, headers: Headers) -> Letter:
    return Letter(None, key, (*headers, (LEFT_OUT, what.encode())), what)


def redrive_headers(record: ConsumerRecord) -> Headers:
    """Return the headers with which a dead letter goes back: for its group alone, and counted."""
    group = header(record, GROUP)
    only = () if group is None else ((ONLY_GROUP, group),)
    count = str(redrives(record) + 1).encode()
    kept = tuple(one for one in _foreign(record, LETTER) if one[0] != REDRIVES)
    return (*kept, *only, (REDRIVES, count))


def redrives(record: ConsumerRecord) -> int:
    """Return how often a dead letter was sent back before."""
    text = header(record, REDRIVES) or b"0"
    return int(text) if text.isdigit() else 0


def _foreign(record: ConsumerRecord, *prefixes: str) -> Headers:
    """Return the headers that the record's own producer gave it, and how often it was sent back."""
    return tuple(
        one
        for one in record.headers
        if one[0] not in _OWN and one[0] not in _SPENT and not one[0].startswith(prefixes)
    )


def _place_headers(prefix: str, place: Place) -> Headers:
    return (
        (f"{prefix}topic", place.topic.encode()),
        (f"{prefix}partition", INT.pack(place.partition)),
        (f"{prefix}offset", _offset(place.offset)),
        (f"{prefix}timestamp", LONG.pack(place.timestamp_ms)),
    )


def _shard_headers(record: ConsumerRecord) -> Headers:
    if not isinstance(record, StreamRecord):
        return ()
    return ((SHARD, record.shard.encode()), (SEQUENCE_NUMBER, record.place.encode()))


def _offset(offset: int) -> bytes:
    """Return an offset as Spring writes it; those of streams do not fit, and are text."""
    return LONG.pack(offset) if offset <= MAX_LONG else b"%d" % offset


def _number(record: ConsumerRecord, name: str) -> int | None:
    value = header(record, name)
    layout = NUMBERS[name]
    if value is not None and len(value) > layout.size and value.isdigit():
        return int(value)  # an offset in a shard
    if value is None or len(value) != layout.size:
        return None
    number: int = layout.unpack(value)[0]
    return number
