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
from headrace.workers.outcomes import MAX_MESSAGE, message_of

Headers = tuple[tuple[str, bytes | None], ...]

DEAD_LETTER_PREFIX: Final = "dlq."
STREAM_PREFIX: Final = "kinesis."
"""Before the name of a stream, which may be a topic's too: letters of a stream have no topic to go back to."""
RETRY_PREFIX: Final = "retry."

FROM_LETTER: Final = "kafka_dlt-"
"""What the names of the headers begin with that Spring's tools write into a dead letter."""
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

INT: Final = struct.Struct(">i")
LONG: Final = struct.Struct(">q")
MAX_LONG: Final = (1 << 63) - 1
MAX_DIGITS: Final = 200
"""Digits of a number that is believed: a sequence number of a stream has at most 128, its offset some more."""
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
_SHARD_OFFSET: Final = f"{LETTER}offset"
"""Text where it is of a shard: it does not fit into eight bytes."""
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


def here(record: ConsumerRecord) -> Place:
    """Return where a record was read."""
    return Place(record.topic, record.partition, record.offset, record.timestamp_ms)


def place_text(place: Place) -> str:
    """Return a place for people."""
    return f"offset {place.offset} of {place.topic}-{place.partition}"


def named_place(record: ConsumerRecord, prefix: str) -> Place | None:
    """Return the place that a record's headers name; None where they name none.

    Whoever wrote the record chose them: they are for people, unless it is known who that was.
    """
    topic = header(record, f"{prefix}topic")
    partition, offset, timestamp_ms = (
        number(record, f"{prefix}{what}") for what in ("partition", "offset", "timestamp")
    )
    if topic is None or partition is None or offset is None or timestamp_ms is None:
        return None
    if partition < 0 or offset < 0:
        return None
    return Place(topic.decode(errors="replace"), partition, offset, timestamp_ms)


def is_for(record: ConsumerRecord, group: str) -> bool:
    """Whether a record concerns a group: all do, but those sent again for another one."""
    only = header(record, ONLY_GROUP) if record.headers else None
    return only is None or only == group.encode()


def retry_headers(
    record: ConsumerRecord,
    place: Place,
    group: str,
    attempt: int,
    due_ms: int,
    *,
    delayed: bool = False,
) -> Headers:
    """Return the headers of a record that waits for its next attempt.

    Args:
        record: The record.
        place: Where it was first.
        group: Whose workers handle it.
        attempt: Which attempt the next one is.
        due_ms: When that is, in milliseconds since 1970.
        delayed: Whether the broker keeps it until then, if it can.
    """
    return (
        *_foreign(record, RETRIED),
        *_place_headers(RETRIED, place),
        (RETRY_ATTEMPT, INT.pack(attempt)),
        (RETRY_DUE, LONG.pack(due_ms)),
        (ONLY_GROUP, group.encode()),
        *(((DELIVER_AT_MS, b"%d" % due_ms),) if delayed else ()),
    )


def dead_letter_headers(
    record: ConsumerRecord,
    place: Place,
    group: str,
    attempts: int,
    error: Exception,
    *,
    traceback: str = "",
) -> Headers:
    """Return the headers of a dead letter; what others wrote of a letter's place and reason is not among them.

    Args:
        record: The record.
        place: Where it was first.
        group: The group that gave it up.
        attempts: How often it was handled.
        error: Why it could not be handled.
        traceback: Where that was raised; empty for none.
    """
    traced = ((TRACEBACK, traceback.encode(errors="replace")),) if traceback else ()
    return (
        *_foreign(record, RETRIED, FROM_LETTER),
        *_place_headers(LETTER, place),
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
    kept = tuple(one for one in _foreign(record, RETRIED, FROM_LETTER) if one[0] != REDRIVES)
    return (*kept, *only, (REDRIVES, count))


def redrives(record: ConsumerRecord) -> int:
    """Return how often a dead letter was sent back before."""
    return _digits(header(record, REDRIVES) or b"") or 0


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


def number(record: ConsumerRecord, name: str) -> int | None:
    """Return what a header of `NUMBERS` says; None where it says no number."""
    value = header(record, name)
    layout = NUMBERS[name]
    if value is None:
        return None
    if len(value) == layout.size:
        found: int = layout.unpack(value)[0]
        return found
    return _digits(value) if name == _SHARD_OFFSET else None


def _digits(text: bytes) -> int | None:
    """Return the number that a header's text is; None for any other text, and for more digits than are ever written."""
    return int(text) if len(text) <= MAX_DIGITS and text.isdigit() else None
