"""Where the records of a worker were first, and how far their headers are believed.

Anybody who may write to a topic chooses the headers of a record. A worker believes what headers say of a record's place
only in records of its own retry topics, only if they name its own group, and only if they name a topic whose records
wait there. Every other record is where it was read.
"""

from __future__ import annotations

from typing import Final

from headrace.clients.consumer.records import ConsumerRecord
from headrace.dead_letters.letter_headers import (
    ONLY_GROUP,
    RETRIED,
    RETRY_ATTEMPT,
    RETRY_DUE,
    STREAM_PREFIX,
    RecordOrigin,
    header,
    named_origin,
    number,
    origin_of,
    origin_text,
    retry_topic,
)
from headrace.stream_record import StreamRecord
from headrace.workers.settings import WorkerSettings

MAX_WAIT_MS: Final = 86_400_000
"""How long a record of a retry topic may hold its partition up, unless the worker's own pauses are longer."""


class Origins:
    """Where the records of one worker were first."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Find out which retry topics are the worker's own, and whose records wait in each."""
        self._group = settings.group.encode()
        self._sources = settings.retry_topics()
        self._max_wait_ms = max(MAX_WAIT_MS, *(round(s * 1000) for s in settings.pauses_s), 0)
        self._believed: dict[str, set[str]] = {}
        """By retry topic, the topics that a record in it may name."""
        for waiting in self._sources:
            homes = {
                topic
                for topic in settings.topics
                for pause_s in settings.pauses_s
                if retry_topic(topic, pause_s) == waiting
            }
            # A record that somebody else wrote to a retry topic has its first place there.
            strays = {name for name, source in self._sources.items() if source in homes}
            self._believed[waiting] = homes | strays

    def of(self, record: ConsumerRecord) -> RecordOrigin:
        """Return where a record was first."""
        if record.topic in self._sources:
            return self._noted(record) or origin_of(record)
        return origin_of(record)

    def source(self, record: ConsumerRecord) -> str:
        """Return the topic of the worker that a record belongs to: its retry topics are called after it."""
        topic = self.of(record).topic
        return self._sources.get(topic, topic)

    def home(self, record: ConsumerRecord) -> str:
        """Return what the dead-letter topic of a record is called after: its topic, or kinesis.<stream>."""
        topic = self.source(record)
        return f"{STREAM_PREFIX}{topic}" if isinstance(record, StreamRecord) else topic

    def text(self, record: ConsumerRecord) -> str:
        """Return where a record was first, for people."""
        if isinstance(record, StreamRecord):
            return f"{record.place} of {record.shard} of {record.topic}"
        return origin_text(self.of(record))

    def attempt(self, record: ConsumerRecord) -> int:
        """Return which attempt is the next one of a record that was just read, from 1."""
        if record.topic not in self._sources or self._noted(record) is None:
            return 1
        return max(1, number(record, RETRY_ATTEMPT) or 1)

    def due_ms(self, record: ConsumerRecord, now_ms: int) -> int:
        """Return when a record of a retry topic is to be handled, in milliseconds since 1970; 0 is at once.

        Its partition waits for it, so it is not later than `MAX_WAIT_MS`, or the worker's longest pause, after the
        record was written.
        """
        written_ms = record.timestamp_ms
        if self._noted(record) is None or written_ms > now_ms + self._max_wait_ms:
            return 0
        return min(number(record, RETRY_DUE) or 0, written_ms + self._max_wait_ms)

    def _noted(self, record: ConsumerRecord) -> RecordOrigin | None:
        """Return what a worker of this group wrote of a record into its retry topic; None where none did."""
        if header(record, ONLY_GROUP) != self._group:
            return None
        place = named_origin(record, RETRIED)
        return place if place is not None and place.topic in self._believed[record.topic] else None
